"""First revision: all tables of the ledger, append-only."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

from resources.ledger.migrations.append_only import append_only, prepare

revision = "r0001"
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
        "ledger_promotions",
        sa.Column("id", sa.Integer, primary_key=True),
        *_texts("model", "version", "alias", "bundle_digest", "author", "reason"),
        _time(),
        *_texts("evaluation_digest", "despite"),
        keys=(("id",),),
        sqlite_autoincrement=True,
    )
    op.create_index("ledger_promotions_by_role", "ledger_promotions", ["model", "alias"])
    _create(
        "ledger_demotions",
        sa.Column("promotion", sa.Integer, primary_key=True, autoincrement=False),
        *_texts("author", "reason"),
        _time(),
        keys=(("promotion",),),
    )
    _create(
        "ledger_evaluations",
        sa.Column("id", sa.Integer, primary_key=True),
        *_texts("model", "partition", "bundle_digest", "evaluation_digest"),
        sa.Column("champion_digest", sa.Text),
        *_texts("status", "summary", "report", "run_id"),
        _time(),
        *_texts("trained_on"),
        keys=(("id",),),
        sqlite_autoincrement=True,
    )
    op.create_index("ledger_evaluations_by_bundle", "ledger_evaluations", ["model", "bundle_digest"])
    _create(
        "ledger_semantic_names",
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("semantic", sa.Text, primary_key=True),
        *_texts("bundle_digest", "schema_digest", "recipe_digest"),
        _time(),
        keys=(("model", "semantic"), ("model", "bundle_digest")),
    )
    op.create_index(
        "ledger_semantic_names_by_bundle", "ledger_semantic_names", ["model", "bundle_digest"], unique=True
    )


def _create(
    table: str, *columns: sa.Column[Any], keys: Sequence[Sequence[str]], sqlite_autoincrement: bool = False
) -> None:
    """Create an append-only table. `keys` are its unique keys."""
    op.create_table(table, *columns, sqlite_autoincrement=sqlite_autoincrement)
    append_only(table, keys)


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _time() -> sa.Column[Any]:
    return sa.Column("at", sa.DateTime(timezone=True), nullable=False)
