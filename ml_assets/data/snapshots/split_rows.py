"""Rows of a snapshot's splits in their feature table: a partition at a time, and only the columns that are named.

The index of a split names its rows by their numbers in the table; the manifests say how many rows each partition has.
So a partition without a row of the split is never opened. Here: reading rows for an evaluation. Not here: choosing rows
(row_choice), writing the index (builder), the rows for training (split_reader).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.data.snapshots.partitions import PartitionFiles, partitions_of
from ml_assets.data.snapshots.row_choice import ROW
from ml_assets.data.snapshots.split_reader import SPLITS, Snapshot, SnapshotError, SplitName, verify_file
from ml_assets.data.tables.reader import TableReader
from resources.platform import Platform

_parquet: Any = import_module(
    "pyarrow.parquet"
)  # it ships no types; `Any` keeps the rest of the module strict
_INDEX_ROWS = 2**18
"""Row numbers that are read from an index at once: 2 MiB."""
_VALUES_AT_ONCE = 2**23
"""Values of columns that `SplitScan.each` reads together: 64 MiB of numbers."""


@dataclass(frozen=True, kw_only=True)
class SplitPart:
    """Some neighbouring rows of a split, by their numbers in their partitions."""

    pieces: tuple[tuple[PartitionFiles, NDArray[np.int64]], ...]
    """Partitions, in their order, and numbers from 0 of their rows."""

    def read(self, columns: Sequence[str]) -> pl.DataFrame:
        """Return `columns`, which the table has, of all rows, and `ROW`, their numbers in their partitions."""
        return pl.concat(_rows_at(partition, rows, columns, rows) for partition, rows in self.pieces)


@dataclass(frozen=True, kw_only=True)
class SplitScan:
    """Rows of one split, in the order of the table. Nothing is in memory until a method reads it.

    Methods read the columns that they are given, each once. They leave out blobs, and columns that the table lacks:
    whoever needs such a column says so. A frame also has `ROW`, the number of each row in the table. Methods raise
    `ShardChanged` for a damaged index, and `SnapshotError` for a table that lacks rows.
    """

    snapshot: Snapshot
    split: SplitName
    table: pl.LazyFrame
    """All rows of all partitions, for blobs."""
    partitions: Sequence[PartitionFiles]
    """Partitions of the table, in the order of their rows."""

    @property
    def height(self) -> int:
        """Number of rows."""
        return self.snapshot.index_of(self.split).rows

    @property
    def columns(self) -> list[str]:
        """Columns of the table without blobs."""
        return [name for name, dtype in self.table.collect_schema().items() if dtype != pl.Binary]

    def by_partition(self, columns: Iterable[str]) -> Iterator[pl.DataFrame]:
        """Yield the rows of each partition that has any."""
        yield from self._frames(columns, index_parts(self.snapshot, self.split))

    def parts(self, columns: Iterable[str], rows: int) -> Iterator[pl.DataFrame]:
        """Yield all rows in parts of exactly `rows` rows; the last one may have fewer."""
        waiting: list[pl.DataFrame] = []
        count = 0
        for frame in self.by_partition(columns):
            waiting.append(frame)
            count += frame.height
            if count >= rows:
                joined, whole = pl.concat(waiting), count // rows * rows
                yield from (joined.slice(first, rows) for first in range(0, whole, rows))
                waiting, count = [joined.slice(whole)], count - whole
        if count:
            yield pl.concat(waiting)

    def read(self, columns: Iterable[str]) -> pl.DataFrame:
        """Return all rows."""
        return pl.concat(self.by_partition(columns))

    def each(self, columns: Sequence[str]) -> Iterator[pl.Series]:
        """Yield all rows of each column in turn; a few columns at a time are in memory."""
        at_once = max(1, _VALUES_AT_ONCE // max(1, self.height))
        for first in range(0, len(columns), at_once):
            yield from self.read(columns[first : first + at_once]).drop(ROW).iter_columns()

    def take(self, places: NDArray[np.intp], columns: Iterable[str]) -> pl.DataFrame:
        """Return some of the rows. `places` count from 0 in the split, ascending."""
        found = list(self._frames(columns, _some(index_parts(self.snapshot, self.split), places)))
        return pl.concat(found) if found else self.read(columns).clear()

    def split_parts(self, rows: int) -> Iterator[SplitPart]:
        """Yield the rows of `parts` unread, for others to read."""
        for numbers in _in_parts(index_parts(self.snapshot, self.split), rows):
            yield SplitPart(
                pieces=tuple((partition, inside) for partition, inside, _ in self._pieces([numbers]))
            )

    def known(self, columns: Iterable[str]) -> list[str]:
        """Return those of `columns`, each once, that the table has and that are no blobs."""
        there = set(self.columns)
        return [name for name in dict.fromkeys(columns) if name in there]

    def _frames(self, columns: Iterable[str], numbers: Iterable[NDArray[np.int64]]) -> Iterator[pl.DataFrame]:
        names = self.known(columns)
        for partition, inside, rows in self._pieces(numbers):
            yield _rows_at(partition, inside, names, rows)

    def _pieces(
        self, numbers: Iterable[NDArray[np.int64]]
    ) -> Iterator[tuple[PartitionFiles, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield each partition with some of the rows `numbers`, and these: numbers in the partition, in the table."""
        ends = np.cumsum([partition.rows for partition in self.partitions])
        for at, rows in _by_partition(numbers, ends):
            if at == len(self.partitions):
                raise SnapshotError(
                    f"the {self.split} split has row {rows[-1]}, but the table has {ends[-1]} rows: the snapshot was "
                    "made from another table. Launch the training again"
                )
            partition = self.partitions[at]
            yield partition, rows - (ends[at] - partition.rows), rows


