"""Triggers that let rows of a table neither change nor go, for steps from 0003 on."""

from alembic import op


def append_only(table: str) -> None:
    """Refuse UPDATE, DELETE and (PostgreSQL) TRUNCATE of `table`. Needs step 0002 on PostgreSQL."""
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
    """Remove those triggers, also where there are none."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"DROP TRIGGER IF EXISTS {table}_append_only ON {table}")
        return
    for verb in ("update", "delete"):
        op.execute(f"DROP TRIGGER IF EXISTS {table}_no_{verb}")
