"""Demotions: the end of a promotion without another in its place; append-only."""

import sqlalchemy as sa
from alembic import op

from resources.ledger.migrations.append_only import append_only, not_append_only

revision = "0004"
down_revision = "0003"

_TABLE = "ledger_demotions"


def upgrade() -> None:
    """Add the table. It may be there: `downgrade` leaves it."""
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
    """Keep table and rows. A program of step 0003 takes what was demoted for what is in production."""
    not_append_only(_TABLE)
