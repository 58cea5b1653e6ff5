"""Pass A of a snapshot: the facts of one partition, of which the sums choose, fit and refuse.

What grows with the rows goes to sorted runs on disk: values of numeric columns, categories, weights and lists. A
function of one partition: files in, files and a few numbers out. Not here: the sums over all partitions (row_choice).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.data.features.encoding import EncodingError, counted_texts, sorted_numbers
from ml_assets.data.features.sorted_runs import VALUE, map_bytes, write_texts
from ml_assets.data.snapshots.partitions import PartitionFiles
from ml_assets.data.snapshots.row_rules import (
    BLOB_BYTES,
    KEY,
    REASON,
    ROW,
    SPLIT,
    Named,
    checks_of,
    marked_rows,
    named_rows,
)
from ml_assets.data.snapshots.shards import member_bytes
from ml_assets.data.snapshots.spec import InputColumns, RowSpec, Split
from ml_assets.data.snapshots.split_reader import SPLITS, SnapshotError, SplitName
from resources.pool.exchange import Exchange

PASS_ERRORS = (SnapshotError, EncodingError, OSError)
"""Errors of a pass that say themselves what they are about; a pool names the partition of any other."""
MOST_CLASSES = 256
"""Classes that a label may have."""
FIRST = "first"
"""Column of a run of lists: the first row of the list in its partition."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Order to survey one partition."""

    partition: PartitionFiles
    split: Split
    spec: RowSpec
    inputs: InputColumns
    """Columns to fit."""
    exchange: Exchange
    """Way of the runs to the caller."""
    runs: str
    """Prefix of the names of their files."""

    @property
    def numbers(self) -> str:
        """Return the file of the runs of numeric columns and weights."""
        return f"{self.runs}.numbers"

    def texts(self, place: int) -> str:
        """Return the file of the run of the categorical column at `place`."""
        return f"{self.runs}.{place}.texts"

    @property
    def lists(self) -> str:
        """Return the file of the run of the lists: their names as texts, with `KEY` and `FIRST`."""
        return f"{self.runs}.lists"


@dataclass(frozen=True, kw_only=True)
class NumbersRun:
    """Ascending numbers in a part of a file."""

    file: Path
    """Its name, until it is received."""
    dtype: str
    offset: int
    """Bytes before the first number."""
    count: int

    def map(self) -> NDArray[Any]:
        """Map the numbers; they are read only when they are used."""
        if not self.count:
            return np.empty(0, dtype=self.dtype)
        return np.frombuffer(map_bytes(self.file), dtype=self.dtype, count=self.count, offset=self.offset)


@dataclass(frozen=True, kw_only=True)
class PartitionFacts:
    """Facts of one partition."""

    rows: int
    """All its rows."""
    in_splits: int
    """Those whose partition is in a split."""
    faults: tuple[Named, ...]
    """Rows with the fault of each check (`checks_of`)."""
    without_list: Named = field(default_factory=Named)
    counts: dict[tuple[str, str | None], int] = field(default_factory=dict[tuple[str, str | None], int])
    """(Partition key, reason or None for taken) → rows."""
    taken: dict[SplitName, int] = field(default_factory=dict[SplitName, int])
    """Split → rows taken."""
    units: dict[SplitName, int] = field(default_factory=dict[SplitName, int])
    """Split → parts that no shard divides: rows, or lists."""
    blob_bytes: dict[SplitName, int] = field(default_factory=dict[SplitName, int])
    """Split → bytes of its blobs."""
    archive_bytes: dict[SplitName, int] = field(default_factory=dict[SplitName, int])
    """Split → bytes of its blobs in an archive."""
    label: Any = None
    """Label of the first training row."""
    labels_alike: bool = True
    """True if all training rows have this label."""
    labels: NumbersRun | None = None
    """Labels of training rows, float64, in order of the table. Only if a model's output has a level."""
    classes: dict[SplitName, tuple[Any, ...] | None] = field(
        default_factory=dict[SplitName, tuple[Any, ...] | None]
    )
    """Split → labels that its rows have; None if there are more than `MOST_CLASSES`. Only if labels are classes."""
    ordered: frozenset[SplitName] = frozenset()
    """Splits with a list whose rows differ in relevance."""
    numbers: dict[str, NumbersRun] = field(default_factory=dict[str, NumbersRun])
    """Numeric column → its known values in training rows."""
    weights: dict[SplitName, NumbersRun] = field(default_factory=dict[SplitName, NumbersRun])
    """Split → weights of its rows, float64."""
    files: tuple[str, ...] = ()
    """Names of the files that were sent."""

    def received(self, files: Mapping[str, Path]) -> Self:
        """Return the same facts with the paths of received files: name → path."""

        def at(run: NumbersRun) -> NumbersRun:
            return replace(run, file=files[run.file.name])

        return replace(
            self,
            numbers={name: at(run) for name, run in self.numbers.items()},
            weights={split: at(run) for split, run in self.weights.items()},
            labels=None if self.labels is None else at(self.labels),
        )


