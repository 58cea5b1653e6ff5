"""Choice of a snapshot's rows from the partitions of a feature table, with the reasons for leaving out others.

Each process has one partition in memory at a time. Facts of all (survey) are summed here: rows without which nothing
can be trained are refused by name, and columns are fitted. Not here: the rules for a row (row_rules), choosing the
partitions (spec), writing the rows (builder).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.data.features.encoding import (
    FittedState,
    LabelState,
    class_ids,
    counted_texts,
    fit_categorical,
    fit_classes,
    fit_label,
    fit_numeric,
    require_columns,
)
from ml_assets.data.features.sorted_runs import RUN, VALUE, map_texts, merged
from ml_assets.data.snapshots.partitions import PartitionFiles, task_names
from ml_assets.data.snapshots.row_rules import (
    KEY,
    NAMED,
    REASON,
    REASONS,
    ROW,
    SPLIT,
    Named,
    checks_of,
    marked_rows,
    named_rows,
    require_roles,
)
from ml_assets.data.snapshots.spec import InputColumns, RowSpec, Split
from ml_assets.data.snapshots.split_reader import SPLITS, PartitionIndex, SnapshotError, SplitName
from ml_assets.data.snapshots.survey import FIRST, MOST_CLASSES, PASS_ERRORS, PartitionFacts, Survey, survey
from resources.pool import HERE, PartitionPool, raising_as_here
from resources.pool.exchange import OpenExchange, folder_exchange
from resources.words import counted, name_some

LIST = "_list"
"""Column: number of the first taken row of the row's list. Only if rows form lists."""
WEIGHT = "_weight"
"""Column: weight of the row, divided by the mean weight of the split. Only if rows have weights."""
_LEAST_WEIGHT = 2.0**-126
"""Smallest normal float32."""
_BLOBS_AT_ONCE = 64 * 2**20
"""Approximate bytes of blobs to read from the table at once."""
_BLOBS_AT_FIRST = 16
"""Blobs to read first, while their size is unknown."""


@dataclass(frozen=True, kw_only=True)
class WeightScale:
    """Unit of the weights of a split."""

    largest: float
    mean: float
    """Mean of the weights, divided by the largest. Divided first, because their sum may be infinite."""


