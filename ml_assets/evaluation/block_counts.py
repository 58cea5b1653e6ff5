"""Metrics as functions of the number of times each block was drawn. Drawing and intervals are in `bootstrap.py`.

A block (one day of the holdout) is always drawn as a whole. A resample is therefore a vector of B counts, and a metric
needs only the contribution of each block. The N rows are visited once, not once per draw.

* means (`Metric.values`), RMSE and R²: per-block sums;
* macro AUC: the AUC of each class against the rest; macro F1: per-block sums per class;
* metrics of lists: per-block sums of the lists' values; a block holds whole lists;
* calibration error: per-block sums per bin, with the bins of the full holdout;
* AUC: the matrix `wins[a, b]` of pairs (positive of block a, negative of block b) that are ranked right. With
  counts w the resample has Σ w_a w_b wins[a, b] such pairs, so
  AUC(w) = wᵀ·wins·w / (wᵀ·positives × wᵀ·negatives). The matrix takes B² × 8 bytes. Above `MOST_PAIRED_BLOCKS` blocks,
  each resample visits the sorted rows instead, which takes more time and little memory.

All forms are exact: with counts w they equal the metric on rows repeated w times, up to rounding.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ml_assets.evaluation.list_metrics import Lists
from ml_assets.evaluation.metrics import (
    Metric,
    OfLists,
    Vector,
    calibration_bin,
    calibration_edges,
    most_likely,
)

Matrix = npt.NDArray[np.float64]
BlockIds = npt.NDArray[np.intp]
"""Block of each row, `[N]`, 0 to B − 1."""
BlockForm = Callable[[Matrix], Vector]
"""Function from counts `[D, B]` to the metric of each of the D resamples, `[D]`; NaN where it is not defined."""


MOST_PAIRED_BLOCKS = 2_048
"""Blocks up to which AUC holds the matrix of block pairs: 32 MiB."""
_CELLS = 1 << 20
"""Resamples times rows that AUC without that matrix processes together: 8 MiB for each of a few arrays."""


def block_form(
    metric: Metric, y: Vector, p: Vector, blocks: BlockIds, count: int, lists: Lists | None = None
) -> BlockForm:
    """Prepare `metric` over `count` blocks; visits the rows once. `lists` are whole in their blocks."""
    if metric.of_lists is not None and lists is not None:
        return _mean_of_lists(metric.of_lists, y, p, blocks, count, lists)
    if metric.values is None:
        return _FORMS[metric.name](y, p, blocks, count)
    mean, target = mean_form(metric.values(y, p), blocks, count), metric.target
    return mean if target is None else lambda counts: np.abs(mean(counts) - target)


def ratio(top: npt.NDArray[np.float64], bottom: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return top / bottom; NaN where bottom is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(bottom > 0, top / bottom, np.nan)


def mean_form(row_losses: Vector, blocks: BlockIds, count: int) -> BlockForm:
    """Return the mean of a value of each row over `count` blocks."""
    sums = np.bincount(blocks, weights=row_losses, minlength=count)
    rows = np.bincount(blocks, minlength=count).astype(np.float64)
    return lambda counts: ratio(counts @ sums, counts @ rows)


def _mean_of_lists(
    of_lists: OfLists, y: Vector, p: Vector, blocks: BlockIds, count: int, lists: Lists
) -> BlockForm:
    values = of_lists(y, p, lists)
    first = np.unique(lists, return_index=True)[1]
    defined = ~np.isnan(values)
    return mean_form(values[defined], blocks[first][defined], count)


def _rmse(y: Vector, p: Vector, blocks: BlockIds, count: int) -> BlockForm:
    mean_square = mean_form((y - p) ** 2, blocks, count)
    return lambda counts: np.sqrt(mean_square(counts))


def _r2(y: Vector, p: Vector, blocks: BlockIds, count: int) -> BlockForm:
    # Σ(y − ȳ)² comes from sums of y and y². Centre first, so that the subtraction loses no digits.
    centred = y - (y.mean() if len(y) else 0.0)
    mean_square = mean_form((y - p) ** 2, blocks, count)
    mean = mean_form(centred, blocks, count)
    mean_of_squares = mean_form(centred**2, blocks, count)
    # A variance below this is rounding error: the label is constant.
    nothing = 1e-12 * float((centred**2).mean()) if len(y) else 0.0

    def value(counts: Matrix) -> Vector:
        variance = mean_of_squares(counts) - mean(counts) ** 2
        return 1 - ratio(mean_square(counts), np.where(variance > nothing, variance, 0.0))

    return value


def _ece(y: Vector, p: Vector, blocks: BlockIds, count: int) -> BlockForm:
    edges = calibration_edges(p)
    bins = len(edges) + 1
    cell = blocks * bins + calibration_bin(p, edges)
    gaps = np.bincount(cell, weights=p - y, minlength=count * bins).reshape(count, bins)
    rows = np.bincount(blocks, minlength=count).astype(np.float64)
    return lambda counts: ratio(np.abs(counts @ gaps).sum(axis=1), counts @ rows)


def _auc(y: Vector, p: Vector, blocks: BlockIds, count: int) -> BlockForm:
    return (_auc_by_pairs if count <= MOST_PAIRED_BLOCKS else _auc_by_rows)(y, p, blocks, count)


def _auc_by_rows(y: Vector, p: Vector, blocks: BlockIds, count: int) -> BlockForm:
    order = np.argsort(p, kind="stable")
    scores, positive, block_of = p[order], (y > 0)[order], blocks[order]
    # Ends of the runs of equal scores: a pair within a run counts half.
    ends = np.flatnonzero(np.append(scores[1:] != scores[:-1], True)) if len(scores) else np.empty(0, np.intp)
    together = max(1, _CELLS // max(1, len(scores)))

    def value(counts: Matrix) -> Vector:
        return np.concatenate([part(counts[at : at + together]) for at in range(0, len(counts), together)])

    def part(counts: Matrix) -> Vector:
        drawn = counts[:, block_of]
        won, lost = (
            np.diff(np.cumsum(np.where(side, drawn, 0.0), axis=1)[:, ends], axis=1, prepend=0.0)
            for side in (positive, ~positive)
        )
        wins = (won * (np.cumsum(lost, axis=1) - lost / 2)).sum(axis=1)
        return ratio(wins, won.sum(axis=1) * lost.sum(axis=1))

    return value


def _auc_by_pairs(y: Vector, p: Vector, blocks: BlockIds, count: int) -> BlockForm:
    positive = y > 0
    order = np.argsort(p[positive])  # sorted queries keep the many searches below in the cache
    scores, score_blocks = p[positive][order], blocks[positive][order]
    wins = np.zeros((count, count))
    negative_scores, negative_blocks = p[~positive], blocks[~positive]
    for block in np.unique(negative_blocks):
        rivals = np.sort(negative_scores[negative_blocks == block])
        beaten = np.searchsorted(rivals, scores, "left") + np.searchsorted(rivals, scores, "right")
        wins[:, block] = np.bincount(score_blocks, weights=beaten / 2, minlength=count)
    positives = np.bincount(score_blocks, minlength=count).astype(np.float64)
    negatives = np.bincount(negative_blocks, minlength=count).astype(np.float64)

    def value(counts: Matrix) -> Vector:
        return ratio(((counts @ wins) * counts).sum(axis=1), (counts @ positives) * (counts @ negatives))

    return value


def _macro_auc(y: Vector, p: Vector, blocks: BlockIds, count: int) -> BlockForm:
    forms = [_auc((y == k).astype(np.float64), p[:, k], blocks, count) for k in range(p.shape[1])]
    return lambda counts: _mean_defined(np.stack([form(counts) for form in forms], axis=1))


def _macro_f1(y: Vector, p: Vector, blocks: BlockIds, count: int) -> BlockForm:
    found, classes = most_likely(p), p.shape[1]
    label = y.astype(np.intp)

    def per_block(numbers: BlockIds, rows: npt.NDArray[np.bool]) -> Matrix:
        cell = (blocks * classes + numbers)[rows]
        return np.bincount(cell, minlength=count * classes).reshape(count, classes).astype(np.float64)

    every = np.ones(len(y), dtype=np.bool)
    right, total = per_block(label, found == label), per_block(label, every) + per_block(found, every)
    return lambda counts: _mean_defined(ratio(2 * (counts @ right), counts @ total))


def _mean_defined(values: Matrix) -> Vector:
    """Return the mean of each row's defined values, `[D]`; NaN if none is defined."""
    defined = ~np.isnan(values)
    return ratio(np.where(defined, values, 0.0).sum(axis=1), defined.sum(axis=1).astype(np.float64))


_FORMS: dict[str, Callable[[Vector, Vector, BlockIds, int], BlockForm]] = {
    "auc": _auc,
    "ece": _ece,
    "rmse": _rmse,
    "r2": _r2,
    "macro_auc": _macro_auc,
    "macro_f1": _macro_f1,
}
"""Metrics that are not means of a value of each row."""
