"""Intervals by redraws of whole blocks, and metrics as functions of the number of times each block was drawn.

Flights of one day share its weather, so their errors are not independent. Resampling single rows would make intervals
several times too narrow. Instead, whole blocks (days) are drawn with replacement. Every model and every slice uses the
same draws, so differences are paired.

A resample is a vector of B counts, and a metric needs only the contribution of each block. The N rows are visited once,
not once per draw:

* means (`Metric.values`), RMSE and R²: per-block sums of weights, and of weighted values;
* figures of texts: per-block sums over tokens;
* macro AUC: the AUC of each class against the rest; macro F1: per-block sums per class;
* metrics of lists: per-block sums of the lists' values; a block holds whole lists;
* calibration error: per-block sums per bin, with the bins of the full holdout;
* AUC: the matrix `wins[a, b]` of the weight of pairs (positive of block a, negative of block b) that are ranked right.
  With counts n the resample has Σ n_a n_b wins[a, b] of it, so
  AUC(n) = nᵀ·wins·n / (nᵀ·positives × nᵀ·negatives). The matrix takes B² × 8 bytes, 2 MB at the most blocks of a
  holdout (`comparison.holdout_rows.MOST_BLOCKS`).

All forms are exact: with counts n they equal the metric on rows repeated n times, up to rounding.

The interval is symmetric: measured value ± the half-width that contains `confidence` of the redraws. It has two
advantages over plain percentiles. It always contains the measured value, although the redraws of a calibration error
lie above it. It also extends to several slices at once (`joint_intervals`). With few blocks the redraws vary too
little, so the half-width is multiplied by √(B/(B−1)) and by the ratio of Student's to the normal quantile.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from ml_assets.model.evaluation.metrics.list_metrics import Lists
from ml_assets.model.evaluation.metrics.metrics import (
    NATS_OF_BIT,
    Metric,
    OfLists,
    Vector,
    calibration_bin,
    calibration_edges,
    most_likely,
    rivals_beaten,
)
from ml_assets.model.evaluation.metrics.row_weights import mean as mean_of
from ml_assets.model.evaluation.metrics.row_weights import sums_of

Matrix = npt.NDArray[np.float64]
BlockIds = npt.NDArray[np.intp]
"""Block of each row, `[N]`, 0 to B − 1."""
BlockForm = Callable[[Matrix], Vector]
"""Function from counts `[D, B]` to the metric of each of the D resamples, `[D]`; NaN where it is not defined."""


def block_form(
    metric: Metric,
    y: Vector,
    p: Vector,
    blocks: BlockIds,
    count: int,
    *,
    w: Vector | None = None,
    lists: Lists | None = None,
) -> BlockForm:
    """Prepare `metric` over `count` blocks; visits the rows once. `lists` are whole in their blocks.

    Without weights `w`, each row counts once.
    """
    if metric.of_lists is not None and lists is not None:
        return _mean_of_lists(metric.of_lists, y, p, blocks, count, lists)
    w = np.ones(len(y)) if w is None else w
    if metric.values is None:
        return _FORMS[metric.name](y, p, w, blocks, count)
    mean, target = mean_form(metric.values(y, p), w, blocks, count), metric.target
    return mean if target is None else lambda counts: np.abs(mean(counts) - target)


def ratio(top: npt.NDArray[np.float64], bottom: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return top / bottom; NaN where bottom is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(bottom > 0, top / bottom, np.nan)


def mean_form(row_losses: Vector, w: Vector, blocks: BlockIds, count: int) -> BlockForm:
    """Return the mean of a value of each row, of weights `w`, over `count` blocks."""
    sums, weight = sums_of(w * row_losses, blocks, count), sums_of(w, blocks, count)
    return lambda counts: ratio(counts @ sums, counts @ weight)


def _mean_of_lists(
    of_lists: OfLists, y: Vector, p: Vector, blocks: BlockIds, count: int, lists: Lists
) -> BlockForm:
    values = of_lists(y, p, lists)
    first = np.unique(lists, return_index=True)[1]
    defined = ~np.isnan(values)
    return mean_form(values[defined], np.ones(int(defined.sum())), blocks[first][defined], count)


def _rmse(y: Vector, p: Vector, w: Vector, blocks: BlockIds, count: int) -> BlockForm:
    mean_square = mean_form((y - p) ** 2, w, blocks, count)
    return lambda counts: np.sqrt(mean_square(counts))


def _r2(y: Vector, p: Vector, w: Vector, blocks: BlockIds, count: int) -> BlockForm:
    # Σ(y − ȳ)² comes from sums of y and y². Centre first, so that the subtraction loses no digits.
    centred = y - (mean_of(y, w) if w.any() else 0.0)
    mean_square = mean_form((y - p) ** 2, w, blocks, count)
    mean = mean_form(centred, w, blocks, count)
    mean_of_squares = mean_form(centred**2, w, blocks, count)
    # A variance below this is rounding error: the label is constant.
    nothing = 1e-12 * mean_of(centred**2, w) if w.any() else 0.0

    def value(counts: Matrix) -> Vector:
        variance = mean_of_squares(counts) - mean(counts) ** 2
        return 1 - ratio(mean_square(counts), np.where(variance > nothing, variance, 0.0))

    return value


def _ece(y: Vector, p: Vector, w: Vector, blocks: BlockIds, count: int) -> BlockForm:
    edges = calibration_edges(p, w)
    bins = len(edges) + 1
    cell = blocks * bins + calibration_bin(p, edges)
    gaps = sums_of(w * (p - y), cell, count * bins).reshape(count, bins)
    weight = sums_of(w, blocks, count)
    return lambda counts: ratio(np.abs(counts @ gaps).sum(axis=1), counts @ weight)


def _auc(y: Vector, p: Vector, w: Vector, blocks: BlockIds, count: int) -> BlockForm:
    positive = y > 0
    order = np.argsort(p)  # sorted queries keep the many searches below in the cache
    first, second = order[positive[order]], order[~positive[order]]
    scores, score_blocks, weight = p[first], blocks[first], w[first]
    rivals, rival_blocks, rival_weight = p[second], blocks[second], w[second]
    wins = np.zeros((count, count))
    for block in np.unique(rival_blocks):
        inside = rival_blocks == block
        beaten = rivals_beaten(rivals[inside], rival_weight[inside], scores)
        wins[:, block] = sums_of(weight * beaten, score_blocks, count)
    positives = sums_of(weight, score_blocks, count)
    negatives = sums_of(rival_weight, rival_blocks, count)

    def value(counts: Matrix) -> Vector:
        return ratio(((counts @ wins) * counts).sum(axis=1), (counts @ positives) * (counts @ negatives))

    return value


def _macro_auc(y: Vector, p: Vector, w: Vector, blocks: BlockIds, count: int) -> BlockForm:
    forms = [_auc((y == k).astype(np.float64), p[:, k], w, blocks, count) for k in range(p.shape[1])]
    return lambda counts: _mean_defined(np.stack([form(counts) for form in forms], axis=1))


def _macro_f1(y: Vector, p: Vector, w: Vector, blocks: BlockIds, count: int) -> BlockForm:
    found, classes = most_likely(p), p.shape[1]
    label = y.astype(np.intp)

    def per_block(numbers: BlockIds, weight: Vector) -> Matrix:
        return sums_of(weight, blocks * classes + numbers, count * classes).reshape(count, classes)

    right, total = per_block(label, w * (found == label)), per_block(label, w) + per_block(found, w)
    return lambda counts: _mean_defined(ratio(2 * (counts @ right), counts @ total))


def _perplexity(y: Vector, p: Vector, w: Vector, blocks: BlockIds, count: int) -> BlockForm:
    nats = mean_form(p[:, 0], w * y, blocks, count)
    return lambda counts: np.exp(nats(counts))


def _bits_per_token(y: Vector, p: Vector, w: Vector, blocks: BlockIds, count: int) -> BlockForm:
    return mean_form(p[:, 0] / NATS_OF_BIT, w * y, blocks, count)


def _token_accuracy(y: Vector, p: Vector, w: Vector, blocks: BlockIds, count: int) -> BlockForm:
    return mean_form(p[:, 1], w * y, blocks, count)


def _mean_defined(values: Matrix) -> Vector:
    """Return the mean of each row's defined values, `[D]`; NaN if none is defined."""
    defined = ~np.isnan(values)
    return ratio(np.where(defined, values, 0.0).sum(axis=1), defined.sum(axis=1).astype(np.float64))


