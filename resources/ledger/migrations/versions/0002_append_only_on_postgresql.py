"""Append-only tables on PostgreSQL, as on SQLite since the first migration: no row is changed or deleted."""

from alembic import op

revision = "0002"
down_revision = "0001"

_TABLES = ("ledger_verdicts", "ledger_acceptances", "ledger_promotions")


def upgrade() -> None:
    """One function, one trigger per table."""
    if op.get_bind().dialect.name != "postgresql":
        return
    op.execute(
        "CREATE FUNCTION ledger_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
    )
    for table in _TABLES:
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION ledger_append_only()"
        )


def downgrade() -> None:
    """Without the triggers."""
    if op.get_bind().dialect.name != "postgresql":
        return
    for table in _TABLES:
        op.execute(f"DROP TRIGGER {table}_append_only ON {table}")
    op.execute("DROP FUNCTION ledger_append_only()")
