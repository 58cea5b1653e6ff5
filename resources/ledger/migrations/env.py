"""Entry point of Alembic: runs the migrations on the given connection, in that connection's transaction."""

from typing import Any

import sqlalchemy as sa
from alembic import context

from resources.ledger.migrations import VERSION_TABLE
from resources.ledger.tables import metadata

attributes: dict[str, Any] = context.config.attributes
connection: sa.Connection = attributes["connection"]
context.configure(
    connection=connection, target_metadata=metadata, version_table=VERSION_TABLE, transactional_ddl=True
)
with context.begin_transaction():
    context.run_migrations()
