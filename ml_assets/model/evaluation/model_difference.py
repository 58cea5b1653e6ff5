"""Change of the metrics from one model to another on the same rows, on the whole holdout and by slice.

The bootstrap is that of the gates: whole blocks, the same draws for both models. Intervals of slices hold jointly.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from ml_assets.model.evaluation.bootstrap import Estimate, Interval, interval, joint_intervals, paired
from ml_assets.model.evaluation.declared_metrics import OwnMetric, groupings_of
from ml_assets.model.evaluation.evaluation_document import Role
from ml_assets.model.evaluation.gates import Cell
from ml_assets.model.evaluation.holdout import Scored, measured
from ml_assets.model.evaluation.holdout_rows import bootstrap_blocks, labels_of, redraws, whole_lists
from ml_assets.model.evaluation.metrics import MetricFacts, Vector
from ml_assets.model.evaluation.row_weights import weights_of
from ml_assets.model.evaluation.slices import Rows, SliceKey, slice_rows, with_values_of
from ml_assets.model.evaluation.spec import EvaluationSpec
from resources.words import name_some

_BEFORE: Role = "champion"
_AFTER: Role = "challenger"


@dataclass(frozen=True, kw_only=True)
class MetricChange:
    """One metric of both models on some rows."""

    metric: MetricFacts
    slice: SliceKey | None
    """None for the whole holdout."""
    rows: int
    before: float
    after: float
    improvement: Interval
    """Positive if the later model is better."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """All changes on one holdout."""

    rows: int
    weight: str
    """Column with the weights of the rows; empty if each row counts once."""
    blocks: int
    bootstrap_unit: str
    confidence: float
    overall: tuple[MetricChange, ...]
    """Every metric, in the order of the objective."""
    slices: tuple[MetricChange, ...]
    """First metric of the objective on each slice with enough rows, in the order of the slices."""
    left_out: tuple[str, ...] = ()
    """Sentences about metrics and slices that need a column which the holdout lacks."""


def difference(
    holdout: pl.DataFrame,
    before: Vector,
    after: Vector,
    spec: EvaluationSpec,
    *,
    own_metrics: Sequence[OwnMetric] = (),
    label: str,
    weight: str | None = None,
    classes: Sequence[str] = (),
) -> Difference:
    """Compare the predictions of two models, `[N]` or `[N, K]`, on the rows of `holdout`.

    Labels and weights are as for `holdout.evaluate`. Raises `EvaluationInputError`.
    """
    spec, left_out = measurable(spec, holdout.columns)
    spec = with_values_of(spec, holdout.schema)
    y = labels_of(holdout, label, spec, classes)
    blocks, names = bootstrap_blocks(holdout, spec)
    counts = redraws(blocks, spec)
    scores: Mapping[Role, Vector] = {_BEFORE: before, _AFTER: after}
    own = {metric: metric.groups_of(holdout) for metric in own_metrics if metric.declared in spec.metrics}
    bias, lists = groupings_of(holdout, spec), whole_lists(holdout, spec)
    w = weights_of(holdout, weight)
    scored = Scored(y=y, w=w, scores=scores, blocks=blocks, counts=counts, own=own, bias=bias, lists=lists)
    everything: dict[SliceKey | None, Rows] = {None: np.arange(len(y))}
    cells = [
        measured(key, rows, scored, spec)
        for key, rows in (everything | slice_rows(holdout, spec.sliced_by)).items()
    ]
    whole, *slices = [cell for cell in cells if cell.estimates]
    first = spec.measured[0]
    joint = joint_intervals(
        [_paired(cell, first) for cell in slices if cell.blocks >= spec.min_blocks], spec.confidence
    )
    found = iter(joint)
    return Difference(
        rows=len(y),
        weight=weight or "",
        blocks=len(names),
        bootstrap_unit=spec.bootstrap_unit,
        confidence=spec.confidence,
        left_out=left_out,
        overall=tuple(_change(whole, metric, _interval(whole, metric, spec)) for metric in spec.measured),
        slices=tuple(
            _change(
                cell,
                first,
                next(found) if cell.blocks >= spec.min_blocks else Interval(_paired(cell, first).value),
            )
            for cell in slices
        ),
    )


def _interval(cell: Cell, metric: MetricFacts, spec: EvaluationSpec) -> Interval:
    """Return the interval of an improvement; none if so few blocks, or one label alone, would decide no gate."""
    one = _paired(cell, metric)
    if cell.blocks < spec.min_blocks or cell.has_one_label:
        return Interval(one.value if math.isfinite(one.value) else None)
    return interval(one, spec.confidence)


def _paired(cell: Cell, metric: MetricFacts) -> Estimate:
    return paired(
        cell.estimates[_AFTER, metric.name],
        cell.estimates[_BEFORE, metric.name],
        higher_is_better=metric.higher_is_better,
    )


def _change(cell: Cell, metric: MetricFacts, improvement: Interval) -> MetricChange:
    return MetricChange(
        metric=metric,
        slice=cell.slice,
        rows=cell.rows,
        before=cell.estimates[_BEFORE, metric.name].value,
        after=cell.estimates[_AFTER, metric.name].value,
        improvement=improvement,
    )


def measurable(spec: EvaluationSpec, columns: Collection[str]) -> tuple[EvaluationSpec, tuple[str, ...]]:
    """Return `spec` without slices, metrics and gates that need other columns; and a sentence about them, if any."""
    cuts = tuple(cut for cut in spec.sliced_by if cut.column in columns)
    metrics = tuple(one for one in spec.metrics if one.group is None or one.group in columns)
    bias = tuple(one for one in spec.bias if one.column in columns)
    found = spec.model_copy(update={"slices": cuts, "metrics": metrics, "bias": bias})
    sliced, measured = {cut.name for cut in cuts}, {metric.name for metric in found.measured}
    gates = tuple(
        gate
        for gate in spec.gates
        if (gate.sliced is None or gate.sliced[0] in sliced)
        and (gate.is_about_serving or gate.metric in measured)
    )
    lost = [
        *(f"slices by {cut.name}" for cut in spec.sliced_by if cut not in cuts),
        *(metric.label for metric in spec.measured if metric.name not in measured),
    ]
    said = (
        f"These rows lack a column of today's defs.yaml, and are measured without: {name_some(lost, 12)}.",
    )
    return found.model_copy(update={"gates": gates}), said if lost else ()
