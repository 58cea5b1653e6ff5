"""Tables of Dagster's event log, and the data versions in its events.

Private area: the event log as a database. The public `DagsterInstance` reads single events and wipes whole assets or
runs. It neither names the events that an answer needs nor deletes the others, which `extras.event_pruning` does.
"""

from dagster._core.definitions.data_version import (
    INPUT_EVENT_POINTER_TAG_PREFIX,
    SKIP_PARTITION_DATA_VERSION_DEPENDENCY_THRESHOLD,
    extract_data_provenance_from_entry,
)
from dagster._core.storage.asset_check_execution_record import COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES
from dagster._core.storage.event_log import SqlEventLogStorage, SqlEventLogStorageTable
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, AssetEventTagsTable

__all__ = [
    "COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES",
    "INPUT_EVENT_POINTER_TAG_PREFIX",
    "NOT_FINISHED_STATUSES",
    "SKIP_PARTITION_DATA_VERSION_DEPENDENCY_THRESHOLD",
    "AssetCheckExecutionsTable",
    "AssetEventTagsTable",
    "SqlEventLogStorage",
    "SqlEventLogStorageTable",
    "extract_data_provenance_from_entry",
]
