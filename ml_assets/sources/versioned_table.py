"""Reader of a table that keeps its versions, such as Delta or Iceberg: days, changes and a preview of one version.

Not here: opening a version and the errors of its library (`delta_source`, `iceberg_source`).
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import TypeVar

import polars as pl

from ml_assets.sources.errors import SourceRefused
from ml_assets.sources.object_storage import StoredSource
from ml_assets.sources.protocol import SourceReader, SourceRows, SourceTable, Span
from ml_assets.sources.tabular import (
    day_of,
    faults_of_columns,
    fit,
    in_span,
    newest_complete_day,
    require_columns,
    typed_time_column,
    watermark_of,
)
from resources.platform import Platform

Answer = TypeVar("Answer")


class VersionGone(SourceRefused):
    """A version of a table does not exist, or its files were deleted."""


class VersionedTableReader(SourceReader):
    """Rows of one version of a table. The version is chosen once, so all partitions of a run share it."""

    def __init__(self, section: StoredSource, table: SourceTable, platform: Platform) -> None:
        """`platform` has the patience with a storage that does not answer."""
        self._common = section
        self._table = table
        self._patience = platform.patience_seconds or 60.0

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
    def _ask(self, call: Callable[[], Answer]) -> Answer:
        """Return the result of `call`; retry while the storage does not answer. Raises errors of sources only."""

    def read(self, span: Span | None) -> SourceRows:
        """See `SourceReader`."""
        rows = self._scan()
        found = self._ask(rows.collect_schema)
        require_columns(found, self._table, self._place, self._remedy)
        if span is not None:
            column, dtype = typed_time_column(found, self._common, self._table, self._place)
            rows = rows.filter(in_span(column, dtype, span, self._table))
        frame = fit(self._ask(rows.collect), self._table, self._place, self._remedy)
        return SourceRows(
            frame=frame, watermark=watermark_of(frame, self._common.watermark_column, self._table)
        )

    def latest(self) -> date | None:
        """See `SourceReader`."""
        rows = self._scan()
        found = self._ask(rows.collect_schema)
        column, _ = typed_time_column(found, self._common, self._table, self._place)
        newest = self._ask(rows.select(pl.col(column).max()).collect).item()
        return newest_complete_day(newest, self._table, self._common.complete_after_hours)

    @property
    def records_changes(self) -> bool:
        """See `SourceReader`."""
        return self._common.watermark_column is not None

    def changed(self, after: datetime) -> Mapping[date, datetime]:
        """See `SourceReader`."""
        rows = self._scan()
        found = self._ask(rows.collect_schema)
        column, dtype = typed_time_column(found, self._common, self._table, self._place)
        mark = self._require(self._common.watermark_column or "", found)
        day = day_of(column, dtype, self._table).alias("day")
        newest = rows.filter(pl.col(mark) > after).group_by(day).agg(pl.col(mark).max().alias("newest"))
        return dict(self._ask(newest.drop_nulls("day").collect).select("day", "newest").iter_rows())

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
