"""Numbers behind the plots of a report, small enough for JSON, and decision thresholds of a binary model with costs.

Thresholds are chosen on validation rows and measured on the holdout: a threshold that was chosen on the rows that
measure it looks cheaper than it is. The cost of a row is a mean like any metric, so its interval comes from the same
redraws of blocks. Drawing is in `pictures.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import polars as pl

from ml_assets.foundation.objective_facts import ObjectiveFacts, ObjectiveName, facts_of
from ml_assets.model.evaluation.evaluation_document import (
    CalibrationBin,
    ClassFigures,
    Curves,
    Density,
    Histogram,
    Role,
)
from ml_assets.model.evaluation.metrics.bootstrap import (
    BlockIds,
    Estimate,
    Interval,
    Matrix,
    block_form,
    estimate,
    interval,
)
from ml_assets.model.evaluation.metrics.list_metrics import Lists, gain
from ml_assets.model.evaluation.metrics.metrics import (
    Metric,
    Vector,
    auc,
    calibration_bin,
    calibration_edges,
    f1_of_classes,
    hits,
    is_covered,
    most_likely,
)
from ml_assets.model.evaluation.metrics.row_weights import mean, quantiles, sums_of
from ml_assets.model.evaluation.report_document import ThresholdFigures, ThresholdTable
from ml_assets.model.evaluation.spec import CostSection

ROC_POINTS = 200
SCORE_BINS = 40
GRID = 40


def curves(
    objective: ObjectiveName,
    y: Vector,
    predictions: Mapping[Role, Vector],
    w: Vector,
    blocks: BlockIds,
    counts: Matrix,
    confidence: float,
    lists: Lists | None = None,
) -> Curves:
    """Return all curves of one holdout with weights `w`; `counts` `[D, B]` are the redraws of its blocks, `lists` its
    lists, if any."""
    facts = facts_of(objective)
    challenger = predictions["challenger"]
    if facts.has_tokens:
        return Curves()  # `Evaluation.texts` has their numbers
    if facts.places is not None and lists is not None:
        return Curves(
            scores=_scores_of_lists(y, challenger, w),
            depth={role: ndcg_by_depth(y, p, lists, facts.places) for role, p in predictions.items()},
        )
    calibration: dict[Role, tuple[CalibrationBin, ...]] = {
        role: reliability(*_observed_and_predicted(facts, y, p), w, blocks, counts, confidence)
        for role, p in predictions.items()
    }
    if facts.has_classes:
        right, largest = hits(y, challenger), challenger.max(axis=1)
        return Curves(
            calibration=calibration,
            scores=_scores(right, largest, w, names=("wrong", "right")),
            confusion=tuple(_shares(row) for row in confusion(y, challenger, w)),
        )
    drawn = facts.pictures
    return Curves(
        calibration=calibration,
        roc={role: roc(y, p, w) for role, p in predictions.items()} if "ranking" in drawn else {},
        scores=_scores(y, challenger, w) if "scores" in drawn else _residuals(y, challenger, w),
        density=_density(y, challenger, w) if "fit" in drawn else None,
    )


def _observed_and_predicted(facts: ObjectiveFacts, y: Vector, p: Vector) -> tuple[Vector, Vector]:
    """Return the values of each row that calibration compares, `[N]` each."""
    if facts.has_classes:
        return hits(y, p), p.max(axis=1)
    return (y if facts.quantile is None else is_covered(y, p)), p


def reliability(
    y: Vector, p: Vector, w: Vector, blocks: BlockIds, counts: Matrix, confidence: float
) -> tuple[CalibrationBin, ...]:
    """Return mean label and mean prediction in 15 equal-mass bins; empty bins (from ties) are left out."""
    edges = calibration_edges(p, w)
    bins, size = len(edges) + 1, counts.shape[1]
    bin_of = calibration_bin(p, edges)
    rows = np.bincount(bin_of, minlength=bins)

    def per_block(values: Vector) -> Matrix:
        return sums_of(values, blocks * bins + bin_of, size * bins).reshape(size, bins)

    weight, labels, predicted = per_block(w), per_block(w * y), per_block(w * p)
    with np.errstate(divide="ignore", invalid="ignore"):
        redrawn = (counts @ labels) / (counts @ weight)
    found: list[CalibrationBin] = []
    for index in np.flatnonzero(rows):
        total = float(weight[:, index].sum())
        seen_in = int(np.count_nonzero(weight[:, index]))
        estimate = Estimate(float(labels[:, index].sum()) / total, redrawn[:, index], seen_in)
        found.append(
            CalibrationBin(
                rows=int(rows[index]),
                share=total / float(weight.sum()),
                predicted=float(predicted[:, index].sum()) / total,
                observed=_rounded(interval(estimate, confidence)),
            )
        )
    return tuple(found)


def ndcg_by_depth(y: Vector, p: Vector, lists: Lists, places: int) -> tuple[float, ...]:
    """Return the mean NDCG of the first place, of the first two, to twice `places`; empty if no list has a value."""
    depths = range(1, 2 * places + 1)
    values = [gain(y, p, lists, depth) for depth in depths]
    defined = ~np.isnan(values[0])
    return tuple(round(float(one[defined].mean()), 6) for one in values) if defined.any() else ()


def roc(y: Vector, p: Vector, w: Vector) -> tuple[tuple[float, float], ...]:
    """Return (false positive rate, true positive rate) for falling thresholds, at most 200; empty for one class."""
    order = np.argsort(-p, kind="stable")
    scores, positive, weight = p[order], y[order] > 0, w[order]
    hits, misses = np.cumsum(weight * positive), np.cumsum(weight * ~positive)
    if not len(y) or hits[-1] == 0 or misses[-1] == 0:
        return ()
    # Rows with equal scores count together: only the last row of a tie is a point of the curve.
    ends = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
    thinned = ends[np.unique(np.linspace(0, len(ends) - 1, ROC_POINTS - 1).round().astype(int))]
    points = zip(misses[thinned] / misses[-1], hits[thinned] / hits[-1], strict=True)
    return ((0.0, 0.0), *((round(float(x), 5), round(float(y), 5)) for x, y in points))


def confusion(y: Vector, p: Vector, w: Vector) -> Matrix:
    """Return `[K, K]`: the weight of the rows with label i whose most likely class is j."""
    classes = p.shape[1]
    cell = y.astype(np.intp) * classes + most_likely(p)
    return sums_of(w, cell, classes * classes).reshape(classes, classes)


def class_figures(names: Sequence[str], y: Vector, p: Vector, w: Vector) -> tuple[ClassFigures, ...]:
    """Return the figures of each class against the rest."""
    table = confusion(y, p, w)
    scores = f1_of_classes(y, p, w)

    def share(right: float, of: float) -> float | None:
        return float(right / of) if of > 0 else None

    return tuple(
        ClassFigures(
            name=name,
            rows=int((y == k).sum()),
            share=float(table[k].sum() / w.sum()),
            predicted=mean(p[:, k], w),
            precision=share(table[k, k], table[:, k].sum()),
            recall=share(table[k, k], table[k].sum()),
            f1=_defined(float(scores[k])),
            auc=_defined(auc((y == k).astype(np.float64), p[:, k], w)),
        )
        for k, name in enumerate(names)
    )


def _defined(value: float) -> float | None:
    return None if np.isnan(value) else value


def _scores(y: Vector, p: Vector, w: Vector, names: tuple[str, str] = ("negative", "positive")) -> Histogram:
    edges = np.linspace(0, 1, SCORE_BINS + 1)
    return _histogram(edges, p, w, {names[0]: y <= 0, names[1]: y > 0})


def _scores_of_lists(y: Vector, p: Vector, w: Vector) -> Histogram:
    edges = _edges(p, w, 0.005, SCORE_BINS)
    inside = np.clip(p, edges[0], edges[-1])
    return _histogram(edges, inside, w, {"not relevant": y <= 0, "relevant": y > 0})


def _residuals(y: Vector, p: Vector, w: Vector) -> Histogram:
    residuals = y - p
    # A few extreme rows must not squeeze all others into one bar, so the outermost bars hold all rows beyond them.
    low, high = quantiles(residuals, w, np.array([0.005, 0.995]))
    reach = max(abs(float(low)), abs(float(high))) or 1.0
    edges = np.linspace(-reach, reach, SCORE_BINS + 1)
    every = np.ones(len(y), dtype=np.bool)
    return _histogram(edges, np.clip(residuals, -reach, reach), w, {"residual": every})


def _histogram(
    edges: Vector, values: Vector, w: Vector, groups: Mapping[str, npt.NDArray[np.bool]]
) -> Histogram:
    return Histogram(
        edges=_tuple(edges),
        rows={name: int(some.sum()) for name, some in groups.items()},
        shares={
            name: _shares(np.histogram(values[some], edges, weights=w[some])[0])
            for name, some in groups.items()
        },
    )


def _density(y: Vector, p: Vector, w: Vector) -> Density:
    x_edges, y_edges = _edges(p, w, 0.002, GRID), _edges(y, w, 0.002, GRID)
    grid = np.histogram2d(p, y, bins=(x_edges, y_edges), weights=w)[0] / w.sum()
    return Density(
        prediction_edges=_tuple(x_edges),
        label_edges=_tuple(y_edges),
        shares=tuple(_tuple(row) for row in grid),
    )


def _shares(weight: Vector) -> tuple[float, ...]:
    """Return the parts of a total as shares of it; zeros without a total."""
    total = weight.sum()
    return _tuple(weight / (total if total > 0 else 1.0))


def _edges(values: Vector, w: Vector, outside: float, bins: int) -> Vector:
    """Return the edges of equal bins. A share `outside` of the values lies below them, and as many above."""
    low, high = (float(edge) for edge in quantiles(values, w, np.array([outside, 1 - outside])))
    return np.linspace(low, high if high > low else low + 1, bins + 1)


def _tuple(values: Vector) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in values)


def _rounded(one: Interval) -> Interval:
    low, high = (None if end is None else round(end, 6) for end in (one.low, one.high))
    return Interval(one.value, low, high)


SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75)
"""Shares of the validation rows that the listed thresholds decide positive, beside none, all and the chosen one."""
_SHOWN_ROWS = 1_000
"""Rows to which a cost refers, so that it is readable."""


@dataclass(frozen=True, kw_only=True)
class ScoredRows:
    """Labels (0 or 1), predicted probabilities and weights of the same rows, each `[N]`."""

    y: Vector
    p: Vector
    w: Vector

    @classmethod
    def of(cls, labels: pl.Series, p: Vector, w: Vector) -> Self:
        """Create it from labels that are numbers or booleans."""
        return cls(y=labels.cast(pl.Float64).to_numpy(), p=p, w=w)


def threshold_table(
    costs: CostSection,
    validation: ScoredRows,
    holdout: ScoredRows,
    redraws: tuple[BlockIds, Matrix],
    confidence: float,
) -> ThresholdTable:
    """Choose a threshold on `validation`, and measure it and others on `holdout`.

    `redraws` are the block of each holdout row and the counts of `draw_blocks`.
    """
    best = cheapest(costs, validation)
    # From the top: a threshold decides its own row positive, too.
    spread = {-float(one) for one in quantiles(-validation.p, validation.w, np.array(SHARES))}
    finite: list[float] = sorted({0.0, *spread, *([] if best is None else [best])}, reverse=True)
    listed = tuple(_figures(costs, one, holdout, redraws, confidence) for one in (None, *finite))
    return ThresholdTable(
        declared=costs,
        listed=listed,
        chosen=next(one for one in listed if one.threshold == best),
        validation_rows=len(validation.y),
    )


def cheapest(costs: CostSection, rows: ScoredRows) -> float | None:
    """Return the cheapest threshold on `rows`: one of their probabilities, or None to decide no row positive.

    Of equal costs, the largest threshold, which decides the fewest rows positive.
    """
    order = np.argsort(-rows.p, kind="stable")
    p, y, w = rows.p[order], rows.y[order], rows.w[order]
    # Cost of each further row decided positive, against leaving it negative.
    change = w * np.where(y > 0, -(costs.false_negative + costs.benefit), costs.false_positive)
    # Rows of equal probability are decided together.
    ends = np.flatnonzero(np.append(p[1:] != p[:-1], True))
    totals = np.cumsum(change)[ends]
    best = int(np.argmin(totals))
    return float(p[ends[best]]) if totals[best] < 0 else None


def _figures(
    costs: CostSection,
    threshold: float | None,
    rows: ScoredRows,
    redraws: tuple[BlockIds, Matrix],
    confidence: float,
) -> ThresholdFigures:
    blocks, counts = redraws
    positive = np.zeros(len(rows.p), dtype=np.bool) if threshold is None else rows.p >= threshold
    decided, ones = float(rows.w[positive].sum()), float(rows.w @ rows.y)
    hits = float(rows.w[positive] @ rows.y[positive])

    def values(y: Vector, decided: Vector) -> Vector:
        of_ones = np.where(decided > 0, -costs.benefit, costs.false_negative)
        return _SHOWN_ROWS * np.where(y > 0, of_ones, decided * costs.false_positive)

    cost = Metric(
        name="cost",
        label="cost",
        higher_is_better=False,
        on_rows=lambda y, p, w: mean(values(y, p), w),
        values=values,
    )
    form = block_form(cost, rows.y, positive.astype(np.float64), blocks, counts.shape[1], w=rows.w)
    return ThresholdFigures(
        threshold=threshold,
        positive=decided / float(rows.w.sum()),
        precision=hits / decided if decided else None,
        recall=hits / ones if ones else None,
        cost=interval(estimate(form, counts, counts.shape[1]), confidence),
    )
