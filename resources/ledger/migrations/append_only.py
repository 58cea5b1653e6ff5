"""Triggers that refuse changes, deletions and replacements of rows."""

from collections.abc import Sequence

from alembic import op


def prepare() -> None:
    """Create the function of PostgreSQL that `append_only` needs. SQLite needs none."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION ledger_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
        )


def append_only(table: str, keys: Sequence[Sequence[str]]) -> None:
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
