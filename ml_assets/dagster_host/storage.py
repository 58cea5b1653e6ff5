"""Dagster's embedded storage, small and quick enough for tables of a thousand partitions.

Dagster's own SQLite storage stores each event of an asset twice, in the file of its run and in an index. It opens three
connections for each: 20.7 kB of disk and 15 ms per materialization. Here one file holds all events, and a batch is one
transaction. `dagster.yaml` names this storage (`instance`). Not here: the content of events.

Private area: the storages behind `storage: sqlite:`. The public way is `storage: custom:` with a class of one's own,
which this is. But Dagster publishes no class from which such a storage inherits the tables and queries of a database.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from dagster import DagsterEventType, EventLogEntry
from dagster._core.storage.event_log import ConsolidatedSqliteEventLogStorage, SqlEventLogStorage
from dagster._core.storage.event_log.polling_event_watcher import SqlPollingEventWatcher
from dagster._core.storage.event_log.sqlite.consolidated_sqlite_event_log import SQLITE_EVENT_LOG_FILENAME
from dagster._core.storage.runs import SqliteRunStorage
from dagster._core.storage.schedules import SqliteScheduleStorage
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage
from dagster._serdes import ConfigurableClassData
from dagster_shared.record import replace
from sqlalchemy.pool import NullPool

from resources.files import make_whole

T = TypeVar("T")

_PAGE_BYTES = 16384
"""Page size of the file. A materialization takes 2 kB: in SQLite's pages of 4 kB, half of each page would be empty."""
_BATCHED = (DagsterEventType.ASSET_MATERIALIZATION, DagsterEventType.ASSET_MATERIALIZATION_PLANNED)


class OnePlanACheck(SqlEventLogStorage):
    """Mixin of an event log: store one row per planned check, for any number of partitions.

    Dagster writes a row for every partition of the run and every check, although the project's checks cover the whole
    run. Those rows stay "planned" forever. They were a third of a home's history (6 kB of 20 kB per materialization).
    """

    def _store_asset_check_evaluation_planned(self, event: EventLogEntry, event_id: int | None) -> None:
        planned: Any = event.get_dagster_event().event_specific_data
        whole = event.get_dagster_event()._replace(
            event_specific_data=replace(planned, partitions_subset=None)
        )
        super()._store_asset_check_evaluation_planned(event._replace(dagster_event=whole), event_id)


class OneFileEventLog(OnePlanACheck, ConsolidatedSqliteEventLogStorage):
    """Events of all runs in one file. Processes take turns to write; readers never wait."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        super().__init__(base_dir, inst_data)
        self._watcher = SqlPollingEventWatcher(self)

    def _init_db(self) -> None:
        with self._engine().connect() as connection:
            connection.execute(sa.text(f"PRAGMA page_size={_PAGE_BYTES}"))
            connection.execute(sa.text("VACUUM"))  # applies the page size, before the first table
        super()._init_db()

    @contextmanager
    def _connect(self) -> Iterator[sa.Connection]:
        with self._engine().connect() as connection, connection.begin():
            yield connection

    def _engine(self) -> sa.Engine:
        if "_opened" not in self.__dict__:
            self._opened = sa.create_engine(
                self._conn_string, poolclass=NullPool, connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS}
            )
        return self._opened

    def store_event_batch(self, events: Sequence[EventLogEntry]) -> None:
        """Store materializations and planned materializations in one transaction; other events as Dagster does."""
        batch = [event for event in events if event.dagster_event_type in _BATCHED]
        with self._connect() as connection:
            ids = [_id(connection.execute(self.prepare_insert_event(event))) for event in batch]
            self._store_asset_event_tags(connection, batch, ids)
            newest = {
                event.get_dagster_event().asset_key: (event, id_)
                for event, id_ in zip(batch, ids, strict=True)
            }
            for event, id_ in newest.values():
                self._store_asset_event(connection, event, id_)
        super().store_event_batch([event for event in events if event.dagster_event_type not in _BATCHED])

    # SQLite writes to a file beside this one at first, so watching the file for changes would notice events too late.

    def watch(self, run_id: str, cursor: str | None, callback: Any) -> None:
        """Call `callback` for new events of a run; at most 16 s late after a long silence."""
        self._watcher.watch_run(run_id, cursor, callback)

    def end_watch(self, run_id: str, handler: Any) -> None:
        """Stop what `watch` began."""
        self._watcher.unwatch_run(run_id, handler)

    def dispose(self) -> None:
        """End the threads of `watch`."""
        self._watcher.close()


class OneFileStorage(DagsterSqliteStorage):
    """Class for `storage: custom:` in `dagster.yaml`. Configuration, runs and schedules as in `storage: sqlite:`."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        # Skip the constructor of `DagsterSqliteStorage`, which would create its own storages.
        super(DagsterSqliteStorage, self).__init__()
        self.base_dir = base_dir
        self._inst_data = inst_data
        history, schedules = Path(base_dir) / "history", Path(base_dir) / "schedules"
        self._run_storage = _opened(history / "runs.db", SqliteRunStorage.from_local)
        self._event_log_storage = _opened(history / f"{SQLITE_EVENT_LOG_FILENAME}.db", OneFileEventLog)
        self._schedule_storage = _opened(schedules / "schedules.db", SqliteScheduleStorage.from_local)

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> "OneFileStorage":
        """Create the storage. Dagster calls this with the section of `dagster.yaml`, environment variables resolved."""
        return cls(config_value["base_dir"], inst_data)


def _opened(path: Path, storage: Callable[[str], T]) -> T:
    """Return `storage` of the folder of `path`. The file is created with all its tables, or not at all."""
    make_whole(path, lambda making: storage(str(making.parent)))
    return storage(str(path.parent))


def _id(inserted: sa.CursorResult[Any]) -> int:
    """Return the id of the row that a statement inserted."""
    row = inserted.inserted_primary_key
    assert row is not None
    return row[0]
