"""Explanations of a model by its predictions alone: permutation importance and partial dependence.

Permutation importance (Breiman, 2001): the loss that is added when the values of a column are shuffled among the rows;
of a metric that should be high, the part that is lost. Correlated columns share their importance: shuffling one
of them leaves the others. Partial dependence (Friedman, 2001): the mean prediction if all rows had the same value of a
column. Both show what the model does with a column, not what the column causes.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import polars as pl

from ml_assets.foundation.objective_facts import facts_of
from ml_assets.model.evaluation.comparison.holdout_rows import in_range, redraws_of, whole_lists
from ml_assets.model.evaluation.metrics.bootstrap import (
    Estimate,
    block_form,
    estimate,
    joint_intervals,
    paired,
)
from ml_assets.model.evaluation.metrics.metrics import Vector, metric_named
from ml_assets.model.evaluation.metrics.row_weights import weights_of
from ml_assets.model.evaluation.report_document import (
    UNNAMED,
    ColumnImportance,
    Explanations,
    PartialDependence,
)
from ml_assets.model.evaluation.spec import EvaluationSpec

DRAWN = 5
"""Columns with a partial dependence: the most important ones."""
POINTS = 10
"""Values of a column at which it is measured: quantiles of a number, the most frequent categories."""
_MOST_CLASSES = 5
"""Classes with a curve of their own: those with the largest mean probability."""


class NotPredicted(Exception):
    """The model has no finite prediction for rows with changed values."""


Predict = Callable[[pl.DataFrame], Vector]
"""Predictions for raw rows, `[N]` or `[N, K]`: those of the bundle's runtime."""


def explain(
    rows: pl.DataFrame,
    predict: Predict,
    inputs: Mapping[str, str],
    spec: EvaluationSpec,
    *,
    label: str,
    weight: str | None = None,
    shown: Sequence[str],
    classes: Sequence[str] = (),
) -> Explanations:
    """Explain the model behind `predict` on `rows` of a holdout, raw, with `label`, `weight` if any, block and list.

    `inputs` are the columns that the model reads, each with its kind: `numeric`, `category` or `blob`. Those in `shown`
    get a partial dependence, which names values of rows. Predicts `rows` once, once for each column, and up to
    `DRAWN * POINTS` times for the dependence. `predict` may raise `NotPredicted` for changed rows: the column is then
    not measured.
    """
    metric = metric_named(facts_of(spec.objective).chosen_by, spec.objective)
    y = rows.get_column(label).cast(pl.Float64).to_numpy()
    blocks, counts = redraws_of(rows, spec)
    lists, w = whole_lists(rows, spec), weights_of(rows, weight)

    def loss(changed: pl.DataFrame) -> Estimate:
        p = in_range(predict(changed), spec.objective)
        form = block_form(metric, y, p, blocks, counts.shape[1], w=w, lists=lists)
        return estimate(form, counts, counts.shape[1])

    untouched = loss(rows)

    def added_by(changed: pl.DataFrame) -> Estimate:
        try:
            return paired(untouched, loss(changed), higher_is_better=metric.higher_is_better)
        except NotPredicted:
            return Estimate(math.nan, np.full(len(counts), math.nan), untouched.blocks)

    added = [added_by(_shuffled(rows, name, [spec.seed, at])) for at, name in enumerate(inputs)]
    columns = [
        ColumnImportance(column=name, added=found)
        for name, found in zip(inputs, joint_intervals(added, spec.confidence), strict=True)
    ]
    columns.sort(key=lambda one: -(one.added.value or 0.0))
    drawn = [one.column for one in columns if one.column in shown and inputs[one.column] != "blob"][:DRAWN]
    return Explanations(
        metric=metric.name,
        rows=rows.height,
        columns=tuple(columns),
        dependence=tuple(
            dependence
            for name in drawn
            if (dependence := _dependence(rows, w, name, inputs[name], predict, classes)) is not None
        ),
    )


def _shuffled(rows: pl.DataFrame, column: str, seed: Sequence[int]) -> pl.DataFrame:
    order = np.random.default_rng(seed).permutation(rows.height)
    return rows.with_columns(rows.get_column(column).gather(order))


def _dependence(
    rows: pl.DataFrame, w: Vector, column: str, kind: str, predict: Predict, classes: Sequence[str]
) -> PartialDependence | None:
    """Return the partial dependence on `column`; None if no row has a value, or the model has no prediction for it."""
    values = rows.get_column(column).drop_nulls()
    points = _points(values, kind)
    if points.is_empty():
        return None
    try:
        answers = np.stack(
            [
                w @ predict(rows.with_columns(point.new_from_index(0, rows.height).alias(column))) / w.sum()
                for point in (points.slice(at, 1) for at in range(points.len()))
            ]
        )
    except NotPredicted:
        return None
    numbers = tuple(float(one) for one in points) if kind == "numeric" else None
    by_class = {UNNAMED: answers} if not classes else _largest(answers, classes)
    return PartialDependence(
        column=column,
        values=tuple(str(one) for one in points) if numbers is None else numbers,
        means={name: tuple(float(one) for one in means) for name, means in by_class.items()},
    )


def _points(values: pl.Series, kind: str) -> pl.Series:
    if kind == "category":
        frequent = values.alias("value").value_counts(name="rows")
        # Also by value: equal counts have no order of their own.
        return frequent.sort("rows", "value", descending=[True, False]).get_column("value").head(POINTS)
    ordered = (values.drop_nans() if values.dtype.is_float() else values).sort()
    if ordered.is_empty():
        return ordered
    # Values of real rows: a mean of two may be a number that the column cannot hold.
    return ordered.gather(np.linspace(0, ordered.len() - 1, POINTS).round().astype(np.int64)).unique().sort()


def _largest(answers: Vector, classes: Sequence[str]) -> dict[str, Vector]:
    most = np.argsort(-answers.mean(axis=0), kind="stable")[:_MOST_CLASSES]
    return {str(classes[at]): answers[:, at] for at in sorted(most.tolist())}
