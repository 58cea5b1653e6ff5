"""Metrics: direction, range, and value on rows.

`bootstrap.py` has the same metrics as functions of resampled blocks; a property test requires equal results.

All functions take labels `y`, predictions `p` and weights `w` of the rows, float64 `[N]`, and return a float; NaN where
the metric is not defined (no rows, one class only, a constant label). A row of weight 2 counts as two rows; equal
weights, in any unit, count as none (`row_weights.py`). Binary labels are 0.0 or 1.0, and `p` is a probability. If the
label has classes, `y` holds their numbers and `p` `[N, K]` a probability for each class. If rows form lists, `y` is a
relevance and `p` a score; `list_metrics.py` has these metrics, in which every row counts once. If rows are
texts, `y` is the number of predicted tokens and `p` `[N, 2]` mean nats per predicted token, and the share of tokens
predicted right; then every token counts the same, not every row.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ml_assets.foundation.objective_facts import ObjectiveName, facts_of
from ml_assets.model.evaluation.metrics.list_metrics import Lists, gain, reciprocal_rank, share_found
from ml_assets.model.evaluation.metrics.row_weights import Vector, mean, quantiles


class UnknownMetric(ValueError):
    """A metric that the objective does not have."""


OfLists = Callable[[Vector, Vector, Lists], Vector]
"""(labels, predictions, list of each row) → value of each list, `[L]`, by number; NaN for a list without one."""

CALIBRATION_BINS = 15
"""Equal-mass bins of the calibration error and of the reliability table."""

NATS_OF_BIT = math.log(2)

_SMALLEST = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, kw_only=True)
class MetricFacts:
    """Names, direction and range of a metric."""

    name: str
    """Name in a gate."""
    label: str
    """Name in a report."""
    higher_is_better: bool
    lowest: float = -math.inf
    highest: float = math.inf
    """Range of the metric; intervals are cut to it."""
    defined_on: str = "rows with different labels"
    """Rows on which the metric has a value, in words."""
    needs_skill: bool = True
    """False if a constant prediction can have the best value: calibration and coverage error, bias, latency, size."""

    def improvement(self, challenger: float, comparator: float) -> float:
        """Return the challenger's improvement in the metric's unit; negative if it is worse."""
        return challenger - comparator if self.higher_is_better else comparator - challenger


@dataclass(frozen=True, kw_only=True)
class Metric(MetricFacts):
    """One metric of the platform."""

    on_rows: Callable[[Vector, Vector, Vector], float]
    """Metric of some rows and their weights. If rows form lists, they count as one list."""
    values: Callable[[Vector, Vector], Vector] | None = None
    """Values of the rows, `[N]`, whose weighted mean is the metric; None if it is not a mean."""
    target: float | None = None
    """The metric is the distance of that mean from this number."""
    of_lists: OfLists | None = None
    """Values of the lists, whose mean over the lists that have one is the metric; None if rows do not form lists."""

    def value(self, y: Vector, p: Vector, *, w: Vector | None = None, lists: Lists | None = None) -> float:
        """Return the metric on rows, or on the lists that they form; NaN if it is not defined there.

        Without `w`, each row counts once.
        """
        if self.of_lists is None or lists is None:
            return self.on_rows(y, p, np.ones(len(y)) if w is None else w)
        return _mean_defined(self.of_lists(y, p, lists))

    def loss(self, y: Vector, p: Vector, *, w: Vector | None = None, lists: Lists | None = None) -> float:
        """Return the metric as a number whose smallest value is the best."""
        value = self.value(y, p, w=w, lists=lists)
        return -value if self.higher_is_better else value


def auc(y: Vector, p: Vector, w: Vector) -> float:
    """Return the area under the ROC curve: share of (positive, negative) pairs ranked right; a tie counts one half.

    A pair counts the product of its weights.
    """
    positive = y > 0
    order = np.argsort(p[~positive])
    beaten = rivals_beaten(p[~positive][order], w[~positive][order], p[positive])
    pairs = w[positive].sum() * w[~positive].sum()
    return float(w[positive] @ beaten / pairs) if pairs > 0 else float("nan")


def rivals_beaten(rivals: Vector, weights: Vector, scores: Vector) -> Vector:
    """Return the weight of the `rivals` that score lower than each of `scores`; an equal rival counts one half.

    `rivals` are sorted.
    """
    up_to = np.append(0.0, np.cumsum(weights)) / 2
    below, up_to_equal = (np.searchsorted(rivals, scores, side) for side in ("left", "right"))
    return up_to.take(below) + up_to.take(up_to_equal)


def clipped(p: Vector) -> Vector:
    """Keep probabilities away from 0 and 1 by the float64 epsilon (like scikit-learn), so that logs stay finite."""
    return np.clip(p, _SMALLEST, 1 - _SMALLEST)


def log_losses(y: Vector, p: Vector) -> Vector:
    """Return the cross-entropy of each row in nats, `[N]`."""
    if p.ndim == 2:
        return -np.log(clipped(p[np.arange(len(y)), y.astype(np.intp)]))
    safe = clipped(p)
    return -(y * np.log(safe) + (1 - y) * np.log1p(-safe))


def poisson_deviances(y: Vector, p: Vector) -> Vector:
    """Return twice the loss of log-likelihood of each row against a perfect prediction, `[N]`: 2 (y ln(y / p) - y + p).

    A prediction of 0 counts as the float64 epsilon, so that the deviance stays finite.
    """
    safe = np.maximum(p, _SMALLEST)
    surprise = y * (np.log(np.where(y > 0, y, 1.0)) - np.log(safe))
    return 2 * (surprise - y + safe)


def pinball_losses(y: Vector, p: Vector, share: float) -> Vector:
    """Return the pinball loss of each row, `[N]`: |y - p|, times `share` if the label is larger, else 1 - `share`.

    In expectation, the `share` quantile has the smallest loss.
    """
    error = y - p
    return np.maximum(share * error, (share - 1) * error)


def is_covered(y: Vector, p: Vector) -> Vector:
    """Return 1 for each row whose label is at most its prediction, else 0, `[N]`."""
    return (y <= p).astype(np.float64)


def calibration_edges(p: Vector, w: Vector, bins: int = CALIBRATION_BINS) -> Vector:
    """Return inner edges, `[bins - 1]`, that give each bin the same weight of predictions, except for ties."""
    return quantiles(p, w, np.linspace(0, 1, bins + 1)[1:-1]) if len(p) else np.zeros(bins - 1)


def calibration_bin(p: Vector, edges: Vector) -> npt.NDArray[np.intp]:
    """Return the bin of each prediction, `[N]`, 0 to `len(edges)`; an edge belongs to the bin below it."""
    return np.searchsorted(edges, p, "left")


def ece(y: Vector, p: Vector, w: Vector, edges: Vector | None = None) -> float:
    """Return the expected calibration error: mean over rows of |mean prediction − observed rate| of the row's bin.

    Uses 15 equal-mass bins (Nguyen & O'Connor 2015) unless `edges` are given. The error is biased upwards on few rows.
    """
    if not w.any():
        return float("nan")
    edges = calibration_edges(p, w) if edges is None else edges
    gaps = np.bincount(calibration_bin(p, edges), weights=w * (p - y), minlength=len(edges) + 1)
    return float(np.abs(gaps).sum() / w.sum())


def r2(y: Vector, p: Vector, w: Vector) -> float:
    """Return the explained share of the label's variance; negative if the mean would predict better."""
    counted = y[w > 0]
    if not len(counted) or np.ptp(counted) == 0:
        return float("nan")
    return 1 - float(w @ (y - p) ** 2) / float(w @ (y - mean(y, w)) ** 2)


def hits(y: Vector, p: Vector) -> Vector:
    """Return 1 for each row whose most likely class is its label, else 0, `[N]`."""
    return (most_likely(p) == y).astype(np.float64)


def most_likely(p: Vector) -> npt.NDArray[np.intp]:
    """Return the class with the largest probability of each row, `[N]`; among equals the first."""
    return p.argmax(axis=1) if len(p) else np.empty(0, dtype=np.intp)


def macro_auc(y: Vector, p: Vector, w: Vector) -> float:
    """Return the mean over classes of the AUC of one class against the rest, over classes for which it is defined."""
    return _mean_defined([auc((y == k).astype(np.float64), p[:, k], w) for k in range(p.shape[1])])


def f1_of_classes(y: Vector, p: Vector, w: Vector) -> Vector:
    """Return the F1 score of each class, `[K]`: 2 TP / (2 TP + FP + FN). NaN for a class that is neither a label nor a
    prediction of any row."""
    found = most_likely(p)
    count = p.shape[1]
    right = np.bincount(found, weights=w * (found == y), minlength=count)
    total = np.bincount(found, weights=w, minlength=count)
    total = total + np.bincount(y.astype(np.intp), weights=w, minlength=count)
    return np.where(total > 0, 2 * right / np.where(total > 0, total, 1.0), np.nan)


def _mean_defined(values: Sequence[float] | Vector) -> float:
    defined = np.asarray(values)[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")


def _metric(
    name: str,
    label: str,
    on_rows: Callable[[Vector, Vector, Vector], float],
    *,
    lowest: float = 0,
    highest: float = math.inf,
    higher_is_better: bool = False,
    needs_skill: bool = True,
) -> Metric:
    return Metric(
        name=name,
        label=label,
        higher_is_better=higher_is_better,
        lowest=lowest,
        highest=highest,
        needs_skill=needs_skill,
        on_rows=on_rows,
    )


_score = partial(_metric, highest=1, higher_is_better=True)


def _of_mean(
    name: str,
    label: str,
    values: Callable[[Vector, Vector], Vector],
    *,
    highest: float = math.inf,
    higher_is_better: bool = False,
    target: float | None = None,
) -> Metric:
    """Return the metric that is the mean of `values` of the rows, or the distance of that mean from `target`."""

    def on_rows(y: Vector, p: Vector, w: Vector) -> float:
        found = mean(values(y, p), w)
        return found if target is None else abs(found - target)

    plain = _metric(
        name,
        label,
        on_rows,
        highest=highest,
        higher_is_better=higher_is_better,
        needs_skill=target is None,
    )
    return replace(plain, values=values, target=target)


def _squares(y: Vector, p: Vector) -> Vector:
    return (y - p) ** 2


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _score("auc", "AUC", auc),
        _of_mean("logloss", "log loss", log_losses),
        _of_mean("brier", "Brier score", _squares, highest=1),
        _metric("ece", "calibration error", ece, highest=1, needs_skill=False),
        _metric("rmse", "RMSE", lambda y, p, w: float(np.sqrt(mean(_squares(y, p), w)))),
        _of_mean("mae", "MAE", lambda y, p: np.abs(y - p)),
        _score("r2", "R²", r2, lowest=-math.inf),
        _of_mean("poisson_deviance", "Poisson deviance", poisson_deviances),
        _of_mean("accuracy", "accuracy", hits, highest=1, higher_is_better=True),
        _score("macro_auc", "macro AUC", macro_auc),
        _score("macro_f1", "macro F1", lambda y, p, w: _mean_defined(f1_of_classes(y, p, w))),
        _metric("perplexity", "perplexity", lambda y, p, w: float(np.exp(mean(p[:, 0], w * y))), lowest=1),
        _metric("bits_per_token", "bits per token", lambda y, p, w: mean(p[:, 0], w * y) / NATS_OF_BIT),
        _score("token_accuracy", "token accuracy", lambda y, p, w: mean(p[:, 1], w * y)),
    )
}
"""Metrics without a parameter."""