_FORMS: dict[str, Callable[[Vector, Vector, Vector, BlockIds, int], BlockForm]] = {
    "auc": _auc,
    "ece": _ece,
    "rmse": _rmse,
    "r2": _r2,
    "macro_auc": _macro_auc,
    "macro_f1": _macro_f1,
    "perplexity": _perplexity,
    "bits_per_token": _bits_per_token,
    "token_accuracy": _token_accuracy,
}
"""Metrics that are not means of a value of each row."""
UNDEFINED_SHARE = 0.05
"""Share of undefined redraws (one class only) above which a metric gets no interval. One infinite redraw is enough."""
_LARGEST_LEVEL = 1 - 1e-12
"""Confidence of one interval above which Student's quantile is not computed exactly."""


@dataclass(frozen=True)
class Interval:
    """A measured value and its confidence interval; None where they are not defined or not finite."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Estimate:
    """A statistic on the holdout and on each redraw of its blocks."""

    value: float
    draws: Vector
    """`[D]`; NaN for redraws on which the statistic is undefined."""
    blocks: int
    """Blocks that hold the statistic's rows."""


def draw_blocks(blocks: int, draws: int, seed: int) -> Matrix:
    """Return the number of times each block is drawn, float64 `[draws, blocks]`; each row sums to `blocks`."""
    generator = np.random.default_rng(seed)
    return generator.multinomial(blocks, np.full(blocks, 1 / blocks), size=draws).astype(np.float64)


