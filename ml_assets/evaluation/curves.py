"""Numbers behind the plots of a report, small enough for JSON. Drawing is in `pictures.py`."""

from collections.abc import Mapping, Sequence

import numpy as np

from ml_assets.evaluation.block_counts import BlockIds, Matrix
from ml_assets.evaluation.bootstrap import Estimate, Interval, interval
from ml_assets.evaluation.evaluation_document import (
    CalibrationBin,
    ClassFigures,
    Curves,
    Density,
    Histogram,
    Role,
)
from ml_assets.evaluation.list_metrics import Lists, gain
from ml_assets.evaluation.metrics import (
    Vector,
    auc,
    calibration_bin,
    calibration_edges,
    f1_of_classes,
    hits,
    is_covered,
    most_likely,
)
from ml_assets.objective_facts import ObjectiveName, facts_of

ROC_POINTS = 200
SCORE_BINS = 40
GRID = 40


def curves(
    objective: ObjectiveName,
    y: Vector,
    predictions: Mapping[Role, Vector],
    blocks: BlockIds,
    counts: Matrix,
    confidence: float,
    lists: Lists | None = None,
) -> Curves:
    """Return all curves of one holdout; `counts` `[D, B]` are the redraws of its blocks, `lists` its lists, if any."""
    facts = facts_of(objective)
    drawn = facts.pictures
    challenger = predictions["challenger"]
    if facts.has_classes:
        right, largest = hits(y, challenger), challenger.max(axis=1)
        calibration: dict[Role, tuple[CalibrationBin, ...]] = {
            role: reliability(hits(y, p), p.max(axis=1), blocks, counts, confidence)
            for role, p in predictions.items()
        }
        return Curves(
            calibration=calibration,
            roc={},
            scores=_scores(right, largest, names=("wrong", "right")),
            density=None,
            confusion=confusion(y, challenger),
        )
    if facts.places is not None and lists is not None:
        return Curves(
            calibration={},
            roc={},
            scores=_scores_of_lists(y, challenger),
            density=None,
            depth={role: ndcg_by_depth(y, p, lists, facts.places) for role, p in predictions.items()},
        )
    if facts.quantile is not None:
        covered: dict[Role, tuple[CalibrationBin, ...]] = {
            role: reliability(is_covered(y, p), p, blocks, counts, confidence)
            for role, p in predictions.items()
        }
        return Curves(
            calibration=covered, roc={}, scores=_residuals(y, challenger), density=_density(y, challenger)
        )
    return Curves(
        calibration={role: reliability(y, p, blocks, counts, confidence) for role, p in predictions.items()},
        roc={role: roc(y, p) for role, p in predictions.items()} if "ranking" in drawn else {},
        scores=_scores(y, challenger) if "scores" in drawn else _residuals(y, challenger),
        density=_density(y, challenger) if "fit" in drawn else None,
    )


