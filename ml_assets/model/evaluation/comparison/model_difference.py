"""Change of the metrics from one model to another on the same rows, on the whole holdout and by slice.

The bootstrap is that of the gates: whole blocks, the same draws for both models. Intervals of slices hold jointly.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import polars as pl

from ml_assets.model.evaluation.comparison.declared_metrics import OwnMetric
from ml_assets.model.evaluation.comparison.gates import Cell
from ml_assets.model.evaluation.comparison.holdout import Scored, all_rows_and_slices, measured
from ml_assets.model.evaluation.comparison.holdout_rows import SliceKey, labels_of, with_values_of
from ml_assets.model.evaluation.evaluation_document import Role
from ml_assets.model.evaluation.metrics.bootstrap import Interval, interval, joint_intervals
from ml_assets.model.evaluation.metrics.metrics import MetricFacts, Vector
from ml_assets.model.evaluation.spec import Comparator, EvaluationSpec
from resources.words import name_some

_BEFORE: Comparator = "champion"
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
    own = [metric for metric in own_metrics if metric.declared in spec.metrics]
    scored = Scored.of(holdout, y, {_BEFORE: before, _AFTER: after}, spec, own, weight)
    cells = [measured(key, rows, scored, spec) for key, rows in all_rows_and_slices(holdout, spec).items()]
    whole, *slices = [cell for cell in cells if cell.estimates]
    first = spec.measured[0]
    fair = [cell.improvement(first, _BEFORE) for cell in slices if cell.blocks >= spec.min_blocks]
    found = iter(joint_intervals(fair, spec.confidence))
    return Difference(
        rows=len(y),
        weight=weight or "",
        blocks=len(scored.names),
        bootstrap_unit=spec.bootstrap_unit,
        confidence=spec.confidence,
        left_out=left_out,
        overall=tuple(_change(whole, metric, _interval(whole, metric, spec)) for metric in spec.measured),
        slices=tuple(
            _change(
                cell,
                first,
                next(found)
                if cell.blocks >= spec.min_blocks
                else Interval(cell.improvement(first, _BEFORE).value),
            )
            for cell in slices
        ),
    )


def _interval(cell: Cell, metric: MetricFacts, spec: EvaluationSpec) -> Interval:
    """Return the interval of an improvement; none if so few blocks, or one label alone, would decide no gate."""
    one = cell.improvement(metric, _BEFORE)
    if cell.blocks < spec.min_blocks or cell.has_one_label:
        return Interval(one.value if math.isfinite(one.value) else None)
    return interval(one, spec.confidence)


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
