"""Append-only table of demotions: ends of promotions without another promotion in their place."""

import sqlalchemy as sa
from alembic import op

from resources.ledger.migrations.append_only import append_only, not_append_only

revision = "0004"
down_revision = "0003"

_TABLE = "ledger_demotions"


def upgrade() -> None:
    """Add the table, unless it exists: `downgrade` leaves it."""
    if not sa.inspect(op.get_bind()).has_table(_TABLE):
        op.create_table(
            _TABLE,
            sa.Column("promotion", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("author", sa.Text, nullable=False),
            sa.Column("reason", sa.Text, nullable=False),
            sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        )
    append_only(_TABLE)


def downgrade() -> None:
    """Remove the triggers. Keep table and rows. For a program of revision 0003, a demoted version is in production."""
    not_append_only(_TABLE)
