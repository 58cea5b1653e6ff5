"""Reader of a table that keeps its versions, such as Delta or Iceberg: days, changes and a preview of one version.

Not here: opening a version and the errors of its library (`delta_source`, `iceberg_source`).
"""

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime

import polars as pl

from ml_assets.data.sources.protocol import (
    Answer,
    Look,
    ReadPartition,
    SourceReader,
    SourceRefused,
    SourceRows,
    SourceTable,
    Span,
    StoredSource,
    ahead_of,
    differing,
    redated,
    unread_after,
    version_of_files,
)
from ml_assets.data.sources.tabular import (
    day_of,
    faults_of_columns,
    fit,
    has_time,
    in_span,
    newest_day,
    require_columns,
    typed_time_column,
    undated_rows,
    watermark_of,
)
from ml_assets.data.tables.spec import MOST_UNDATED, UndatedRows
from resources.platform import Platform


class VersionGone(SourceRefused):
    """A version of a table does not exist, or its files were deleted."""


class VersionedTableReader(SourceReader):
    """Rows of one version of a table. The version is chosen once, so all partitions of a run share it."""

    looks_at = "the table's list of files"

    def __init__(self, section: StoredSource, table: SourceTable, platform: Platform) -> None:
        super().__init__(table, platform)
        self._common = section
        self._undated: UndatedRows | None = None

    @property
    @abstractmethod
    def _place(self) -> str:
        """Name of the table and its version, for messages."""

    @property
    @abstractmethod
    def _remedy(self) -> str:
        """Remedy for columns that are not the contract's, beside another contract."""

    @abstractmethod
    def _scan(self) -> pl.LazyFrame:
        """Return the rows of the version. Raises errors of sources only."""

    @abstractmethod
    def _files_of(self, spans: Collection[Span], column: str) -> Mapping[Span, list[tuple[object, ...]]]:
        """Return the files of the version that may hold rows of each span, by the time in `column`. Reads no rows."""

    @abstractmethod
    def _ask(self, call: Callable[[], Answer]) -> Answer:
        """Return the result of `call`; retry while the storage does not answer. Raises errors of sources only."""

    def read(self, span: Span | None) -> SourceRows:
        """See `SourceReader`."""
        rows, undated, version = self._scan(), UndatedRows(), None
        found = self._ask(rows.collect_schema)
        require_columns(found, self._table, self._place, self._remedy)
        if span is not None:
            column, dtype = typed_time_column(found, self._common, self._table, self._place)
            undated = self._without_time(column, dtype)
            rows = rows.filter(in_span(column, dtype, span, self._table))
            version = version_of_files(self._ask(lambda: self._files_of([span], column))[span])
        frame = fit(self._ask(rows.collect), self._table, self._place, self._remedy)
        return SourceRows(
            frame=frame,
            returned=frame.height + undated.frame.height,
            undated=undated,
            watermark=watermark_of(frame, self._common.watermark_column, self._table),
            version=version,
        )

    def _without_time(self, column: str, dtype: pl.DataType) -> UndatedRows:
        """Return the rows without a time, of which the version has the same for each partition."""
        if self._undated is None:
            rows = self._scan().filter(~has_time(column, dtype)).limit(MOST_UNDATED + 1)
            frame = fit(self._ask(rows.collect), self._table, self._place, self._remedy)
            self._undated = undated_rows(frame, column)
        return self._undated

    def close(self) -> None:
        """Choose the version again at the next use."""
        self._undated = None

    def latest(self) -> date | None:
        """See `SourceReader`."""
        rows = self._scan()
        found = self._ask(rows.collect_schema)
        column, dtype = typed_time_column(found, self._common, self._table, self._place)
        return self._latest(rows, column, dtype)

    def _latest(self, rows: pl.LazyFrame, column: str, dtype: pl.DataType) -> date | None:
        newest = self._ask(rows.filter(has_time(column, dtype)).select(pl.col(column).max()).collect).item()
        return newest_day(newest, self._table)

    def look(self, read: Mapping[Span, ReadPartition], window: Collection[Span]) -> Look:
        """See `SourceReader`. Versions come from the list of files; dates of changes are read from their column."""
        rows = self._scan()
        found = self._ask(rows.collect_schema)
        column, dtype = typed_time_column(found, self._common, self._table, self._place)
        files = self._ask(lambda: self._files_of(window, column))
        changed = differing(read, {span: version_of_files(named) for span, named in files.items()})
        cost = {"files listed": len({one for named in files.values() for one in named})}
        latest = self._latest(rows, column, dtype)
        if self._common.watermark_column is None:
            return Look(latest=latest, changed=changed, cost=cost)
        ahead = ahead_of(datetime.now(UTC), read)
        if (after := unread_after(read, ahead)) is not None:
            mark = self._require(self._common.watermark_column, found)
            day = day_of(column, dtype, self._table).alias("day")
            is_newer = (pl.col(mark) > after) & has_time(mark, found[mark]) & has_time(column, dtype)
            newest = rows.filter(is_newer).group_by(day).agg(pl.col(mark).max(), pl.len())
            days = self._ask(newest.sort("day").collect)
            changed |= redated(read, _by_span(dict(days.select("day", mark).iter_rows()), read), after)
            cost["rows"] = int(days["len"].sum())
        return Look(latest=latest, changed=changed | ahead, ahead=ahead, cost=cost)

    def preview(self, rows: int) -> pl.DataFrame:
        """See `SourceReader`."""
        return self._ask(self._scan().tail(rows).collect)

    def check(self) -> Sequence[str]:
        """See `SourceReader`."""
        found = self._ask(self._scan().collect_schema)
        return faults_of_columns(found, self._common, self._table, self._place, self._remedy)

    def _require(self, column: str, found: pl.Schema) -> str:
        if column not in found:
            raise SourceRefused(f"{self._table.name}: {self._place} has no column '{column}'")
        return column


def _by_span(newest: Mapping[date, datetime], spans: Iterable[Span]) -> dict[Span, datetime]:
    """Return span → newest change of its days, or of its hour, for spans with a change. `newest` is sorted."""
    days = list(newest)
    found = {
        span: [newest[day] for day in days[bisect_left(days, span.first) : bisect_left(days, span.end)]]
        for span in spans
    }
    return {span: max(moments) for span, moments in found.items() if moments}
