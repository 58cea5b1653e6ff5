"""Triggers that refuse changes and deletions of rows, for revisions from 0003 on."""

from collections.abc import Sequence

from alembic import op


def append_only(table: str) -> None:
    """Add triggers that refuse UPDATE, DELETE and (PostgreSQL) TRUNCATE of `table`. PostgreSQL needs revision 0002."""
    not_append_only(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION ledger_append_only()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        )


def not_append_only(table: str) -> None:
    """Remove those triggers. Do nothing if there are none."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"DROP TRIGGER IF EXISTS {table}_append_only ON {table}")
        return
    for verb in ("update", "delete"):
        op.execute(f"DROP TRIGGER IF EXISTS {table}_no_{verb}")


def not_replaced(table: str, keys: Sequence[Sequence[str]]) -> None:
    """Add a trigger that refuses an INSERT of an existing key, on SQLite.

    `INSERT OR REPLACE` deletes the row of that key without firing the DELETE trigger, unless the connection sets
    `recursive_triggers`. A foreign connection does not set it. The trigger also refuses an existing row id.
    """
    same = [" AND ".join(f'"{column}" = NEW."{column}"' for column in key) for key in keys]
    there = " OR ".join(f"({one})" for one in (*same, "rowid = NEW.rowid"))
    op.execute(
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} WHEN EXISTS "
        f"(SELECT 1 FROM {table} WHERE {there}) "
        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
    )


def replaced(table: str) -> None:
    """Undo `not_replaced`."""
    op.execute(f"DROP TRIGGER IF EXISTS {table}_no_replace")


def always(table: str) -> None:
    """Let PostgreSQL fire the trigger also if `session_replication_role` is `replica`."""
    op.execute(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {table}_append_only")


def only_as_origin(table: str) -> None:
    """Undo `always`."""
    op.execute(f"ALTER TABLE {table} ENABLE TRIGGER {table}_append_only")
