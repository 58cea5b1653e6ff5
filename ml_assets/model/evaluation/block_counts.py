"""Metrics as functions of the number of times each block was drawn. Drawing and intervals are in `bootstrap.py`.

A block (one day of the holdout) is always drawn as a whole. A resample is therefore a vector of B counts, and a metric
needs only the contribution of each block. The N rows are visited once, not once per draw.

* means (`Metric.values`), RMSE and R²: per-block sums of weights, and of weighted values;
* figures of texts: per-block sums over tokens;
* macro AUC: the AUC of each class against the rest; macro F1: per-block sums per class;
* metrics of lists: per-block sums of the lists' values; a block holds whole lists;
* calibration error: per-block sums per bin, with the bins of the full holdout;
* AUC: the matrix `wins[a, b]` of the weight of pairs (positive of block a, negative of block b) that are ranked right.
  With counts n the resample has Σ n_a n_b wins[a, b] of it, so
  AUC(n) = nᵀ·wins·n / (nᵀ·positives × nᵀ·negatives). The matrix takes B² × 8 bytes, 2 MB at the most blocks of a
  holdout (`holdout.MOST_BLOCKS`).

All forms are exact: with counts n they equal the metric on rows repeated n times, up to rounding.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ml_assets.model.evaluation.list_metrics import Lists
from ml_assets.model.evaluation.metrics import (
    NATS_OF_BIT,
    Metric,
    OfLists,
    Vector,
    calibration_bin,
    calibration_edges,
    most_likely,
    rivals_beaten,
)
from ml_assets.model.evaluation.row_weights import mean as mean_of

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


def block_sums(values: Vector, blocks: BlockIds, count: int) -> Vector:
    """Return the sum of `values` `[N]` over each block, `[B]`."""
    return np.bincount(blocks, weights=values, minlength=count).astype(np.float64)


def mean_form(row_losses: Vector, w: Vector, blocks: BlockIds, count: int) -> BlockForm:
    """Return the mean of a value of each row, of weights `w`, over `count` blocks."""
    sums, weight = block_sums(w * row_losses, blocks, count), block_sums(w, blocks, count)
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
    gaps = block_sums(w * (p - y), cell, count * bins).reshape(count, bins)
    weight = block_sums(w, blocks, count)
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
        wins[:, block] = block_sums(weight * beaten, score_blocks, count)
    positives = block_sums(weight, score_blocks, count)
    negatives = block_sums(rival_weight, rival_blocks, count)

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
        return block_sums(weight, blocks * classes + numbers, count * classes).reshape(count, classes)

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
