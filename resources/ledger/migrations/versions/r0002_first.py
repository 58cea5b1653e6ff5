"""First revision: all tables of the ledger, append-only. `r0001` was another form of them, before any release."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "r0002"
down_revision = None


def upgrade() -> None:
    """Create the tables in an empty database."""
    _prepare()
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
    _append_only(table, keys)


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _time() -> sa.Column[Any]:
    return sa.Column("at", sa.DateTime(timezone=True), nullable=False)


def _prepare() -> None:
    """Create the function of PostgreSQL that `_append_only` needs. SQLite needs none."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION ledger_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
        )


def _append_only(table: str, keys: Sequence[Sequence[str]]) -> None:
    """Add triggers that refuse every change of the rows of `table`, whose unique keys are `keys`."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION ledger_append_only()"
        )
        # Fire also in a session that sets `session_replication_role` to `replica`.
        op.execute(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {table}_append_only")
        return
    refuse = f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
    for verb in ("UPDATE", "DELETE"):
        op.execute(f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} {refuse}")
    # `INSERT OR REPLACE` deletes the row of an existing key, or row id, without firing the DELETE trigger, unless the
    # connection sets `recursive_triggers`. A foreign connection does not set it.
    same = [" AND ".join(f'"{column}" = NEW."{column}"' for column in key) for key in keys]
    there = " OR ".join(f"({one})" for one in (*same, "rowid = NEW.rowid"))
    op.execute(
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} "
        f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {there}) {refuse}"
    )