@dataclass(frozen=True, kw_only=True)
class ChosenRows:
    """Rows of the splits, in the order of the table. They stay in the files of their partitions."""

    split: Split
    spec: RowSpec
    partitions: tuple[PartitionFiles, ...]
    """Partitions in the order of the table."""
    facts: tuple[PartitionFacts, ...]
    """Facts of each partition."""
    weights: Mapping[SplitName, WeightScale]
    """Split → unit of its weights; empty if rows have none."""
    fitted: FittedState
    """Fitted on the training rows, or the state that was given."""

    @cached_property
    def begins(self) -> list[int]:
        """Number of the first row of each partition in the table."""
        return [0, *accumulate(one.rows for one in self.facts)][:-1]

    def rows(self, split: SplitName) -> int:
        """Return the number of rows taken into `split`."""
        return sum(one.taken.get(split, 0) for one in self.facts)

    def units(self, split: SplitName) -> int:
        """Return the number of parts of `split` that no shard divides: rows, or lists."""
        return sum(one.units.get(split, 0) for one in self.facts)

    def parts(self, split: SplitName, columns: Sequence[str] = ()) -> Iterator[pl.DataFrame]:
        """Yield the rows taken into `split`, partition by partition: the columns that the rules read, `columns`, `ROW`,
        and `LIST` and `WEIGHT` if rows have them.

        `Snapshot.read` returns validation and holdout rows in the same order, or list by list. Training rows are spread
        over shards.
        """
        for number, facts in enumerate(self.facts):
            if facts.taken.get(split):
                yield self._taken(number, split, columns)

    def take(self, split: SplitName, places: NDArray[np.intp], columns: Sequence[str] = ()) -> pl.DataFrame:
        """Return some of the rows of `parts`, as `SplitScan.take` does: `places` count from 0, ascending. Other
        partitions than theirs are not read."""
        found: list[pl.DataFrame] = []
        end = 0
        for number, facts in enumerate(self.facts):
            first, end = end, end + facts.taken.get(split, 0)
            mine = places[(places >= first) & (places < end)] - first
            if mine.size:
                found.append(self._taken(number, split, columns)[mine])
        return pl.concat(found)

    def named(self, split: SplitName, chosen: Callable[[pl.DataFrame], pl.Series], column: str) -> Named:
        """Name the rows of `parts` that `chosen` marks, with their value of `column`."""
        found = Named()
        for number, (partition, begin) in enumerate(zip(self.partitions, self.begins, strict=True)):
            if self.facts[number].taken.get(split):
                rows = self._taken(number, split, ())
                some = rows.filter(chosen(rows)).with_columns(pl.col(ROW) - begin)
                found += named_rows(partition, some, self.spec, column)
        return found

    def _taken(self, number: int, split: SplitName, columns: Sequence[str]) -> pl.DataFrame:
        frame, _ = marked_rows(self.partitions[number], self.split, self.spec, columns)
        return taken_rows(frame, split, self.begins[number], self.spec, self.weights.get(split))

    def candidates(self, columns: Sequence[str] = ()) -> Iterator[pl.DataFrame]:
        """Yield all rows of the splits' partitions, taken or not, partition by partition."""
        for partition, facts in zip(self.partitions, self.facts, strict=True):
            if facts.in_splits:
                yield marked_rows(partition, self.split, self.spec, columns)[0]

    def blob_bytes(self, split: SplitName) -> float:
        """Return the mean bytes of a blob over the rows taken into `split`; 0 if rows have no blobs."""
        return sum(one.blob_bytes.get(split, 0) for one in self.facts) / self.rows(split)

    def index(self) -> tuple[PartitionIndex, ...]:
        """Return the outcome of every partition, in the order of the splits."""
        found = Counter[tuple[str, str | None]]()
        for facts in self.facts:
            found.update(facts.counts)
        splits = self.split.split_of
        return tuple(
            PartitionIndex(
                key=key,
                split=splits[key],
                rows=found[key, None],
                excluded={reason: found[key, reason] for reason in REASONS if (key, reason) in found},
            )
            for key in self.split.keys
        )


def taken_rows(
    frame: pl.DataFrame, split: SplitName, begin: int, spec: RowSpec, scale: WeightScale | None
) -> pl.DataFrame:
    """Return the rows of a partition (`marked_rows`) that are taken into `split`; `begin` is the number of its first
    row in the table."""
    taken = frame.filter((pl.col(SPLIT) == split) & pl.col(REASON).is_null())
    taken = taken.with_columns(pl.col(ROW) + begin).drop(KEY, SPLIT, REASON)
    if spec.group is not None:
        taken = taken.with_columns(pl.col(ROW).min().over(spec.group).alias(LIST))
    if scale is not None and spec.weight is not None:
        # Their sum is the number of rows, so that learning rates and losses keep their meaning in any unit.
        weight = pl.col(spec.weight).cast(pl.Float64) / scale.largest / scale.mean
        taken = taken.with_columns(weight.alias(WEIGHT))
    return taken


def choose_rows(
    partitions: Sequence[PartitionFiles],
    split: Split,
    spec: RowSpec,
    inputs: InputColumns | FittedState,
    *,
    into: Path,
    pool: PartitionPool = HERE,
    exchange: OpenExchange = folder_exchange,
) -> ChosenRows:
    """Choose the rows of each split from `partitions`, which are in the order of their table, and fit `inputs`.

    Each of `partitions` is a task of `pool`; its files come by way of `exchange`, and temporary ones lie in `into`. A
    state that is already fitted is kept. Raises `SnapshotError` if a
    column is missing, a label is not a finite number or is illegal for the objective, a weight is not a number from 0,
    all training rows have the same label, a time is not in UTC, blobs are not bytes, or a split has no rows; the
    message names rows or partitions, and reasons. Raises `EncodingError` as `fit` does, and `DiskFull`.
    """
    schema = partitions[0].scan().collect_schema()
    require_roles(schema, spec)
    wanted = inputs if isinstance(inputs, InputColumns) else InputColumns()
    _require_inputs(schema, inputs)
    names = task_names(partitions)
    with exchange(into) as files:
        orders = [
            Survey(
                partition=one,
                split=split,
                spec=spec,
                inputs=wanted,
                exchange=files,
                runs=f"{number:06d}",
            )
            for number, one in enumerate(partitions)
        ]
        with raising_as_here(*PASS_ERRORS):
            facts = list(pool.map(survey, dict(zip(names, orders, strict=True))))
        _refuse_faults(spec, facts)
        sent = [name for one in facts for name in one.files]
        with files.receive(sent) as paths:
            runs = dict(zip(sent, paths, strict=True))
            return _chosen(orders, [one.received(runs) for one in facts], runs, split, spec, inputs, schema)


