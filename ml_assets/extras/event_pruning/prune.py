"""Prune Dagster's event log: delete old events that none of its answers of today needs, and make the files smaller.

Answers about assets stay the same, word for word: statuses, staleness, lineage, newest verdicts of checks, statuses of
partitions. Pages of old runs lose their log lines. Not here: which events an asset needs (`needed_events`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import sqlalchemy as sa
from dagster import DagsterEventType
from sqlalchemy.pool import NullPool

from ml_assets.dagster_host.asset_graph import BaseAssetGraph
from ml_assets.dagster_host.event_log import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
    NOT_FINISHED_STATUSES,
)
from ml_assets.dagster_host.event_tables import (
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    SqlEventLogStorage,
    SqlEventLogStorageTable,
)
from ml_assets.dagster_host.storage import OneFileEventLog
from ml_assets.extras.event_pruning.needed_events import NeededEvents
from resources.words import counted, name_some

_SILENT_SECONDS = 120.0
"""A daemon that reported its heartbeat longer ago has ended. It reports one every 30 s."""
_WAIT_SECONDS = 60.0
"""Wait for another process that writes to the SQLite file."""
_EVENTS, _TAGS, _CHECKS = SqlEventLogStorageTable, AssetEventTagsTable, AssetCheckExecutionsTable
_PRUNED = (_EVENTS, _TAGS, _CHECKS)
_OF_RUNS = tuple(
    one.value
    for one in DagsterEventType
    if one.value.startswith(("PIPELINE_", "RUN_", "STEP_")) or one is DagsterEventType.LOGS_CAPTURED
    if one not in (DagsterEventType.STEP_INPUT, DagsterEventType.STEP_OUTPUT)
)
"""Events that stay for runs with a needed event: status and times of the run and its steps, and where its output is."""
_WAITING = (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED)
"""Runs that write nothing while no daemon works."""
_ENDED = tuple(one.value for one in COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES)


def _temporary(name: str, column: str, kind: type[sa.BigInteger | sa.Text]) -> sa.Table:
    return sa.Table(name, sa.MetaData(), sa.Column(column, kind, primary_key=True), prefixes=["TEMPORARY"])


_NEEDED, _CHECKED = _temporary("needed", "id", sa.BigInteger), _temporary("checked", "id", sa.BigInteger)
_RUNS = _temporary("runs_needed", "run_id", sa.Text)


class HistoryInUse(RuntimeError):
    """Dagster's history cannot be pruned now, because another process writes to it. The message names the remedy."""


@dataclass(frozen=True)
class Pruned:
    """Rows of the event log that nothing needs, and the size of the log. Bytes count files or tables with indexes."""

    rows: Mapping[str, int]
    """Kind of rows → how many are deleted, or would be."""
    before: int
    """Bytes of the log before the pruning."""
    after: int
    """Bytes after it; for a dry run an estimate from the lengths of the events that stay."""


def find_prunable(instance: dg.DagsterInstance, graph: BaseAssetGraph[Any], since: datetime) -> Pruned:
    """Return what `prune_events` would delete, and change nothing. It works beside runs and daemons.

    All events since `since` (with a time zone) stay, and all of runs that have not ended.
    """
    with _marked(instance, graph, since) as log:
        return Pruned(log.unneeded(), log.size(), log.estimate())


def prune_events(instance: dg.DagsterInstance, graph: BaseAssetGraph[Any], since: datetime) -> Pruned:
    """Delete from the log what `find_prunable` returns, and give the space back to the disk.

    It is a single transaction; after a kill the log is as before. Raises `HistoryInUse` if a daemon or a run works with
    the history: they would wait for minutes, and Dagster gives up after 30 s.
    """
    _require_idle(instance)
    with _marked(instance, graph, since) as log:
        rows, before = log.unneeded(), log.size()
        log.delete()
        return Pruned(rows, before, log.size())


def _require_idle(instance: dg.DagsterInstance) -> None:
    now = datetime.now(UTC).timestamp()
    alive = [
        name
        for name, heartbeat in sorted(instance.get_daemon_heartbeats().items())
        if heartbeat.timestamp > now - _SILENT_SECONDS
    ]
    if alive:
        raise HistoryInUse(
            f"a daemon of Dagster worked with this history in the last {_SILENT_SECONDS:.0f} s "
            f"({name_some(alive, 2)}): end it (Ctrl-C in ml-assets ui; on a cluster scale dagster-daemon to 0), wait "
            f"{_SILENT_SECONDS:.0f} s, and run it again"
        )
    working = [one for one in NOT_FINISHED_STATUSES if one not in _WAITING]
    runs = [one.run_id for one in instance.get_runs(dg.RunsFilter(statuses=working))]
    if runs:
        raise HistoryInUse(
            f"{counted(len(runs), 'run')} in progress ({name_some([one[:8] for one in runs], 2)}): wait for the end, "
            "or terminate them in Dagster's pages, and run it again"
        )