def survey(order: Survey) -> PartitionFacts:
    """Read one partition, write its runs and return its facts. Raises `EncodingError`, `SnapshotError`, `OSError`."""
    spec, partition = order.spec, order.partition
    frame, rows = marked_rows(partition, order.split, spec)
    checks = checks_of(spec)
    found = frame.select(check.illegal.fill_null(False).sum().alias(str(i)) for i, check in enumerate(checks))
    faults = tuple(
        named_rows(partition, frame.filter(check.illegal), spec, check.column)
        if found[str(i)][0]
        else Named()
        for i, check in enumerate(checks)
    )
    without_list = Named()
    if spec.group is not None:
        without_list = named_rows(partition, frame.filter(pl.col(spec.group).is_null()), spec)
    if without_list.rows or any(fault.rows for fault in faults):
        return PartitionFacts(rows=rows, in_splits=frame.height, faults=faults, without_list=without_list)
    counts = frame.group_by(KEY, REASON).len("rows")
    all_taken = frame.filter(pl.col(REASON).is_null())
    taken: dict[SplitName, pl.DataFrame] = {}
    for split in SPLITS:
        if (some := all_taken.filter(pl.col(SPLIT) == split)).height:
            taken[split] = some
    label = taken["train"][spec.label] if "train" in taken else None
    files = [order.numbers]
    if spec.group is not None:
        files.append(order.lists)
        with order.exchange.send(order.lists) as path:
            _write_lists(path, frame, spec.group)
    if "train" in taken:
        files += [order.texts(place) for place in range(len(order.inputs.categorical))]
    with order.exchange.send(order.numbers) as path, path.open("wb") as file:
        runs = _NumbersFile(file, order.numbers)
        numbers = _write_inputs(order, taken["train"], rows, runs) if "train" in taken else {}
        weights: dict[SplitName, NumbersRun] = {
            split: runs.add(np.sort(taken[split][spec.weight].cast(pl.Float64).to_numpy()))
            for split in SPLITS
            if split in taken and spec.weight is not None
        }
        labels = None
        if label is not None and spec.has_levels:
            labels = runs.add(label.cast(pl.Float64).to_numpy())
    return PartitionFacts(
        rows=rows,
        in_splits=frame.height,
        faults=faults,
        counts={(key, reason): int(count) for key, reason, count in counts.iter_rows()},
        taken={split: taken[split].height for split in SPLITS if split in taken},
        units={split: _units(taken[split], spec) for split in SPLITS if split in taken},
        blob_bytes={
            split: int(taken[split][BLOB_BYTES].sum()) for split in SPLITS if split in taken and spec.blob
        },
        archive_bytes={
            split: int(member_bytes(taken[split][BLOB_BYTES].to_numpy()).sum())
            for split in SPLITS
            if split in taken and spec.blob
        },
        label=None if label is None else label[0],
        labels_alike=label is None or label.n_unique() == 1,
        labels=labels,
        classes={
            split: _few(taken[split][spec.label]) for split in SPLITS if split in taken and spec.has_classes
        },
        ordered=frozenset(split for split in SPLITS if split in taken and _is_ordered(taken[split], spec)),
        numbers=numbers,
        weights=weights,
        files=tuple(files),
    )


def _units(taken: pl.DataFrame, spec: RowSpec) -> int:
    return taken.height if spec.group is None else taken[spec.group].n_unique()


def rows_at(
    partition: PartitionFiles, columns: tuple[str, ...], rows: pl.Series, height: int
) -> pl.DataFrame:
    """Return `columns` of these rows of a partition, which has `height` rows in all."""
    read = partition.scan(columns).collect()
    if read.height != height:
        raise SnapshotError(
            f"partition {partition.key} changed while it was read: {height}, then {read.height} rows"
        )
    return read if len(rows) == height else read[rows]


def _write_inputs(
    order: Survey, train: pl.DataFrame, height: int, runs: "_NumbersFile"
) -> dict[str, NumbersRun]:
    """Write the runs of all columns to fit; return those of the numeric ones."""
    inputs = order.inputs
    if not (inputs.numeric or inputs.categorical):
        return {}
    read = rows_at(order.partition, (*inputs.numeric, *inputs.categorical), train[ROW], height)
    for place, name in enumerate(inputs.categorical):
        with order.exchange.send(order.texts(place)) as path:
            write_texts(path, counted_texts(read[name]))
    return {name: runs.add(sorted_numbers(read[name])) for name in inputs.numeric}


def _write_lists(path: Path, frame: pl.DataFrame, group: str) -> None:
    lists = frame.group_by(pl.col(group).cast(pl.String).alias(VALUE), KEY).agg(
        pl.col(ROW).min().alias(FIRST)
    )
    write_texts(path, lists.sort(VALUE))


def _few(labels: pl.Series) -> tuple[Any, ...] | None:
    found = labels.unique()
    return tuple(found.to_list()) if len(found) <= MOST_CLASSES else None


def _is_ordered(taken: pl.DataFrame, spec: RowSpec) -> bool:
    if spec.group is None:
        return False
    differs = taken.group_by(spec.group).agg((pl.col(spec.label).n_unique() > 1).alias(REASON))
    return bool(differs[REASON].any())


class _NumbersFile:
    """A file of several runs of numbers."""

    def __init__(self, file: Any, name: str) -> None:
        self._file, self._name, self._end = file, Path(name), 0

    def add(self, numbers: NDArray[Any]) -> NumbersRun:
        """Write one more run."""
        run = NumbersRun(file=self._name, dtype=numbers.dtype.str, offset=self._end, count=len(numbers))
        self._end += self._file.write(memoryview(cast(Any, numbers)).cast("B")) if len(numbers) else 0
        return run