def _chosen(
    orders: Sequence[Survey],
    facts: Sequence[PartitionFacts],
    runs: Mapping[str, Path],
    split: Split,
    spec: RowSpec,
    inputs: InputColumns | FittedState,
    schema: pl.Schema,
) -> ChosenRows:
    """Refuse and fit by the facts of all partitions; `runs` are name → file."""
    if spec.group is not None:
        _require_whole_lists(spec.group, orders, facts, runs)
    chosen = ChosenRows(
        split=split,
        spec=spec,
        partitions=tuple(order.partition for order in orders),
        facts=tuple(facts),
        weights={} if spec.weight is None else {name: _scale(name, facts) for name in SPLITS},
        fitted=inputs if isinstance(inputs, FittedState) else FittedState(numeric=(), categorical=()),
    )
    _require_rows(chosen)
    _require_no_weight_lost(chosen)
    _require_two_labels(chosen)
    _require_order(chosen)
    if isinstance(inputs, FittedState):
        _require_known_classes(chosen, inputs.classes, "the initial version of init_from does not know")
        return chosen
    return replace(chosen, fitted=_fit(chosen, inputs, schema, orders, runs))


def _require_inputs(schema: pl.Schema, inputs: InputColumns | FittedState) -> None:
    """Refuse columns that are missing or of a type that cannot be encoded, before any row is read."""
    if isinstance(inputs, FittedState):
        numeric = tuple(one.name for one in inputs.numeric)
        categorical = tuple(one.name for one in inputs.categorical)
    else:
        numeric, categorical = inputs.numeric, inputs.categorical
    empty = pl.DataFrame(schema=schema)
    require_columns(empty, numeric, categorical)
    for name in categorical:
        counted_texts(empty[name])  # refuses types that are not categories


def _fit(
    chosen: ChosenRows,
    inputs: InputColumns,
    schema: pl.Schema,
    orders: Sequence[Survey],
    runs: Mapping[str, Path],
) -> FittedState:
    rows, facts = chosen.rows("train"), chosen.facts
    numeric = [
        fit_numeric(
            name, schema[name], rows, [one.numbers[name].map() for one in facts if name in one.numbers]
        )
        for name in inputs.numeric
    ]
    categorical = [
        fit_categorical(
            name,
            merged([map_texts(runs[name]) for name in (one.texts(place) for one in orders) if name in runs]),
            inputs.min_count,
        )
        for place, name in enumerate(inputs.categorical)
    ]
    return FittedState(
        numeric=tuple(numeric),
        categorical=tuple(categorical),
        classes=_classes(chosen, schema),
        label=_label(chosen.spec, facts),
    )


def _label(spec: RowSpec, facts: Sequence[PartitionFacts]) -> LabelState:
    if spec.objective is None or not spec.has_levels:
        return LabelState()
    return fit_label(spec.objective, [one.labels.map() for one in facts if one.labels is not None])


def with_blobs(rows: pl.DataFrame, table: pl.LazyFrame, column: str) -> Iterator[pl.DataFrame]:
    """Yield `rows` (from `ChosenRows.parts`) with the blobs in `column` of their `table`: in order, in parts."""
    first, count = 0, _BLOBS_AT_FIRST
    while first < rows.height:
        part = rows.slice(first, count)
        places = part[ROW] - part[ROW][0]
        blobs = table.select(column).slice(part[ROW][0], places[-1] + 1).collect().to_series().gather(places)
        yield part.with_columns(blobs.alias(column))
        first += count
        count = max(1, int(_BLOBS_AT_ONCE * part.height / max(blobs.bin.size().sum(), 1)))