def _metrics_of_quantile(share: float) -> dict[str, Metric]:
    pinball = _of_mean("pinball", "pinball loss", lambda y, p: pinball_losses(y, p, share))
    coverage = _of_mean("coverage_error", "coverage error", is_covered, highest=1, target=share)
    return {metric.name: metric for metric in (pinball, coverage)}


def _of_lists(name: str, label: str, of_lists: OfLists) -> Metric:
    def on_rows(y: Vector, p: Vector, w: Vector) -> float:
        return _mean_defined(of_lists(y, p, np.zeros(len(y), dtype=np.intp)))

    return replace(_score(name, label, on_rows), of_lists=of_lists)


def _metrics_of_ranking(places: int) -> dict[str, Metric]:
    metrics = (
        _of_lists("ndcg", f"NDCG@{places}", lambda y, p, lists: gain(y, p, lists, places)),
        _of_lists("mrr", "MRR", reciprocal_rank),
        _of_lists("recall", f"recall@{places}", lambda y, p, lists: share_found(y, p, lists, places)),
    )
    return {metric.name: metric for metric in metrics}


def metrics_of(objective: ObjectiveName) -> tuple[Metric, ...]:
    """Return the metrics of an objective, in the order of a report."""
    facts = facts_of(objective)
    known = dict(METRICS)
    if facts.quantile is not None:
        known |= _metrics_of_quantile(facts.quantile)
    if facts.places is not None:
        known |= _metrics_of_ranking(facts.places)
    return tuple(known[name] for name in facts.metrics)