def reliability(
    y: Vector, p: Vector, blocks: BlockIds, counts: Matrix, confidence: float
) -> tuple[CalibrationBin, ...]:
    """Return mean label and mean prediction in 15 equal-mass bins; empty bins (from ties) are left out."""
    edges = calibration_edges(p)
    bins, size = len(edges) + 1, counts.shape[1]
    cell = blocks * bins + calibration_bin(p, edges)

    def per_block(weights: Vector | None) -> Matrix:
        return (
            np.bincount(cell, weights=weights, minlength=size * bins).reshape(size, bins).astype(np.float64)
        )

    rows, labels, predicted = per_block(None), per_block(y), per_block(p)
    with np.errstate(divide="ignore", invalid="ignore"):
        redrawn = (counts @ labels) / (counts @ rows)
    found: list[CalibrationBin] = []
    for index in np.flatnonzero(rows.sum(axis=0)):
        total = float(rows[:, index].sum())
        seen_in = int(np.count_nonzero(rows[:, index]))
        estimate = Estimate(float(labels[:, index].sum()) / total, redrawn[:, index], seen_in)
        found.append(
            CalibrationBin(
                rows=int(total),
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


def roc(y: Vector, p: Vector) -> tuple[tuple[float, float], ...]:
    """Return (false positive rate, true positive rate) for falling thresholds, at most 200; empty for one class."""
    order = np.argsort(-p, kind="stable")
    scores, positive = p[order], (y[order] > 0).astype(np.float64)
    hits, misses = np.cumsum(positive), np.cumsum(1 - positive)
    if not len(y) or hits[-1] == 0 or misses[-1] == 0:
        return ()
    # Rows with equal scores count together: only the last row of a tie is a point of the curve.
    ends = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
    thinned = ends[np.unique(np.linspace(0, len(ends) - 1, ROC_POINTS - 1).round().astype(int))]
    points = zip(misses[thinned] / misses[-1], hits[thinned] / hits[-1], strict=True)
    return ((0.0, 0.0), *((round(float(x), 5), round(float(y), 5)) for x, y in points))


def confusion(y: Vector, p: Vector) -> tuple[tuple[int, ...], ...]:
    """Return `[i][j]`: rows with label i whose most likely class is j."""
    classes = p.shape[1]
    cell = y.astype(np.intp) * classes + most_likely(p)
    table = np.bincount(cell, minlength=classes * classes).reshape(classes, classes)
    return tuple(tuple(int(n) for n in row) for row in table)


def class_figures(names: Sequence[str], y: Vector, p: Vector) -> tuple[ClassFigures, ...]:
    """Return the figures of each class against the rest."""
    table = np.asarray(confusion(y, p))
    scores = f1_of_classes(y, p)

    def share(right: int, of: int) -> float | None:
        return right / of if of else None

    return tuple(
        ClassFigures(
            name=name,
            rows=int(table[k].sum()),
            predicted=float(p[:, k].mean()),
            precision=share(int(table[k, k]), int(table[:, k].sum())),
            recall=share(int(table[k, k]), int(table[k].sum())),
            f1=_defined(float(scores[k])),
            auc=_defined(auc((y == k).astype(np.float64), p[:, k])),
        )
        for k, name in enumerate(names)
    )


def _defined(value: float) -> float | None:
    return None if np.isnan(value) else value


def _scores(y: Vector, p: Vector, names: tuple[str, str] = ("negative", "positive")) -> Histogram:
    edges = np.linspace(0, 1, SCORE_BINS + 1)
    return _histogram(edges, {names[0]: p[y <= 0], names[1]: p[y > 0]})


def _scores_of_lists(y: Vector, p: Vector) -> Histogram:
    low, high = (float(end) for end in np.quantile(p, [0.005, 0.995]))
    edges = np.linspace(low, high if high > low else low + 1, SCORE_BINS + 1)
    inside = np.clip(p, edges[0], edges[-1])
    return _histogram(edges, {"not relevant": inside[y <= 0], "relevant": inside[y > 0]})


def _residuals(y: Vector, p: Vector) -> Histogram:
    residuals = y - p
    # A few extreme rows must not squeeze all others into one bar, so the outermost bars hold all rows beyond them.
    low, high = np.quantile(residuals, [0.005, 0.995])
    reach = max(abs(float(low)), abs(float(high))) or 1.0
    edges = np.linspace(-reach, reach, SCORE_BINS + 1)
    return _histogram(edges, {"residual": np.clip(residuals, -reach, reach)})


def _histogram(edges: Vector, groups: Mapping[str, Vector]) -> Histogram:
    return Histogram(
        edges=_tuple(edges),
        counts={name: tuple(int(n) for n in np.histogram(some, edges)[0]) for name, some in groups.items()},
    )


def _density(y: Vector, p: Vector) -> Density:
    x_edges, y_edges = _span(p), _span(y)
    grid = np.histogram2d(p, y, bins=(x_edges, y_edges))[0].astype(int)
    return Density(
        prediction_edges=_tuple(x_edges),
        label_edges=_tuple(y_edges),
        counts=tuple(tuple(int(n) for n in row) for row in grid),
    )


def _span(values: Vector) -> Vector:
    low, high = (float(edge) for edge in np.quantile(values, [0.002, 0.998]))
    return np.linspace(low, high if high > low else low + 1, GRID + 1)


def _tuple(values: Vector) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in values)


def _rounded(one: Interval) -> Interval:
    low, high = (None if end is None else round(end, 6) for end in (one.low, one.high))
    return Interval(one.value, low, high)
