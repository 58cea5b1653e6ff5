"""Reference model: a regression with an L2 penalty on the challenger's own columns.

Its kind depends on the objective: logistic, linear, quantile or Poisson.

It shows the worth of the columns without a network. It uses Newton's method on the normal equations: exact, with equal
results on every call. 250,000 rows × 40 columns take a few seconds; scikit-learn's L-BFGS takes half a minute for all
penalties.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (scipy is not typed)

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import linalg, sparse
from threadpoolctl import threadpool_limits

from ml_assets.foundation.objective_facts import Link, ObjectiveName, facts_of
from ml_assets.model.evaluation.comparison.holdout_rows import lists_of
from ml_assets.model.evaluation.metrics.metrics import Vector, metric_named
from ml_assets.model.evaluation.metrics.row_weights import mean, quantiles, weights_of

Encode = Callable[[pl.DataFrame], tuple[NDArray[np.float32], NDArray[np.int32]]]
"""Rows → standardised numbers `[rows, F]`, NaN where missing, and category ids `[rows, C]`: `FittedState.encode`."""

_Loss = Callable[[Vector, Vector], tuple[Vector, Vector, Vector]]
"""(sums, labels) → each row's loss, and its first and second derivative."""

PENALTIES = (10_000.0, 1_000.0, 100.0, 10.0, 1.0)
"""Penalties to try on the validation rows, strongest first. The weight of a category with as many rows as the penalty
is shrunk to about half. Rows count by their weight, in units of the mean weight."""
_MOST_VALUES = 10_000_000
"""Largest rows × columns to fit."""
MOST_CATEGORIES = 1_000
"""Categories, over all columns, that get a weight: the most frequent. The others have no effect."""

_STEPS, _HALVINGS = 50, 10
_SMALL_GRADIENT = 1e-6
"""Gradient per row at which the optimum counts as reached."""
_ENOUGH = 0.3
_LARGEST_EXPONENT = 80.0
"""Bound of an expected count, as a logarithm. A row far from all training rows must not make it infinite."""
_ROUNDED = 0.1
"""Width of the rounded kink of the pinball loss, in standard deviations of the label."""
_IN_CACHE = 16_384
"""Rows that are summed at once."""
AT_ONCE = 100_000
"""Rows that are predicted at once."""


