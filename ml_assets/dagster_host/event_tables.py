"""Tables of Dagster's event log.

Apart from `event_log`, because Dagster's storage brings alembic, which definitions and plans do not need. Private area:
the event log as a database. The public `DagsterInstance` reads single events and wipes whole assets or runs. It neither
names the events that an answer needs nor deletes the others, which `extras.event_pruning` does.
"""

from dagster._core.storage.event_log import SqlEventLogStorage, SqlEventLogStorageTable
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, AssetEventTagsTable

__all__ = [
    "AssetCheckExecutionsTable",
    "AssetEventTagsTable",
    "SqlEventLogStorage",
    "SqlEventLogStorageTable",
]