def _refuse_faults(spec: RowSpec, facts: Sequence[PartitionFacts]) -> None:
    """Refuse illegal labels and weights, and rows without a list, also those that are left out."""
    rows = sum(one.in_splits for one in facts)
    for number, check in enumerate(checks_of(spec)):
        found = sum((one.faults[number] for one in facts), Named())
        if found.rows:
            raise SnapshotError(
                f"{check.what} is {check.found} in {found.rows} of {rows} rows: {found}; {check.remedy}"
            )
    lacking = sum((one.without_list for one in facts), Named())
    if lacking.rows:
        raise SnapshotError(
            f"{spec.group!r} (evaluation.group) is null in {lacking.rows} of {rows} rows: "
            f"{lacking}; name the list of each row in the feature function"
        )


def _require_whole_lists(
    group: str, orders: Sequence[Survey], facts: Sequence[PartitionFacts], files: Mapping[str, Path]
) -> None:
    """Refuse lists with rows in several partitions, also rows that are left out: sooner or later a split would cut such
    a list, and a model would learn from one part and be measured on the other."""
    lists = cut = 0
    named: list[tuple[int, int, str]] = []
    runs = [map_texts(files[order.lists]) for order, one in zip(orders, facts, strict=True) if one.in_splits]
    for some in merged(runs) if runs else ():
        some = some.sort(VALUE, RUN, FIRST)
        places = some.group_by(VALUE, maintain_order=True).agg(
            pl.col(RUN).first(), pl.col(FIRST).first(), pl.col(KEY).unique(maintain_order=True)
        )
        lists += places.height
        several = places.filter(pl.col(KEY).list.len() > 1)
        cut += several.height
        told = several.sort(RUN, FIRST).head(NAMED)
        named += [
            (run, first, f"{one} is in {name_some(keys)}") for one, run, first, keys in told.iter_rows()
        ]
    if cut:
        raise SnapshotError(
            f"{cut} of {lists} lists are in several partitions: {group} "
            f"{'; '.join(one for *_, one in sorted(named)[:NAMED])}{'; …' * (cut > NAMED)}. {_one_partition(group)}"
        )


def require_lists_begin(chosen: ChosenRows, before: pl.DataFrame, key: str) -> None:
    """Refuse lists that the start of the window cuts in two: with rows also in `before`, of the partition `key`.

    `before` are the rows of the partition before the oldest one in `chosen`, with the column of lists. Raises
    `SnapshotError`, which names lists.
    """
    group = chosen.spec.group
    if group is None:
        return
    # As texts: an earlier version of the table may have had another type.
    earlier = before.select(pl.col(group).cast(pl.String)).unique()
    cut: list[str] = []
    for rows in chosen.candidates():
        mine = rows.select(pl.col(group).cast(pl.String)).unique(maintain_order=True)
        cut += mine.join(earlier, on=group, how="semi", maintain_order="left")[group].to_list()
    if cut:
        raise SnapshotError(
            f"the start of the window, {chosen.split.train[0]}, cuts {counted(len(cut), 'list')} in two: {group} "
            f"{name_some(cut, NAMED)} {'have' if len(cut) > 1 else 'has'} rows in {key}, too. {_one_partition(group)}"
        )


def _one_partition(group: str) -> str:
    return (
        f"A list belongs to one partition: let {group!r} (evaluation.group) differ between partitions, such as a "
        "user's day instead of a user"
    )


def _require_rows(chosen: ChosenRows) -> None:
    """Refuse splits without rows."""
    index, spec = chosen.index(), chosen.spec
    for name in SPLITS:
        partitions = [partition for partition in index if partition.split == name]
        if not any(partition.rows for partition in partitions):
            excluded = Counter[str]()
            for partition in partitions:
                excluded.update(partition.excluded)
            reasons = ", ".join(f"{reason}: {rows}" for reason, rows in excluded.items())
            raise SnapshotError(
                f"the {name} split ({partitions[0].key} to {partitions[-1].key}) has no row. Left out: "
                f"{reasons or 'none, the partitions are empty'}. A label is known in time if "
                f"{spec.label_known_at!r} is at most {spec.cutoffs.in_words[name]}. "
                "Move the window, shorten its embargo, or fix the feature function"
            )


