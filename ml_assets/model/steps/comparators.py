"""Models beside a challenger that an evaluation makes itself: naive baseline and reference, and their predictions.

Both are fitted on training rows. The baseline needs sums over all of them, which are read a partition at a time; the
reference needs some of them, evenly spread. Not here: the champion (`champion`), the models (`evaluation.comparison`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.data.features.encoding import FittedState
from ml_assets.data.snapshots.split_reader import SplitName
from ml_assets.data.snapshots.split_rows import SplitScan
from ml_assets.foundation.objective_facts import facts_of
from ml_assets.model.evaluation.comparison.baseline import naive_baseline
from ml_assets.model.evaluation.comparison.holdout_rows import few_places, places_of_few_lists
from ml_assets.model.evaluation.comparison.reference import AT_ONCE, most_rows_to_fit, reference_model
from ml_assets.model.evaluation.evaluation_document import TextFigures
from ml_assets.model.evaluation.report_document import NaiveChoice
from ml_assets.model.release.runtime import ServingModel
from ml_assets.model.steps.blobs import counted_models
from ml_assets.model.steps.champion import MeasuredRows, with_class_ids
from ml_assets.model.steps.naive import naive_of
from ml_assets.model.steps.spec import PipelineSpec


@dataclass(frozen=True, kw_only=True)
class Comparators:
    """Baseline and reference on the rows of a holdout."""

    baseline_name: str
    guess: str = ""
    """Prediction of the baseline in words, for the sentence of a gate; empty if rows are texts."""
    reference_name: str
    predictions: dict[str, NDArray[np.float64]]
    """`baseline` and `reference`."""
    naive: NaiveChoice | None = None
    """Choice of the baseline; None without an entity."""
    texts: TextFigures | None = None
    """Losses of single tokens, if rows are texts."""


def comparators_of(
    spec: PipelineSpec,
    rows: Mapping[SplitName, SplitScan],
    fitted: FittedState,
    challenger: ServingModel,
    measured: MeasuredRows,
) -> Comparators:
    """Fit baseline and reference on the training rows, and predict the holdout."""
    if facts_of(spec.evaluation.objective).has_tokens:
        counted = counted_models(spec.features, challenger, rows["train"], rows["holdout"])
        return Comparators(
            baseline_name=counted.baseline_name,
            reference_name=counted.reference_name,
            predictions=counted.predictions,
            texts=counted.figures,
        )
    return fitted_comparators(spec, rows, fitted, measured)


def fitted_comparators(
    spec: PipelineSpec, rows: Mapping[SplitName, SplitScan], fitted: FittedState, measured: MeasuredRows
) -> Comparators:
    """Fit baseline and reference for rows that are no texts."""
    asked, group = measured.asked, spec.evaluation.group
    roles: dict[str, Any] = {
        "label": asked.label,
        "weight": measured.weight,
        "classes": len(asked.classes),
        "group": group,
    }
    labelled = [asked.label, *([] if measured.weight is None else [measured.weight])]
    grouped = [*labelled, *spec.evaluation.baseline.groups]

    def numbered(frame: pl.DataFrame) -> pl.DataFrame:
        return with_class_ids(frame, asked.label, asked.classes)

    listed = [] if group is None else [group]
    validated = numbered(rows["validation"].read([*grouped, *listed]))
    means = naive_baseline(
        map(numbered, rows["train"].by_partition(grouped)),
        validated,
        spec.evaluation.baseline,
        spec.evaluation.objective,
        **roles,
    )
    naive = naive_of(spec, rows, means, validated, measured)
    inputs = [column.name for column in (*fitted.numeric, *fitted.categorical)]
    most = most_rows_to_fit(len(inputs))
    train, validation = rows["train"], rows["validation"]
    tried = (
        few_places(validation.height, most)
        if group is None
        else places_of_few_lists(validation.read([group])[group], most)
    )
    reference = reference_model(
        numbered(train.take(few_places(train.height, most), [*inputs, *labelled])),
        numbered(validation.take(tried, [*inputs, *labelled, *listed])),
        fitted.encode,
        spec.evaluation.objective,
        all_rows=train.height,
        **roles,
    )
    # Parts as large as those of `predict`, whose sums depend on them in the last digit.
    parts = rows["holdout"].parts(inputs, AT_ONCE)
    return Comparators(
        baseline_name=means.name if naive is None else naive.model.name,
        guess=means.guess if naive is None else naive.model.choice.chosen,
        reference_name=reference.name,
        naive=None if naive is None else naive.model.choice,
        predictions={
            "baseline": means.predict(measured.holdout) if naive is None else naive.predictions,
            "reference": np.concatenate([reference.predict(part) for part in parts]),
        },
    )
