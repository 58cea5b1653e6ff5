"""Dagster's PostgreSQL storage, quick enough for runs over a year of partitions.

dagster-postgres opens a connection for every event and stores the "planned" events of a run one by one: a minute for
365 partitions. Here each process keeps a connection open and stores planned events in one statement, as
dagster-postgres does with materializations. `dagster.yaml` names this storage (`instance`). Not here: the content of
events.

Private area: the storages of dagster-postgres. The public way is `storage: postgres:`, whose settings name neither the
pool of connections nor a batch of planned events.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from dagster import DagsterEventType, EventLogEntry
from dagster._core.storage.event_log import SqlEventLogStorageTable
from dagster._serdes import ConfigurableClassData
from dagster_postgres.event_log import PostgresEventLogStorage
from dagster_postgres.run_storage import PostgresRunStorage
from dagster_postgres.schedule_storage import PostgresScheduleStorage
from dagster_postgres.storage import DagsterPostgresStorage
from dagster_postgres.utils import create_pg_engine, pg_url_from_config

from ml_assets.dagster_host.storage import OnePlanACheck
from resources.addresses import with_driver


class PooledEventLog(OnePlanACheck, PostgresEventLogStorage):
    """Event log over connections that stay open."""

    def __init__(self, postgres_url: str, should_autocreate_tables: bool = True) -> None:
        super().__init__(postgres_url, should_autocreate_tables)
        self._engine = _pooled(postgres_url)

    def store_event_batch(self, events: Sequence[EventLogEntry]) -> None:
        """Store planned materializations in one statement; other events as dagster-postgres does."""
        planned = [event for event in events if _is_planned_materialization(event)]
        if planned:
            self._store_planned(planned)
        others = [event for event in events if not _is_planned_materialization(event)]
        if others:
            super().store_event_batch(others)

    def _store_planned(self, events: Sequence[EventLogEntry]) -> None:
        insert = self.prepare_insert_event_batch(events).returning(SqlEventLogStorageTable.c.id)
        with self._connect() as connection:
            ids = [int(row[0]) for row in connection.execute(insert)]
        newest = {
            event.get_dagster_event().asset_key: (event, id_) for event, id_ in zip(events, ids, strict=True)
        }
        with self.index_transaction() as connection:
            for event, id_ in newest.values():
                self._store_asset_event(connection, event, id_)


class PooledPostgresStorage(DagsterPostgresStorage):
    """Class for `storage: custom:` in `dagster.yaml`. Configuration and tables are as in `storage: postgres:`."""

    def __init__(
        self,
        postgres_url: str,
        should_autocreate_tables: bool = True,
        inst_data: ConfigurableClassData | None = None,
    ) -> None:
        # Skip the constructor of `DagsterPostgresStorage`, which would create its own storages.
        super(DagsterPostgresStorage, self).__init__()
        self.postgres_url = postgres_url
        self.should_autocreate_tables = should_autocreate_tables
        self._inst_data = inst_data
        self._run_storage = PostgresRunStorage(postgres_url, should_autocreate_tables)
        self._run_storage._engine = _pooled(postgres_url)
        self._event_log_storage = PooledEventLog(postgres_url, should_autocreate_tables)
        self._schedule_storage = PostgresScheduleStorage(postgres_url, should_autocreate_tables)

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> "PooledPostgresStorage":
        """Create the storage. Dagster calls this with the section of `dagster.yaml`, environment variables resolved."""
        address = with_driver(pg_url_from_config(config_value))
        return cls(address, config_value.get("should_autocreate_tables", True), inst_data)


def _is_planned_materialization(event: EventLogEntry) -> bool:
    return event.dagster_event_type is DagsterEventType.ASSET_MATERIALIZATION_PLANNED


def _pooled(postgres_url: str) -> sa.Engine:
    # Ping connections before use, so that a restarted server causes no error.
    return create_pg_engine(
        postgres_url,
        isolation_level="AUTOCOMMIT",
        pool_size=1,
        max_overflow=20,
        pool_pre_ping=True,
        pool_recycle=3600,
    )
