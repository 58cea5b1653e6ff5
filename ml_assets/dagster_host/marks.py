"""Marks of what Dagster stores: short values that change with a run, and with the materializations of an asset.

Apart from `instance`, because Dagster's storage brings alembic, which definitions and plans do not need. Private area:
the tables of runs and assets. The public `DagsterInstance` reads and decodes the whole run or the newest event, which
takes ten times as long.
"""

from collections.abc import Hashable

import dagster as dg
import sqlalchemy as sa
from dagster._core.storage.event_log import SqlEventLogStorage
from dagster._core.storage.event_log.schema import AssetKeyTable
from dagster._core.storage.runs import SqlRunStorage
from dagster._core.storage.runs.schema import RunsTable


def run_mark(instance: dg.DagsterInstance, run_id: str) -> Hashable:
    """Return status and time of the last change of a run; None for an unknown run or another storage."""
    storage = instance.run_storage
    if not isinstance(storage, SqlRunStorage):
        return None
    found = storage.fetchall(
        sa.select(RunsTable.c.status, RunsTable.c.update_timestamp).where(RunsTable.c.run_id == run_id)
    )
    return (str(found[0]["status"]), str(found[0]["update_timestamp"])) if found else None


def asset_mark(instance: dg.DagsterInstance, key: dg.AssetKey) -> Hashable:
    """Return time and run of the newest materialization, and the time of the newest wipe, of an asset.

    `never` for an asset without events; None for another storage.
    """
    storage, columns = instance.event_log_storage, AssetKeyTable.c
    if not isinstance(storage, SqlEventLogStorage):
        return None
    newest = sa.select(columns.last_materialization_timestamp, columns.last_run_id, columns.wipe_timestamp)
    with storage.index_connection() as connection:
        found = connection.execute(newest.where(columns.asset_key == key.to_string())).first()
    return "never" if found is None else tuple(map(str, found))