@contextmanager
def _marked(instance: dg.DagsterInstance, graph: BaseAssetGraph[Any], since: datetime) -> Iterator["_Log"]:
    """Yield the log with its needed rows marked in temporary tables of one connection."""
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        raise HistoryInUse(
            f"events of a {type(storage).__name__} cannot be pruned: use this project's dagster.yaml"
        )
    unfinished = [
        one.run_id for one in instance.get_runs(dg.RunsFilter(statuses=list(NOT_FINISHED_STATUSES)))
    ]
    with _connected(storage) as connection:
        log = _Log(connection, storage, _first_since(connection, since))
        log.mark(NeededEvents(connection, graph, log.before).ids(), unfinished, since)
        yield log


@contextmanager
def _connected(storage: SqlEventLogStorage) -> Iterator[sa.Connection]:
    if isinstance(storage, OneFileEventLog):
        engine = sa.create_engine(
            f"sqlite:///{storage.get_db_path()}", poolclass=NullPool, connect_args={"timeout": _WAIT_SECONDS}
        )
    else:
        engine = sa.create_engine(storage.postgres_url, poolclass=NullPool)  # pyright: ignore[reportAttributeAccessIssue]
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        yield connection


def _first_since(connection: sa.Connection, since: datetime) -> int:
    """Return the id of the first event since `since`, or of the newest one if it is older. Times grow with ids.

    The newest event always stays: SQLite would give its id to the next one, and cursors of sensors would skip that.
    """
    utc = since.astimezone(UTC).replace(tzinfo=None)
    newest: int = connection.execute(sa.select(sa.func.coalesce(sa.func.max(_EVENTS.c.id), 0))).scalar_one()
    low, high = 0, newest
    while low < high:
        middle = (low + high) // 2
        at = connection.execute(
            sa.select(_EVENTS.c.timestamp).where(_EVENTS.c.id > middle).order_by(_EVENTS.c.id).limit(1)
        ).scalar_one()
        if at >= utc:
            high = middle
        else:
            low = middle + 1
    return min(low + 1, newest) if low < newest else newest


