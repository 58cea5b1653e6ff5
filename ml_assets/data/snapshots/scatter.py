"""Pass B of a snapshot: encoded rows of a partition, ordered by shard.

A partition has one file of rows, with the places of its shards in front, and one of blobs. So the number of files is
that of partitions, whatever the number of shards, and no process holds a list of partitions × shards. A function of one
partition: files in, files out. Not here: choosing rows (row_choice), the shards (gather), the manifest (builder).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.data.features.encoding import FittedState, class_ids
from ml_assets.data.snapshots.partitions import PartitionFiles
from ml_assets.data.snapshots.row_choice import LIST, WEIGHT, WeightScale, taken_rows
from ml_assets.data.snapshots.row_rules import BLOB_BYTES, ROW, SPLIT, marked_rows
from ml_assets.data.snapshots.shards import member, member_bytes
from ml_assets.data.snapshots.spec import RowSpec, Split
from ml_assets.data.snapshots.split_reader import SplitName
from ml_assets.data.snapshots.survey import rows_at
from resources.pool.exchange import Exchange
from resources.pool.shared import Shared

_BLOBS_AT_ONCE = 64 * 2**20
"""Approximate bytes of blobs to read from a partition at once."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Shards of a split."""

    units: int
    """Rows, or lists, of the split."""
    shards: int
    before: int
    """Shards of the splits before."""

    def shards_of(self, split: SplitName, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the shard of each of these units, 0-based over all splits."""
        if split == "train":
            # Every n-th row (or list), so that each shard has rows of the whole window. Then shuffling the shards and
            # the rows inside each is a good shuffle, although a batch rarely mixes shards.
            return self.before + units % self.shards
        ends = np.array([self.units * i // self.shards for i in range(1, self.shards + 1)], dtype=np.int64)
        return self.before + np.searchsorted(ends, units, side="right")


@dataclass(frozen=True, kw_only=True)
class ShardLayout:
    """Form of the rows of all partitions."""

    spec: RowSpec
    split: Split
    weights: Mapping[SplitName, WeightScale]
    fitted: FittedState
    cuts: Mapping[SplitName, Cut]

    @property
    def shards(self) -> int:
        """Number of shards of all splits."""
        return sum(cut.shards for cut in self.cuts.values())

    @property
    def record(self) -> np.dtype[np.void]:
        """Type of one encoded row."""
        widths = {"numeric": len(self.fitted.numeric), "category": len(self.fitted.categorical)}
        fields: list[Any] = [
            (name, dtype, (widths[name],))
            for name, dtype in (("numeric", np.float32), ("category", np.int32))
            if widths[name]
        ]
        fields += [("label", np.float32), ("row", np.int64)]
        fields += [("list", np.int64)] if self.spec.group is not None else []
        fields += [("weight", np.float32)] if self.spec.weight is not None else []
        fields += [("blob", np.int64)] if self.spec.blob else []
        return np.dtype(fields)


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """Order to encode one partition."""

    partition: PartitionFiles
    shared: Shared[ShardLayout]
    begin: int
    """Number of its first row in the table."""
    units: Mapping[SplitName, int]
    """Split → its units in the partitions before."""
    exchange: Exchange
    """Way of the rows to the caller and to pass C."""
    to: str
    """Prefix of the names of their files."""

    @property
    def layout(self) -> ShardLayout:
        """Form of the rows."""
        return self.shared.value


def rows_file(to: str) -> str:
    """Return the file of encoded rows: for each shard and the end the number of rows before, int64, then all rows."""
    return f"{to}.rows"


def blobs_file(to: str) -> str:
    """Return the file of blobs: for each shard and the end the number of bytes before, int64, then members of
    archives."""
    return f"{to}.blobs"


def taken_file(to: str, split: SplitName) -> str:
    """Return the file with the numbers of the rows taken into a split, int64, ascending; absent without any."""
    return f"{to}.{split}"


def scatter(order: Scatter) -> None:
    """Encode the rows of a partition and write them in the order of shards. Raises `EncodingError` and `OSError`."""
    layout, spec = order.layout, order.layout.spec
    frame, height = marked_rows(order.partition, layout.split, spec)
    parts: list[NDArray[np.void]] = []
    shards: list[NDArray[np.int64]] = []
    present = set(frame[SPLIT].unique())
    for split, cut in layout.cuts.items():
        if split not in present:
            continue
        taken = taken_rows(frame, split, order.begin, spec, layout.weights.get(split))
        if taken.is_empty():
            continue
        rows = taken[ROW].to_numpy()
        with order.exchange.send(taken_file(order.to, split)) as path:
            _write_numbers(path, rows)
        in_order, units = _units(taken)
        records = _records(order, taken, height)
        parts.append(records if in_order is None else records.take(in_order))
        shards.append(cut.shards_of(split, order.units[split] + units))
    shard = np.concatenate(shards) if shards else np.empty(0, dtype=np.int64)
    records = np.concatenate(parts) if parts else np.empty(0, dtype=layout.record)
    if (np.diff(shard) < 0).any():
        by_shard = np.argsort(shard, kind="stable")
        shard, records = shard[by_shard], records.take(by_shard)
    with order.exchange.send(rows_file(order.to)) as path, path.open("wb") as file:
        file.write(in_bytes(np.searchsorted(shard, np.arange(layout.shards + 1)).astype(np.int64)))
        file.write(in_bytes(records))
    if spec.blob:
        _write_blobs(order, shard, records["row"], records["blob"])


def _units(taken: pl.DataFrame) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
    """Return the order of the rows by unit (None: as they are), and in that order the unit of each, from 0."""
    if LIST not in taken.columns:
        return None, np.arange(taken.height)
    of_row = taken[LIST].to_numpy()
    by_list = np.argsort(of_row, kind="stable")
    return by_list, np.cumsum(np.diff(of_row[by_list], prepend=of_row[by_list[0]]) != 0)


def _records(order: Scatter, taken: pl.DataFrame, height: int) -> NDArray[np.void]:
    layout, spec, fitted = order.layout, order.layout.spec, order.layout.fitted
    names = tuple(one.name for one in (*fitted.numeric, *fitted.categorical))
    records = np.empty(taken.height, dtype=layout.record)
    if names:
        inputs = rows_at(order.partition, names, taken[ROW] - order.begin, height)
        numeric, category = fitted.encode(inputs)
        for name, matrix in (("numeric", numeric), ("category", category)):
            if matrix.shape[1]:
                records[name] = matrix
    records["label"] = _labels(taken[spec.label], fitted)
    records["row"] = taken[ROW].to_numpy()
    if spec.group is not None:
        records["list"] = taken[LIST].to_numpy()
    if spec.weight is not None:
        records["weight"] = taken[WEIGHT].to_numpy()
    if spec.blob:
        records["blob"] = taken[BLOB_BYTES].to_numpy()
    return records


def _labels(column: pl.Series, fitted: FittedState) -> NDArray[np.float32]:
    """Return the labels, or the numbers of their classes, which float32 holds exactly."""
    numbers = class_ids(column, fitted.classes) if fitted.classes else column
    return numbers.cast(pl.Float32).to_numpy()


def _write_blobs(
    order: Scatter, shard: NDArray[np.int64], rows: NDArray[np.int64], sizes: NDArray[np.int64]
) -> None:
    """Write the blobs of all `rows` as members of archives: by shard, in each in the order of the table."""
    by_place = np.lexsort((rows, shard))
    ends = np.cumsum(member_bytes(sizes[by_place]))
    begins = ends - member_bytes(sizes[by_place])
    starts = np.append(begins, ends[-1:])[np.searchsorted(shard, np.arange(order.layout.shards + 1))]
    in_table = np.argsort(rows[by_place])
    numbers, places = rows[by_place][in_table] - order.begin, begins[in_table]
    with order.exchange.send(blobs_file(order.to)) as path, path.open("wb") as file:
        head = file.write(in_bytes(starts))
        at_once = max(1, int(_BLOBS_AT_ONCE / max(sizes.mean(), 1.0))) if len(sizes) else 1
        for first in range(0, len(numbers), at_once):
            some = numbers[first : first + at_once]
            column = order.partition.scan([order.layout.spec.blob])
            blobs = column.slice(some[0], some[-1] + 1 - some[0]).collect().to_series().gather(some - some[0])
            for number, place, content in zip(some, places[first:], blobs, strict=False):
                file.seek(head + place)
                file.write(member(int(number) + order.begin, content))


def _write_numbers(path: Path, numbers: NDArray[np.int64]) -> None:
    with path.open("wb") as file:
        file.write(in_bytes(numbers))


def in_bytes(values: NDArray[Any]) -> memoryview:
    """Return the memory of an array, to write it."""
    return memoryview(cast(Any, np.ascontiguousarray(values).view(np.uint8).reshape(-1)))
