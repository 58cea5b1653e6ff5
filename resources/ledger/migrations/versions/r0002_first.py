"""First revision: all tables of the ledger, append-only. `r0001` was another form of them, before any release."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

from resources.ledger.migrations.append_only import append_only, prepare

revision = "r0002"
down_revision = None


def upgrade() -> None:
    """Create the tables in an empty database."""
    prepare()
    _create(
        "ledger_environment",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        *_texts("environment"),
        _time(),
        keys=(("id",),),
    )
    number = (("table", "key", "number"),)
    _create(
        "ledger_verdicts",
        sa.Column("table", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        *_texts("content_digest", "contract_digest", "status"),
        sa.Column("rows", sa.BigInteger, nullable=False),
        *_texts("body_json", "run_id", "branch"),
        _time(),
        keys=number,
    )
    _create(
        "ledger_acceptances",
        sa.Column("table", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        *_texts("content_digest", "author", "reason"),
        _time(),
        keys=number,
    )
    _create(
        "ledger_decisions",
        sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
        *_texts("model", "kind", "bundle_digest", "evaluation_digest", "author", "reason", "at", "facts"),
        *_texts("previous", "digest"),
        keys=(("place",),),
    )
    op.create_index("ledger_decisions_by_bundle", "ledger_decisions", ["model", "kind", "bundle_digest"])
    op.create_index("ledger_decisions_by_evaluation", "ledger_decisions", ["evaluation_digest"])


def _create(table: str, *columns: sa.Column[Any], keys: Sequence[Sequence[str]]) -> None:
    """Create an append-only table. `keys` are its unique keys."""
    op.create_table(table, *columns)
    append_only(table, keys)


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _time() -> sa.Column[Any]:
    return sa.Column("at", sa.DateTime(timezone=True), nullable=False)