def most_rows_to_fit(columns: int) -> int:
    """Return the number of rows on which a regression on so many columns is fitted, and on which its penalty is chosen.

    Of larger windows, the caller takes evenly spread rows.
    """
    return _MOST_VALUES // max(columns, 1)


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """Positions of encoded values among the weights: intercept, numbers, missing marks; then categories."""

    missing: NDArray[np.intp]
    """Numeric columns that had missing values in training; each has its own mark."""
    places: tuple[NDArray[np.intp], ...]
    """Category column → id → place among the categories' weights; `count` for an id without a weight."""
    count: int
    """Categories with a weight."""

    @classmethod
    def of(cls, numeric: NDArray[np.float32], category: NDArray[np.int32]) -> Self:
        """Choose the columns and categories from encoded training rows."""
        rows = [np.bincount(ids) for ids in category.T]
        seen = sorted(
            ((int(n), -c, -i) for c, ids in enumerate(rows) for i, n in enumerate(ids) if n), reverse=True
        )
        kept = seen[:MOST_CATEGORIES]
        places = tuple(np.full(len(ids) + 1, len(kept), dtype=np.intp) for ids in rows)
        for place, (_, c, i) in enumerate(kept):
            places[-c][-i] = place
        return cls(missing=np.flatnonzero(np.isnan(numeric).any(axis=0)), places=places, count=len(kept))

    def dense(self, numeric: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return `[rows, 1 + F + missing]`. A missing number becomes 0, which is the mean, and sets its mark."""
        ones = np.ones((len(numeric), 1))
        filled = np.nan_to_num(numeric.astype(np.float64), nan=0.0)
        return np.hstack([ones, filled, np.isnan(numeric[:, self.missing]).astype(np.float64)])

    def sparse(self, category: NDArray[np.int32]) -> NDArray[np.intp]:
        """Return the places of the categories, `[rows, C]`; an id that training has not seen has place `count`."""
        found = [
            places[np.minimum(ids, len(places) - 1)]
            for places, ids in zip(self.places, category.T, strict=True)
        ]
        return np.stack(found, axis=1) if found else np.empty((len(category), 0), dtype=np.intp)


@dataclass(frozen=True, kw_only=True)
class LinearReference:
    """A fitted regression."""

    link: Link
    kind: str
    """Kind of the regression, such as `logistic`."""
    encode: Encode
    columns: _Columns
    weights: Vector
    """Intercept, numbers, missing marks, categories."""
    offset: float
    """Mean of the training labels if predictions are values, else 0."""
    scale: float
    """Standard deviation of the training labels if predictions are values, their mean if predictions are counts, else
    1. So a penalty means the same in every unit."""
    penalty: float
    rows: int
    """Training rows that the fit used."""
    all_rows: int
    """All training rows."""

    @classmethod
    def path(
        cls, rows: "_Encoded", y: Vector, link: Link, kind: str, quantile: float | None = None
    ) -> list[Self]:
        """Fit labels `y` once for each penalty of `PENALTIES`; their `quantile` if one is given."""
        offset, scale = _UNITS[link](y, rows.w)
        loss = _LOSSES[link] if quantile is None else partial(_pinball, quantile)
        problem = _Problem.of(rows, (y - offset) / scale, loss)
        # One thread, so that the order of additions and the result do not depend on the machine's cores.
        with threadpool_limits(limits=1, user_api="blas"):
            found = list(problem.path(PENALTIES))
        if quantile is not None:
            # The smoothed loss misses the share by a little: shift the intercept until the training rows have it.
            for weights in found:
                (shift,) = quantiles(problem.y - problem.sums(weights), rows.w, np.array([quantile]))
                weights[0] += shift
        return [
            cls(
                link=link,
                kind=kind,
                encode=rows.encode,
                columns=rows.columns,
                weights=weights,
                offset=offset,
                scale=scale,
                penalty=penalty,
                rows=len(y),
                all_rows=rows.all_rows,
            )
            for penalty, weights in zip(PENALTIES, found, strict=True)
        ]

    def predict(self, frame: pl.DataFrame) -> Vector:
        """Return the prediction of each row, a probability, a value or a count, float64 `[N]`."""
        parts = [self._sums(part) for part in frame.iter_slices(AT_ONCE)]
        sums = np.concatenate(parts) if parts else np.empty(0)
        return self.offset + self.scale * _LINKS[self.link](sums)

    def _sums(self, frame: pl.DataFrame) -> Vector:
        numeric, category = self.encode(frame)
        dense = self.columns.dense(numeric)
        # The appended 0 is the weight of categories at place `count`.
        of_categories = np.append(self.weights[dense.shape[1] :], 0.0)
        return dense @ self.weights[: dense.shape[1]] + of_categories[self.columns.sparse(category)].sum(
            axis=1
        )

    @property
    def name(self) -> str:
        """Name in a report, with the penalty and, if the fit used only some rows, their number."""
        if len(self.weights) == 1:
            return f"{self.kind} regression without columns: the mean"
        some = f", fitted on {self.rows:,} of {self.all_rows:,} rows" if self.rows < self.all_rows else ""
        return f"{self.kind} regression on the same columns (penalty {self.penalty:g}, chosen on validation{some})"


@dataclass(frozen=True, kw_only=True)
class OneAgainstRest:
    """A fitted regression for each class against the rest; their probabilities are divided by their sum."""

    classes: tuple[LinearReference, ...]

    @classmethod
    def path(cls, rows: "_Encoded", classes: int, kind: str) -> list[Self]:
        """Fit all classes once for each penalty of `PENALTIES`. Labels are numbers of classes, from 0."""
        paths = [
            LinearReference.path(rows, (rows.y == k).astype(np.float64), "sigmoid", kind)
            for k in range(classes)
        ]
        return [cls(classes=fitted) for fitted in zip(*paths, strict=True)]

    def predict(self, frame: pl.DataFrame) -> Vector:
        """Return the probability of each class, float64 `[N, K]`."""
        alone = np.stack([one.predict(frame) for one in self.classes], axis=1)
        return alone / np.maximum(alone.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)

    @property
    def name(self) -> str:
        """Name in a report, as that of `LinearReference`."""
        return self.classes[0].name.replace(" regression", " regression of each class against the rest", 1)


def reference_model(
    train: pl.DataFrame,
    validation: pl.DataFrame,
    encode: Encode,
    objective: ObjectiveName,
    *,
    label: str,
    weight: str | None = None,
    classes: int = 0,
    group: str | None = None,
    all_rows: int | None = None,
) -> LinearReference | OneAgainstRest:
    """Fit the reference model of an objective on the training rows, with the penalty that predicts the validation rows
    best.

    Best of `PENALTIES` is the best metric that the objective names (`chosen_by`); among equals, the strongest penalty.
    `classes` is the number of classes of the label, whose labels are numbers from 0. `weight` is the column with the
    weights of the rows, if they have any. `group` is the column with the list of a row, if rows form lists: the
    regression predicts each row's label by itself. No label may be null. `train` and `validation` have at most
    `most_rows_to_fit` rows; `all_rows` is the number of all training rows, if there are more.
    """
    facts = facts_of(objective)
    rows = _Encoded.of(train, encode, label, weight, train.height if all_rows is None else all_rows)
    path: Sequence[LinearReference | OneAgainstRest] = (
        OneAgainstRest.path(rows, classes, facts.reference)
        if facts.has_classes
        else LinearReference.path(rows, rows.y, facts.link, facts.reference, facts.quantile)
    )
    known = validation.get_column(label).cast(pl.Float64).to_numpy()
    metric, lists = metric_named(facts.chosen_by, objective), lists_of(validation, group)
    w = weights_of(validation, weight)
    losses = [metric.loss(known, fitted.predict(validation), w=w, lists=lists) for fitted in path]
    return path[int(np.argmin(np.nan_to_num(losses, nan=np.inf, posinf=np.inf, neginf=-np.inf)))]


@dataclass(frozen=True, kw_only=True)
class _Encoded:
    """Training rows that a fit uses."""

    encode: Encode
    numeric: NDArray[np.float32]
    category: NDArray[np.int32]
    columns: _Columns
    y: Vector
    w: Vector
    """Weights of the rows, 1 on average."""
    all_rows: int

    @classmethod
    def of(cls, train: pl.DataFrame, encode: Encode, label: str, weight: str | None, all_rows: int) -> Self:
        numeric, category = encode(train)
        return cls(
            encode=encode,
            numeric=numeric,
            category=category,
            columns=_Columns.of(numeric, category),
            y=train.get_column(label).cast(pl.Float64).to_numpy(),
            w=weights_of(train, weight),
            all_rows=all_rows,
        )


@dataclass(frozen=True, kw_only=True)
class _Problem:
    """Penalised regression with a smooth, convex loss, on rows held in memory."""

    dense: NDArray[np.float64]
    categories: Any
    """scipy.sparse CSR `[rows, categories]` of ones."""
    y: Vector
    w: Vector
    loss: _Loss

    @classmethod
    def of(cls, rows: _Encoded, y: Vector, loss: _Loss) -> Self:
        columns, places = rows.columns, rows.columns.sparse(rows.category)
        has_weight = places < columns.count
        ends = np.concatenate([[0], np.cumsum(has_weight.sum(axis=1))])
        ones = np.ones(int(ends[-1]))
        categories = sparse.csr_matrix((ones, places[has_weight], ends), shape=(len(y), columns.count))
        return cls(dense=columns.dense(rows.numeric), categories=categories, y=y, w=rows.w, loss=loss)

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.dense.shape[1] + self.categories.shape[1]

    def path(self, penalties: Sequence[float]) -> Iterator[Vector]:
        """Yield the weights of least loss for each penalty, by Newton's method from the weights before.

        Second derivatives are expensive and change little from step to step. They are computed again only after a step
        that left more than `_ENOUGH` of the gradient. A step that does not lower the loss is halved.
        """
        weights, hessian = np.zeros(self.size), None
        for penalty in penalties:
            each = np.full(self.size, penalty)
            each[0] = 0.0  # the intercept
            value, gradient, curvature = self._loss(each, weights)
            hessian = self._hessian(curvature) if hessian is None else hessian
            factor: Any = linalg.cho_factor(hessian + np.diag(each))
            for _ in range(_STEPS):
                slope = np.abs(gradient).max()
                if slope <= _SMALL_GRADIENT * len(self.y):
                    break
                step = linalg.cho_solve(factor, gradient)
                for _ in range(_HALVINGS):
                    after = self._loss(each, weights - step)
                    if after[0] < value:
                        break
                    step = step / 2
                else:
                    break  # float64 has no better weights
                weights = weights - step
                value, gradient, curvature = after
                if np.abs(gradient).max() > _ENOUGH * slope:
                    hessian = self._hessian(curvature)
                    factor = linalg.cho_factor(hessian + np.diag(each))
            yield weights

    def sums(self, weights: Vector) -> Vector:
        """Return the sum of each row's weights, `[rows]`."""
        width = self.dense.shape[1]
        return self.dense @ weights[:width] + self.categories @ weights[width:]

    def _loss(self, penalties: Vector, weights: Vector) -> tuple[float, Vector, Vector]:
        """Return the loss, its gradient `[size]`, and each row's second derivative `[rows]`."""
        penalised = float((penalties * weights**2).sum()) / 2
        loss, slopes, curvature = (self.w * of_rows for of_rows in self.loss(self.sums(weights), self.y))
        gradient = np.concatenate([slopes @ self.dense, self.categories.T @ slopes])
        return float(loss.sum()) + penalised, gradient + penalties * weights, curvature

    def _hessian(self, curvature: Vector) -> NDArray[np.float64]:
        """Return the second derivatives of the loss without its penalty, `[size, size]`."""
        width = self.dense.shape[1]
        total = np.zeros((self.size, self.size))
        for first in range(0, len(self.y), _IN_CACHE):
            rows = slice(first, first + _IN_CACHE)
            categories, by = self.categories[rows], curvature[rows, None]
            weighted = self.dense[rows] * by
            total[:width, :width] += self.dense[rows].T @ weighted
            total[width:, :width] += categories.T @ weighted
            total[width:, width:] += (categories.T @ categories.multiply(by).tocsr()).toarray()
        total[:width, width:] = total[width:, :width].T
        return total


def _sigmoid(sums: Vector) -> Vector:
    return np.exp(-np.logaddexp(0, -sums))


def _cross_entropy(sums: Vector, y: Vector) -> tuple[Vector, Vector, Vector]:
    p = _sigmoid(sums)
    return np.logaddexp(0, sums) - y * sums, p - y, p * (1 - p)


def _half_squares(sums: Vector, y: Vector) -> tuple[Vector, Vector, Vector]:
    return (sums - y) ** 2 / 2, sums - y, np.ones(len(y))


def _exp(sums: Vector) -> Vector:
    return np.exp(np.minimum(sums, _LARGEST_EXPONENT))


def _poisson(sums: Vector, y: Vector) -> tuple[Vector, Vector, Vector]:
    p = _exp(sums)
    return p - y * sums, p - y, p


def _pinball(share: float, sums: Vector, y: Vector) -> tuple[Vector, Vector, Vector]:
    """Return a smooth pinball loss: its kink is rounded over about `_ROUNDED` standard deviations of the label."""
    above = (sums - y) / _ROUNDED
    side = _sigmoid(above)
    loss = _ROUNDED * np.logaddexp(0, above) - share * (sums - y)
    return loss, side - share, side * (1 - side) / _ROUNDED


def _spread(y: Vector, w: Vector) -> float:
    return float(np.sqrt(mean((y - mean(y, w)) ** 2, w)))


_UNITS: dict[Link, Callable[[Vector, Vector], tuple[float, float]]] = {
    "sigmoid": lambda y, w: (0.0, 1.0),
    "identity": lambda y, w: (mean(y, w), _spread(y, w) or 1.0),
    "exp": lambda y, w: (0.0, mean(y, w) or 1.0),
}
"""Link → labels and weights → offset and scale: the fit sees (labels - offset) / scale."""
_LINKS: dict[Link, Callable[[Vector], Vector]] = {
    "sigmoid": _sigmoid,
    "identity": lambda sums: sums,
    "exp": _exp,
}
_LOSSES: dict[Link, _Loss] = {
    "sigmoid": _cross_entropy,
    "identity": _half_squares,
    "exp": _poisson,
}
"""Link → loss of its usual regression, whose first derivative is the prediction minus the label."""
