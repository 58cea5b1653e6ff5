"""Naive baseline of a pipeline that names the entity of a row: guesses on the validation rows, the best on the holdout.

The whole window is read a partition at a time, also rows that no split has: their labels were known in production.
Not here: the guesses (`evaluation.comparison.naive`), and which labels count (`evaluation.comparison.recent_labels`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.data.snapshots.row_rules import ROW
from ml_assets.data.snapshots.split_reader import SplitName
from ml_assets.data.snapshots.split_rows import SplitScan
from ml_assets.foundation.objective_facts import facts_of
from ml_assets.model.evaluation.comparison.baseline import ClassShares, GroupMeans
from ml_assets.model.evaluation.comparison.holdout_rows import few_places, places_of_few_lists
from ml_assets.model.evaluation.comparison.naive import NaiveModel, Recalled, strongest
from ml_assets.model.evaluation.comparison.recent_labels import (
    RECENT,
    LabelColumns,
    LabelledPart,
    Recent,
    moments_of,
    recent_labels,
)
from ml_assets.model.steps.champion import MeasuredRows, with_class_ids
from ml_assets.model.steps.spec import PipelineSpec

_VALUES_AT_ONCE = 2**25
"""Predictions of all guesses together: 256 MiB. Of more validation rows, some are taken, evenly spread."""


@dataclass(frozen=True, kw_only=True)
class NaivePredictions:
    """The strongest guess, and its predictions for the holdout."""

    model: NaiveModel
    predictions: NDArray[np.float64]


def naive_of(
    spec: PipelineSpec,
    rows: Mapping[SplitName, SplitScan],
    means: GroupMeans | ClassShares,
    validation: pl.DataFrame,
    measured: MeasuredRows,
) -> NaivePredictions | None:
    """Choose the strongest guess on `validation`, the rows of that split, and predict the holdout with it.

    `means` are those of groups. Returns None if the pipeline names no entity.
    """
    declared, features, asked = spec.evaluation.baseline, spec.features, measured.asked
    if declared.entity is None:
        return None
    columns = LabelColumns(
        entity=declared.entity,
        label=features.label,
        label_known_at=features.label_known_at,
        predicted_at=declared.predicted_at,
        partition_date=features.partition_date,
        weight=measured.weight,
        time_zone=features.time_zone,
    )
    facts, classes = facts_of(asked.objective), len(asked.classes)

    def recalled(scan: SplitScan, wanted: Sequence[Recent], places: NDArray[np.intp]) -> list[Recalled]:
        parts: list[list[Recalled]] = [[] for _ in wanted]
        for found in recent_labels(_parts(scan, columns, places, asked.classes), columns, wanted):
            for part, one in zip(parts, wanted, strict=True):
                part.append(Recalled.of(found[one], facts, classes))
        return [Recalled.together(part) for part in parts]

    tried = RECENT[spec.partitions.cadence]
    most = _VALUES_AT_ONCE // (len(tried) * (1 + max(1, classes)))
    group = spec.evaluation.group
    few = (
        few_places(validation.height, most) if group is None else places_of_few_lists(validation[group], most)
    )
    model = strongest(
        means,
        dict(zip(tried, recalled(rows["validation"], tried, few), strict=True)),
        validation[few],
        asked.objective,
        entity=declared.entity,
        prior_rows=declared.prior_rows,
        label=asked.label,
        weight=measured.weight,
        group=group,
    )
    holdout = rows["holdout"]
    again = None if model.recent is None else recalled(holdout, [model.recent], np.arange(holdout.height))[0]
    return NaivePredictions(model=model, predictions=model.predict(measured.holdout, again))


def _parts(
    scan: SplitScan, columns: LabelColumns, places: NDArray[np.intp], classes: tuple[str, ...]
) -> Iterator[LabelledPart]:
    """Yield the partitions up to the last one with rows at `places` of a split."""
    asked = scan.take(places, [columns.predicted_at])
    numbers, moments = asked[ROW].to_numpy(), moments_of(asked, columns.predicted_at)
    earliest = np.minimum.accumulate(moments[::-1])[::-1]
    end = 0
    for partition in scan.partitions:
        begin, end = end, end + partition.rows
        first, behind = np.searchsorted(numbers, (begin, end))
        if first == len(numbers):
            return
        rows = partition.scan(columns.names).collect()
        yield LabelledPart(
            rows=with_class_ids(rows, columns.label, classes),
            asked=numbers[first:behind] - begin,
            asked_from=int(earliest[first]),
        )