@dataclass(frozen=True)
class _Log:
    """The tables of the log over one connection, and the first event that stays for its age."""

    connection: sa.Connection
    storage: SqlEventLogStorage
    before: int

    def mark(self, events: set[int], unfinished: Sequence[str], since: datetime) -> None:
        """Fill the temporary tables with the ids of events and checks that stay."""
        with self._transaction("BEGIN"):
            for table in (_NEEDED, _CHECKED, _RUNS):
                table.create(self.connection)
            for table, column, values in ((_NEEDED, "id", sorted(events)), (_RUNS, "run_id", unfinished)):
                if values:
                    self.connection.execute(table.insert(), [{column: one} for one in values])
            of_unfinished = _EVENTS.c.run_id.in_(sa.select(_RUNS))
            self._add(_NEEDED, sa.select(_EVENTS.c.id).where(_EVENTS.c.id < self.before, of_unfinished))
            for question in self._checks(since):
                self._add(_CHECKED, question)
            stays = _CHECKS.c.id.in_(sa.select(_CHECKED))
            told = (
                sa.select(_CHECKS.c.evaluation_event_storage_id)
                .distinct()
                .where(stays, _CHECKS.c.evaluation_event_storage_id < self.before)
            )
            self._add(_NEEDED, told)
            self._add(
                _RUNS, sa.select(_CHECKS.c.run_id).distinct().where(stays, _CHECKS.c.run_id.is_not(None))
            )
            of_events = (
                sa.select(_EVENTS.c.run_id)
                .distinct()
                .where(_EVENTS.c.id.in_(sa.select(_NEEDED)), _EVENTS.c.run_id.is_not(None))
            )
            self._add(_RUNS, of_events)
            of_runs = sa.select(_EVENTS.c.id).where(
                _EVENTS.c.id < self.before,
                _EVENTS.c.dagster_event_type.in_(_OF_RUNS),
                _EVENTS.c.run_id.in_(sa.select(_RUNS)),
            )
            self._add(_NEEDED, of_runs)

    def _checks(self, since: datetime) -> Iterator[sa.Select[Any]]:
        """Yield questions for the ids of check executions that stay: the newest ones of each kind, by partition."""
        column = _CHECKS.c
        group = (column.asset_key, column.check_name, column.partition)
        ended = column.execution_status.in_(_ENDED)
        newest = sa.select(sa.func.max(column.id)).group_by(*group)
        yield newest
        yield newest.where(ended)
        # A result of a run, beside those that sensors and persons report without one.
        yield newest.where(ended, column.run_id != "")
        yield newest.where(column.evaluation_event_storage_id.is_not(None))
        utc = since.astimezone(UTC).replace(tzinfo=None)
        yield sa.select(column.id).where(
            sa.or_(column.evaluation_event_timestamp >= utc, column.run_id.in_(sa.select(_RUNS)))
        )
        yield sa.select(sa.func.max(column.id)).having(sa.func.count() > 0)

    def unneeded(self) -> dict[str, int]:
        """Return the numbers of rows that do not stay."""
        kinds = {"events": _EVENTS, "tags of events": _TAGS, "results of checks": _CHECKS}
        return {
            said: self.connection.execute(
                sa.select(sa.func.count()).select_from(table).where(sa.not_(self._stays(table)))
            ).scalar_one()
            for said, table in kinds.items()
        }

    def size(self) -> int:
        """Return the bytes of the log on disk."""
        if isinstance(self.storage, OneFileEventLog):
            path = Path(self.storage.get_db_path())
            return sum(
                one.stat().st_size for one in (path, path.with_name(f"{path.name}-wal")) if one.exists()
            )
        tables = [sa.func.pg_total_relation_size(table.name) for table in _PRUNED]
        return int(self.connection.execute(sa.select(sum(tables, sa.literal(0)))).scalar_one())

    def estimate(self) -> int:
        """Return about the bytes that would be left, by the lengths of the texts that stay."""
        total = kept = 0
        for table, text in ((_EVENTS, _EVENTS.c.event), (_CHECKS, _CHECKS.c.evaluation_event)):
            length = sa.func.coalesce(sa.func.length(text), 0)
            stays = sa.case((self._stays(table), length), else_=0)
            row = self.connection.execute(sa.select(sa.func.sum(length), sa.func.sum(stays))).one()
            total, kept = total + int(row[0] or 0), kept + int(row[1] or 0)
        return round(self.size() * kept / total) if total else self.size()

    def delete(self) -> None:
        """Delete all rows that do not stay; then shrink the files."""
        if isinstance(self.storage, OneFileEventLog):
            with self._transaction("BEGIN IMMEDIATE"):
                for table in _PRUNED:
                    _rewrite(self.connection, table, self._stays(table))
            self.connection.exec_driver_sql("VACUUM")
            self.connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            return
        with self._transaction("BEGIN"):
            for table in _PRUNED:
                self.connection.execute(table.delete().where(sa.not_(self._stays(table))))
        for table in _PRUNED:
            self.connection.exec_driver_sql(f"VACUUM (FULL, ANALYZE) {table.name}")

    def _stays(self, table: sa.Table) -> sa.ColumnElement[bool]:
        if table is _CHECKS:
            return table.c.id.in_(sa.select(_CHECKED))
        event = table.c.id if table is _EVENTS else table.c.event_id
        stays = sa.or_(event >= self.before, event.in_(sa.select(_NEEDED)))
        # SQLite gives the id of a deleted newest row to the next one.
        return (
            stays
            if table is _EVENTS
            else sa.or_(stays, table.c.id == sa.select(sa.func.max(table.c.id)).scalar_subquery())
        )

    def _add(self, table: sa.Table, question: sa.Select[Any]) -> None:
        """Insert the answers of `question` that the table lacks."""
        answers = question.subquery()
        (answer,) = answers.c
        (column,) = table.c
        new = sa.select(answer).where(answer.is_not(None), answer.not_in(sa.select(column)))
        self.connection.execute(table.insert().from_select([column.name], new))

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        self.connection.exec_driver_sql(begin)
        try:
            yield
        except BaseException:
            self.connection.exec_driver_sql("ROLLBACK")
            raise
        self.connection.exec_driver_sql("COMMIT")


def _rewrite(connection: sa.Connection, table: sa.Table, stays: sa.ColumnElement[bool]) -> None:
    """Copy the rows for which `stays` holds to a new table, which replaces `table` with the same indexes.

    Call it within a transaction. Ten times as fast as deleting each of many rows. The statements come from
    `sqlite_master`, because the table belongs to Dagster.
    """
    driver = connection.exec_driver_sql
    made = driver(
        "SELECT type, sql FROM sqlite_master WHERE tbl_name = ? AND sql IS NOT NULL", (table.name,)
    ).all()
    (create,) = (sql for kind, sql in made if kind == "table")
    new, columns = f"pruned_{table.name}", [one.name for one in table.columns]
    driver(create.replace(table.name, new, 1))
    copied = sa.select(table).where(stays).order_by(table.c.id)
    connection.execute(sa.insert(sa.table(new, *map(sa.column, columns))).from_select(columns, copied))
    driver(f"DROP TABLE {table.name}")
    driver(f"ALTER TABLE {new} RENAME TO {table.name}")
    for kind, sql in made:
        if kind == "index":
            driver(sql)
