"""Triggers against two ways around append-only: `INSERT OR REPLACE` on SQLite, a replica's session on PostgreSQL."""

from alembic import op

from resources.ledger.migrations.append_only import always, not_replaced, only_as_origin, replaced

revision = "0005"
down_revision = "0004"

_KEYS = {
    "ledger_verdicts": (("table", "key", "attempt"),),
    "ledger_acceptances": (("table", "key", "attempt"),),
    "ledger_promotions": (("id",),),
    "ledger_demotions": (("promotion",),),
    "ledger_evaluations": (("id",),),
    "ledger_semantic_names": (("model", "semantic"), ("model", "bundle_digest")),
}
"""Table → its unique keys."""


def upgrade() -> None:
    """Guard all tables: on SQLite against replaced keys, on PostgreSQL also in a replica's session."""
    for table, keys in _KEYS.items():
        if op.get_bind().dialect.name == "postgresql":
            always(table)
        else:
            not_replaced(table, keys)


def downgrade() -> None:
    """Remove these guards."""
    for table in _KEYS:
        if op.get_bind().dialect.name == "postgresql":
            only_as_origin(table)
        else:
            replaced(table)
