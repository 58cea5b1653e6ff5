"""Tables of verdicts, acceptances and promotions. On SQLite, triggers make them append-only."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_TABLES = ("ledger_verdicts", "ledger_acceptances", "ledger_promotions")


def upgrade() -> None:
    """Create the tables in an empty database."""
    time = sa.DateTime(timezone=True)
    op.create_table(
        "ledger_verdicts",
        sa.Column("table", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("content_digest", sa.Text, nullable=False),
        sa.Column("contract_digest", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("body_json", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("branch", sa.Text, nullable=False),
        sa.Column("at", time, nullable=False),
    )
    op.create_table(
        "ledger_acceptances",
        sa.Column("table", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("content_digest", sa.Text, nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at", time, nullable=False),
    )
    op.create_table(
        "ledger_promotions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("alias", sa.Text, nullable=False),
        sa.Column("bundle_digest", sa.Text, nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at", time, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ledger_promotions_by_role", "ledger_promotions", ["model", "alias"])
    if op.get_bind().dialect.name == "sqlite":
        for table in _TABLES:
            for verb in ("UPDATE", "DELETE"):
                op.execute(
                    f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
                )


def downgrade() -> None:
    """Drop the tables. `resources.ledger.migrations.downgrade` never runs this step."""
    for table in _TABLES:
        op.drop_table(table)
