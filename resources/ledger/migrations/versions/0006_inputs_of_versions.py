"""Columns for the window of the lake behind each evaluation, and for the objection that a promotion overrode."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_NEW = {"ledger_evaluations": "trained_on", "ledger_promotions": "despite"}


def upgrade() -> None:
    """Add the columns, unless they exist: `downgrade` leaves them."""
    for table, column in _NEW.items():
        there = sa.inspect(op.get_bind()).get_columns(table)
        if column not in {one["name"] for one in there}:
            op.add_column(table, sa.Column(column, sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    """Keep the columns: a program of revision 0005 neither reads nor writes them."""