def estimate(form: BlockForm, counts: Matrix, blocks: int) -> Estimate:
    """Measure `form` on the holdout itself and on every redraw in `counts` `[D, B]`."""
    measured = form(np.ones((1, counts.shape[1])))
    return Estimate(float(measured[0]), form(counts), blocks)


def paired(
    challenger: Estimate, comparator: Estimate, *, higher_is_better: bool, relative: bool = False
) -> Estimate:
    """Return the challenger's improvement over the comparator for each redraw; positive if the challenger is better.

    `relative`: as a share of the comparator's value (0.005 is half a percent).
    """
    sign = 1.0 if higher_is_better else -1.0
    value = sign * (challenger.value - comparator.value)
    with np.errstate(invalid="ignore"):  # two infinite losses have no difference
        draws = sign * (challenger.draws - comparator.draws)
        if relative:
            draws = draws / np.where(comparator.draws != 0, np.abs(comparator.draws), np.nan)
            value = value / abs(comparator.value) if comparator.value else math.nan
    return Estimate(value, draws, challenger.blocks)


def interval(
    one: Estimate, confidence: float, *, lowest: float = -math.inf, highest: float = math.inf
) -> Interval:
    """Return the interval of one statistic, cut to the range `lowest`..`highest`."""
    (found,) = joint_intervals([one], confidence, lowest=lowest, highest=highest)
    return found


def joint_intervals(
    estimates: Sequence[Estimate],
    confidence: float,
    *,
    lowest: float = -math.inf,
    highest: float = math.inf,
) -> list[Interval]:
    """Return joint intervals: in `confidence` of the redraws, *all* statistics lie within their intervals.

    Intervals are cut to the range `lowest`..`highest`.

    Each interval is `value ± c × standard error` with the same c for all (the max-t method). Without it, one of
    fourteen carriers would look worse by luck. For a single statistic, it is the plain symmetric interval.
    """
    usable = [one for one in estimates if _defined(one)]
    if not usable:
        return [Interval(_finite(one.value)) for one in estimates]
    distance = np.stack([np.abs(one.draws - one.value) for one in usable])
    errors = np.sqrt(np.nanmean(distance**2, axis=1))
    # A statistic that never varies (a model against itself) has error 0, so any scale works.
    scale = np.where(errors > 0, errors, 1.0)
    farthest = np.where(np.isnan(distance), -1.0, distance / scale[:, None]).max(axis=0)
    critical = float(np.quantile(farthest[farthest >= 0], confidence))
    level = confidence if len(usable) == 1 else level_of(critical, confidence)
    intervals: list[Interval] = []
    for one in estimates:
        if not _defined(one):
            intervals.append(Interval(_finite(one.value)))
            continue
        error = float(np.sqrt(np.nanmean((one.draws - one.value) ** 2)))
        half = critical * error * widening(one.blocks, level)
        intervals.append(Interval(one.value, max(one.value - half, lowest), min(one.value + half, highest)))
    return intervals


def among(one: Interval, statistics: int, blocks: int, confidence: float) -> Interval:
    """Return the interval of one statistic, widened so that those of `statistics` hold jointly (Bonferroni).

    For intervals whose redraws are gone; with redraws, `joint_intervals` is narrower.
    """
    if one.value is None or one.low is None or one.high is None or blocks < 2:
        return one
    level = 1 - (1 - confidence) / statistics
    wider = NormalDist().inv_cdf((1 + level) / 2) / NormalDist().inv_cdf((1 + confidence) / 2)
    wider *= widening(blocks, level) / widening(blocks, confidence)
    return Interval(
        one.value, one.value - wider * (one.value - one.low), one.value + wider * (one.high - one.value)
    )


def level_of(critical: float, confidence: float) -> float:
    """Return the confidence of one interval among several with this joint critical value.

    Few blocks matter most far out: with 40 blocks and 12 slices, a correction at 95 % missed in 8 % of simulations.
    """
    return min(max(confidence, 2 * NormalDist().cdf(critical) - 1), _LARGEST_LEVEL)


def widening(blocks: int, confidence: float) -> float:
    """Return the factor on a half-width that corrects for few blocks: 1.03 for 61 blocks, 1.28 for 8, at 95 %.

    The factor is √(B/(B−1)), for the variance of a mean of B, times the ratio of Student's to the normal quantile
    (Cornish–Fisher expansion, within 1 % for 4 degrees of freedom or more).
    """
    free = blocks - 1
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    student = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    student += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    return math.sqrt(blocks / free) * student / z


def _defined(one: Estimate) -> bool:
    if one.blocks <= 1 or not math.isfinite(one.value) or np.isinf(one.draws).any():
        return False
    return float(np.isnan(one.draws).mean()) <= UNDEFINED_SHARE


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