def metric_named(name: str, objective: ObjectiveName) -> Metric:
    """Return a metric by its name. `UnknownMetric` lists the valid names."""
    return find_metric(name, metrics_of(objective), objective)


def row_loss_of(objective: ObjectiveName) -> Metric | None:
    """Return the first loss of an objective that is a mean of `values` of the rows; None without one."""
    of_rows = (one for one in metrics_of(objective) if one.values is not None and one.target is None)
    return next((one for one in of_rows if not one.higher_is_better), None)


_M = TypeVar("_M", bound=MetricFacts)


def find_metric(name: str, metrics: Iterable[_M], objective: ObjectiveName) -> _M:
    """Return the metric called `name` among `metrics`. `UnknownMetric` lists the valid names."""
    legal = {metric.name: metric for metric in metrics}
    if name not in legal:
        raise UnknownMetric(f"no metric {name!r} for objective {objective!r}: use one of {', '.join(legal)}")
    return legal[name]


SERVING_METRICS: tuple[MetricFacts, ...] = tuple(
    MetricFacts(name=name, label=label, higher_is_better=False, lowest=0, needs_skill=False)
    for name, label in (
        ("row_p50_ms", "median latency of one row in ms"),
        ("row_p99_ms", "p99 latency of one row in ms"),
        ("batch_p50_ms", "median latency of a batch in ms"),
        ("batch_p99_ms", "p99 latency of a batch in ms"),
        ("bundle_mb", "size of the bundle in MB"),
    )
)
"""Figures of a bundle that `at_most` of a gate can limit."""
SERVING_NAMES = tuple(metric.name for metric in SERVING_METRICS)