def _scale(split: SplitName, facts: Sequence[PartitionFacts]) -> WeightScale:
    """Return the unit of the weights of a split: the sums of the partitions are added exactly."""
    runs = [one.weights[split].map() for one in facts if split in one.weights]
    largest = max((float(run[-1]) for run in runs), default=1.0)
    rows = sum(len(run) for run in runs)
    return WeightScale(
        largest=largest, mean=math.fsum(float((run / largest).sum()) for run in runs) / max(rows, 1)
    )


def _require_no_weight_lost(chosen: ChosenRows) -> None:
    """Refuse weights that are 0 in float32 once they are divided by their mean, as a snapshot stores them."""
    column = chosen.spec.weight
    if column is None:
        return
    for split in SPLITS:
        scale = chosen.weights[split]
        if not any(
            _is_lost(float(one.weights[split].map()[0]), scale)
            for one in chosen.facts
            if split in one.weights
        ):
            continue
        lost = chosen.named(split, lambda rows: rows[WEIGHT] < _LEAST_WEIGHT, column)
        raise SnapshotError(
            f"weight {column!r} (features.weight) is too small beside the largest in {lost.rows} of "
            f"{chosen.rows(split)} {split} rows: {lost}; give such rows the weight 0"
        )


def _is_lost(weight: float, scale: WeightScale) -> bool:
    return weight / scale.largest / scale.mean < _LEAST_WEIGHT


def _require_two_labels(chosen: ChosenRows) -> None:
    """Refuse training rows that all have the same label: a model would learn to predict it for every row."""
    if chosen.spec.objective is None or chosen.spec.has_tokens:
        return
    trained = [one for one in chosen.facts if one.taken.get("train")]
    label = trained[0].label
    if all(one.labels_alike and one.label == label for one in trained):
        raise SnapshotError(
            f"label {chosen.spec.label!r} is {label} in all {chosen.rows('train')} training rows, so a model "
            f"cannot learn from it: train on a longer window, or fix the feature function"
        )


def _require_order(chosen: ChosenRows) -> None:
    """Refuse splits without any list whose rows differ in relevance: nothing can be learned or selected from them."""
    if chosen.spec.group is None:
        return
    for split in ("train", "validation"):
        if not any(split in one.ordered for one in chosen.facts):
            raise SnapshotError(
                f"none of the {chosen.units(split)} lists of the {split} split has rows of different relevance "
                f"({chosen.spec.label!r}), so a model cannot learn an order from them: keep the rows that were not "
                f"relevant, or let {chosen.spec.group!r} (evaluation.group) name longer lists"
            )


def _classes(chosen: ChosenRows, schema: pl.Schema) -> tuple[str, ...]:
    """Return the classes of the training labels; none if the objective has no classes."""
    spec = chosen.spec
    if not spec.has_classes:
        return ()
    found: set[Any] = set()
    for one in chosen.facts:
        some = one.classes.get("train", ())
        found |= set(some or ())
        if some is None or len(found) > MOST_CLASSES:
            raise SnapshotError(
                f"label {spec.label!r} has more than {MOST_CLASSES} classes in the training rows, the most that "
                f"objective {spec.objective} takes: merge rare classes in the feature function, or choose objective "
                "regression if they are amounts"
            )
    classes = fit_classes(pl.Series(list(found), dtype=schema[spec.label]))
    _require_known_classes(chosen, classes, "no training row has")
    return classes


def _require_known_classes(chosen: ChosenRows, classes: Sequence[str], whose: str) -> None:
    """Refuse labels outside of `classes`; `whose` says in words who lacks them."""
    spec = chosen.spec
    if not spec.has_classes:
        return
    for split in SPLITS:
        labels = [one.classes[split] for one in chosen.facts if split in one.classes]
        if all(some is not None and not _unknown(pl.Series(some), classes).any() for some in labels):
            continue
        new = chosen.named(split, lambda rows: _unknown(rows[spec.label], classes), spec.label)
        raise SnapshotError(
            f"label {spec.label!r} has a class that {whose} in {new.rows} of {chosen.rows(split)} {split} rows: "
            f"{new}; train on a longer window, or merge rare classes in the feature function"
        )


def _unknown(labels: pl.Series, classes: Sequence[str]) -> pl.Series:
    return class_ids(labels, classes).is_null()
