"""Changes of partitions by their place, so that a reader finds what changed since it looked."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "r0003", "r0002"
_TABLE = "ledger_changes"


def upgrade() -> None:
    """Create the table, empty: verdicts from before are no change to a reader that has looked at them."""
    op.create_table(
        _TABLE,
        sa.Column("table", sa.Text, primary_key=True),
        sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER {_TABLE}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {_TABLE} "
            "FOR EACH STATEMENT EXECUTE FUNCTION ledger_append_only()"
        )
        op.execute(f"ALTER TABLE {_TABLE} ENABLE ALWAYS TRIGGER {_TABLE}_append_only")
        return
    refuse = f"BEGIN SELECT RAISE(ABORT, '{_TABLE} is append-only'); END"
    for verb in ("UPDATE", "DELETE"):
        op.execute(f"CREATE TRIGGER {_TABLE}_no_{verb.lower()} BEFORE {verb} ON {_TABLE} {refuse}")
    same = '("table" = NEW."table" AND "place" = NEW."place")'
    op.execute(
        f"CREATE TRIGGER {_TABLE}_no_replace BEFORE INSERT ON {_TABLE} "
        f"WHEN EXISTS (SELECT 1 FROM {_TABLE} WHERE {same} OR rowid = NEW.rowid) {refuse}"
    )
