"""Sums over weighted rows: means and quantiles. A row of weight 2 counts as two rows; only ratios of weights count.

Rows without weights have the weight 1, so there is no second, unweighted form of a metric.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Vector = npt.NDArray[np.float64]


class EvaluationInputError(ValueError):
    """The holdout or the predictions cannot be evaluated: wrong shape, no label, no weight, no rows. The message has
    the remedy. A rejection is not an error."""


_ROUNDED = 1e-9
"""Share of the total weight that rounding of its sums explains."""


def sums_of(values: Vector, numbers: npt.NDArray[np.integer[Any]], count: int) -> Vector:
    """Return the sum of the `values` `[N]` of each of `count` numbers, `[count]`. `numbers` `[N]` begin at 0."""
    return np.bincount(numbers, weights=values, minlength=count).astype(np.float64)


def mean(values: Vector, w: Vector) -> float:
    """Return the mean of `values` `[N]` with weights `w` `[N]`; NaN without weight."""
    total = w.sum()
    return float((values * w).sum() / total) if total > 0 else float("nan")


def quantiles(values: Vector, w: Vector, shares: Vector) -> Vector:
    """Return for each of `shares` the smallest of `values` at or below which lies that share of the weight.

    It is one of the values, so the result depends neither on the unit of the weights nor on how often all rows are
    repeated. Quantiles between two values would.
    """
    order = np.argsort(values)
    up_to = np.cumsum(w[order])
    wanted = (shares - _ROUNDED) * float(up_to[-1])
    at = np.searchsorted(up_to, wanted, "left")
    return values[order][np.minimum(at, len(values) - 1)]


def quantiles_of_rows(values: Vector, w: Vector, share: float) -> Vector:
    """Return `quantiles` of one share in each row of `values` `[N, L]`, `[N]`; 0 for a row without weight."""
    order = np.argsort(np.where(w > 0, values, np.inf), axis=1, kind="stable")
    up_to = np.cumsum(np.take_along_axis(w, order, axis=1), axis=1)
    at = (up_to < (share - _ROUNDED) * up_to[:, -1:]).sum(axis=1, keepdims=True)
    found = np.take_along_axis(np.take_along_axis(values, order, axis=1), at, axis=1)[:, 0]
    return np.where(up_to[:, -1] > 0, found, 0.0)


def quantile_in_group(value: pl.Expr, w: pl.Expr, share: float) -> pl.Expr:
    """Return `quantiles` of one share as an aggregation of polars, for each group of a `group_by`."""
    up_to = w.sort_by(value).cum_sum()
    return value.sort().get((up_to < (share - _ROUNDED) * w.sum()).sum())


def raw_weights_of(frame: pl.DataFrame, column: str | None) -> Vector:
    """Return the weights of the rows in the unit of `column`, float64 `[N]`; 1 for each row without a `column`.

    Raises `EvaluationInputError` if the column is missing, or if a weight is null, not a finite number or not above 0.
    """
    if column is None:
        return np.ones(frame.height)
    if column not in frame.columns:
        raise EvaluationInputError(
            f"the rows have no column {column!r} (features.weight); they have {', '.join(frame.columns)}"
        )
    w = frame.get_column(column).cast(pl.Float64).fill_null(float("nan")).to_numpy()
    if wrong := int((~(np.isfinite(w) & (w > 0))).sum()):
        raise EvaluationInputError(
            f"{wrong} of {len(w)} rows have no weight above 0 in {column!r} (features.weight): leave rows of weight 0 "
            "out before evaluating, as a snapshot does"
        )
    return w


def weights_of(frame: pl.DataFrame, column: str | None) -> Vector:
    """Return the weights of the rows divided by their mean, float64 `[N]`; 1 for each row without a `column`.

    Metrics multiply and square sums of weights, so weights in any unit would leave the range of float64.

    Raises `EvaluationInputError` as `raw_weights_of` does, and if a weight is too small beside the largest.
    """
    w = raw_weights_of(frame, column)
    if column is None or not len(w):
        return w
    divided = w / w.max()  # first, because the sum of the weights themselves may be infinite
    divided /= divided.mean()
    if lost := int((divided < np.finfo(np.float32).tiny).sum()):
        raise EvaluationInputError(
            f"{lost} of {len(w)} rows have a weight in {column!r} (features.weight) that is too small "
            "beside the largest: give such rows the weight 0"
        )
    return divided
