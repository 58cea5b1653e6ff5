"""Append-only tables of evaluations and semantic versions of bundles; a column with each promotion's evaluation."""

import sqlalchemy as sa
from alembic import op

from resources.ledger.migrations.append_only import append_only, not_append_only

revision = "0003"
down_revision = "0002"

_TABLES = ("ledger_evaluations", "ledger_semantic_names")


def upgrade() -> None:
    """Add the tables and the column, unless they exist: `downgrade` leaves them."""
    time = sa.DateTime(timezone=True)
    there = sa.inspect(op.get_bind())
    if "evaluation_digest" not in {column["name"] for column in there.get_columns("ledger_promotions")}:
        op.add_column(
            "ledger_promotions", sa.Column("evaluation_digest", sa.Text, nullable=False, server_default="")
        )
    if not there.has_table("ledger_evaluations"):
        op.create_table(
            "ledger_evaluations",
            sa.Column("id", sa.Integer, primary_key=True),
            sa.Column("model", sa.Text, nullable=False),
            sa.Column("partition", sa.Text, nullable=False),
            sa.Column("bundle_digest", sa.Text, nullable=False),
            sa.Column("evaluation_digest", sa.Text, nullable=False),
            sa.Column("champion_digest", sa.Text),
            sa.Column("status", sa.Text, nullable=False),
            sa.Column("summary", sa.Text, nullable=False),
            sa.Column("report", sa.Text, nullable=False),
            sa.Column("run_id", sa.Text, nullable=False),
            sa.Column("at", time, nullable=False),
            sqlite_autoincrement=True,
        )
        op.create_index("ledger_evaluations_by_bundle", "ledger_evaluations", ["model", "bundle_digest"])
    if not there.has_table("ledger_semantic_names"):
        op.create_table(
            "ledger_semantic_names",
            sa.Column("model", sa.Text, primary_key=True),
            sa.Column("semantic", sa.Text, primary_key=True),
            sa.Column("bundle_digest", sa.Text, nullable=False),
            sa.Column("schema_digest", sa.Text, nullable=False),
            sa.Column("recipe_digest", sa.Text, nullable=False),
            sa.Column("at", time, nullable=False),
        )
        op.create_index(
            "ledger_semantic_names_by_bundle",
            "ledger_semantic_names",
            ["model", "bundle_digest"],
            unique=True,
        )
    for table in _TABLES:
        append_only(table)


def downgrade() -> None:
    """Remove the triggers. Keep tables, column and rows: a program of revision 0002 neither reads nor writes them."""
    for table in _TABLES:
        not_append_only(table)
