"""Append-only tables on PostgreSQL: no row can be changed or deleted. SQLite has this since revision 0001."""

from alembic import op

revision = "0002"
down_revision = "0001"

_TABLES = ("ledger_verdicts", "ledger_acceptances", "ledger_promotions")


def upgrade() -> None:
    """Create one function, and one trigger per table."""
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
    """Drop the triggers and the function."""
    if op.get_bind().dialect.name != "postgresql":
        return
    for table in _TABLES:
        op.execute(f"DROP TRIGGER {table}_append_only ON {table}")
    op.execute("DROP FUNCTION ledger_append_only()")