def rows_of(
    reader: TableReader,
    table: str,
    keys: Sequence[str],
    snapshot: Snapshot,
    platform: Platform | None = None,
) -> dict[SplitName, SplitScan]:
    """Return split → its rows in the partitions `keys` of `table`, from which `snapshot` was made.

    With a `platform`, workers on other machines can read them, too. Raises the errors of `TableReader.scan`.
    """
    whole = reader.scan(table, keys)
    partitions = partitions_of(reader, table, keys, len(whole.collect_schema()), platform)
    return {
        split: SplitScan(snapshot=snapshot, split=split, table=whole, partitions=partitions)
        for split in SPLITS
    }


def index_parts(snapshot: Snapshot, split: SplitName) -> Iterator[NDArray[np.int64]]:
    """Yield the row numbers of a split, ascending, in parts. `ShardChanged` if the file differs from the manifest."""
    index = snapshot.index_of(split)
    path = snapshot.folder / index.path
    verify_file(path, index)
    with _parquet.ParquetFile(path) as file:
        for part in file.iter_batches(_INDEX_ROWS):
            yield part.column(0).to_numpy()


def _in_parts(numbers: Iterable[NDArray[np.int64]], rows: int) -> Iterator[NDArray[np.int64]]:
    """Yield `numbers` in arrays of exactly `rows`; the last one may have fewer."""
    rest = np.empty(0, dtype=np.int64)
    for part in numbers:
        rest = np.concatenate([rest, part])
        while len(rest) >= rows:
            yield rest[:rows]
            rest = rest[rows:]
    if len(rest):
        yield rest


def _some(numbers: Iterable[NDArray[np.int64]], places: NDArray[np.intp]) -> Iterator[NDArray[np.int64]]:
    """Yield those of `numbers` at `places`."""
    first = 0
    for part in numbers:
        begin, end = np.searchsorted(places, (first, first + len(part)))
        if begin < end:
            yield part[places[begin:end] - first]
        first += len(part)


def _by_partition(
    numbers: Iterable[NDArray[np.int64]], ends: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each partition that has some of the rows `numbers`, and these. `ends` are row numbers behind each one."""
    waiting: list[NDArray[np.int64]] = []
    now = 0
    for part in numbers:
        partition_of = np.searchsorted(ends, part, "right")
        cuts = np.flatnonzero(np.diff(partition_of)) + 1
        firsts: list[int] = partition_of[np.append(0, cuts)].tolist()
        for rows, at in zip(np.split(part, cuts), firsts, strict=True):
            if waiting and at != now:
                yield now, np.concatenate(waiting)
                waiting = []
            now = at
            waiting.append(rows)
    if waiting:
        yield now, np.concatenate(waiting)


def _rows_at(
    partition: PartitionFiles, rows: NDArray[np.int64], columns: Sequence[str], numbers: NDArray[np.int64]
) -> pl.DataFrame:
    """Return `columns` of some rows, which are ascending numbers from 0, and `ROW`, which holds `numbers`."""
    frame = pl.DataFrame({ROW: numbers})
    if not columns:
        return frame
    # The slice leaves row groups before the first row and behind the last one unread.
    found = partition.scan(columns).slice(int(rows[0]), int(rows[-1] - rows[0]) + 1).collect()
    # Most often every row between them is in the split.
    return frame.hstack(found if found.height == len(rows) else found[rows - rows[0]])
