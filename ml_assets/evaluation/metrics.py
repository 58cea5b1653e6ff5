"""Metrics: direction, range, and value on rows.

`block_counts.py` has the same metrics as functions of resampled blocks; a property test requires equal results.

All functions take labels `y` and predictions `p`, float64 `[N]`, and return a float; NaN where the metric is
not defined (no rows, one class only, a constant label). Binary labels are 0.0 or 1.0, and `p` is a probability.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ml_assets.evaluation.errors import UnknownMetric
from ml_assets.objective_facts import ObjectiveName, facts_of

Vector = npt.NDArray[np.float64]

CALIBRATION_BINS = 15
"""Equal-mass bins of the calibration error and of the reliability table."""

_SMALLEST = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric with its names, direction and range."""

    name: str
    """Name in a gate."""
    label: str
    """Name in a report."""
    higher_is_better: bool
    lowest: float
    highest: float
    """Range of the metric; intervals are cut to it."""
    on_rows: Callable[[Vector, Vector], float]

    def improvement(self, challenger: float, reference: float) -> float:
        """Return the challenger's improvement in the metric's unit; negative if it is worse."""
        return challenger - reference if self.higher_is_better else reference - challenger


def auc(y: Vector, p: Vector) -> float:
    """Return the area under the ROC curve: share of (positive, negative) pairs ranked right; a tie counts one half."""
    positives, negatives = p[y > 0], np.sort(p[y <= 0])
    if not len(positives) or not len(negatives):
        return float("nan")
    below = np.searchsorted(negatives, positives, "left") + np.searchsorted(negatives, positives, "right")
    return float(below.sum() / 2 / (len(positives) * len(negatives)))


def clipped(p: Vector) -> Vector:
    """Keep probabilities away from 0 and 1 by the float64 epsilon (like scikit-learn), so that logs stay finite."""
    return np.clip(p, _SMALLEST, 1 - _SMALLEST)


def log_losses(y: Vector, p: Vector) -> Vector:
    """Return the cross-entropy of each row in nats, `[N]`."""
    safe = clipped(p)
    return -(y * np.log(safe) + (1 - y) * np.log1p(-safe))


def calibration_edges(p: Vector, bins: int = CALIBRATION_BINS) -> Vector:
    """Return inner edges, `[bins - 1]`, that give each bin the same number of predictions, except for ties."""
    return np.quantile(p, np.linspace(0, 1, bins + 1)[1:-1]) if len(p) else np.zeros(bins - 1)


def calibration_bin(p: Vector, edges: Vector) -> npt.NDArray[np.intp]:
    """Return the bin of each prediction, `[N]`, 0 to `len(edges)`; an edge belongs to the bin above it."""
    return np.searchsorted(edges, p, "right")


def ece(y: Vector, p: Vector, edges: Vector | None = None) -> float:
    """Return the expected calibration error: mean over rows of |mean prediction − observed rate| of the row's bin.

    Uses 15 equal-mass bins (Nguyen & O'Connor 2015) unless `edges` are given. The error is biased upwards on few rows.
    """
    if not len(y):
        return float("nan")
    edges = calibration_edges(p) if edges is None else edges
    gaps = np.bincount(calibration_bin(p, edges), weights=p - y, minlength=len(edges) + 1)
    return float(np.abs(gaps).sum() / len(y))


def r2(y: Vector, p: Vector) -> float:
    """Return the explained share of the label's variance; negative if the mean would predict better."""
    total = float(((y - y.mean()) ** 2).sum()) if len(y) else 0.0
    return 1 - float(((y - p) ** 2).sum()) / total if total > 0 else float("nan")


def _mean(losses: Vector) -> float:
    return float(losses.mean()) if len(losses) else float("nan")


_INFINITY = float("inf")
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            name="auc",
            label="AUC",
            higher_is_better=True,
            lowest=0,
            highest=1,
            on_rows=auc,
        ),
        Metric(
            name="logloss",
            label="log loss",
            higher_is_better=False,
            lowest=0,
            highest=_INFINITY,
            on_rows=lambda y, p: _mean(log_losses(y, p)),
        ),
        Metric(
            name="brier",
            label="Brier score",
            higher_is_better=False,
            lowest=0,
            highest=1,
            on_rows=lambda y, p: _mean((y - p) ** 2),
        ),
        Metric(
            name="ece",
            label="calibration error",
            higher_is_better=False,
            lowest=0,
            highest=1,
            on_rows=ece,
        ),
        Metric(
            name="rmse",
            label="RMSE",
            higher_is_better=False,
            lowest=0,
            highest=_INFINITY,
            on_rows=lambda y, p: float(np.sqrt(_mean((y - p) ** 2))),
        ),
        Metric(
            name="mae",
            label="MAE",
            higher_is_better=False,
            lowest=0,
            highest=_INFINITY,
            on_rows=lambda y, p: _mean(np.abs(y - p)),
        ),
        Metric(
            name="r2",
            label="R²",
            higher_is_better=True,
            lowest=-_INFINITY,
            highest=1,
            on_rows=r2,
        ),
    )
}


def metrics_of(objective: ObjectiveName) -> tuple[Metric, ...]:
    """Return the metrics of an objective, in the order of a report."""
    return tuple(METRICS[name] for name in facts_of(objective).metrics)


def metric_named(name: str, objective: ObjectiveName) -> Metric:
    """Return a metric by its name. `UnknownMetric` lists the valid names."""
    legal = facts_of(objective).metrics
    if name not in legal:
        raise UnknownMetric(f"no metric {name!r} for objective {objective!r}: use one of {', '.join(legal)}")
    return METRICS[name]
