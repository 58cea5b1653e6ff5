"""Reference model: a logistic or linear regression on the challenger's own columns, with an L2 penalty.

It shows the worth of the columns without a network. It uses Newton's method on the normal equations: exact, with equal
results on every call. 250,000 rows × 40 columns take a few seconds; scikit-learn's L-BFGS takes half a minute for all
penalties.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (scipy is not typed)

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.evaluation.metrics import METRICS, Vector
from ml_assets.objective_facts import Link, ObjectiveName, facts_of

Encode = Callable[[pl.DataFrame], tuple[NDArray[np.float32], NDArray[np.int32]]]
"""Rows → standardised numbers `[rows, F]`, NaN where missing, and category ids `[rows, C]`: `FittedState.encode`."""

PENALTIES = (10_000.0, 1_000.0, 100.0, 10.0, 1.0)
"""Penalties to try on the validation rows, strongest first. The weight of a category with as many rows as the penalty
is shrunk to about half."""
MOST_VALUES = 10_000_000
"""Largest rows × columns to fit. From larger windows, evenly spread rows are used."""
MOST_CATEGORIES = 1_000
"""Categories, over all columns, that get a weight: the most frequent. The others have no effect."""

_STEPS, _HALVINGS = 50, 10
_SMALL_GRADIENT = 1e-6
"""Gradient per row at which the optimum counts as reached."""
_ENOUGH = 0.3
_IN_CACHE = 16_384
"""Rows that are summed at once."""
_AT_ONCE = 100_000
"""Rows that are predicted at once."""


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

    objective: ObjectiveName
    encode: Encode
    columns: _Columns
    weights: Vector
    """Intercept, numbers, missing marks, categories."""
    offset: float
    """Mean of the training labels if predictions are values, else 0."""
    scale: float
    """Standard deviation of the training labels if predictions are values, else 1."""
    penalty: float
    rows: int
    """Training rows that the fit used."""
    all_rows: int
    """All training rows."""

    @classmethod
    def fit(
        cls,
        train: pl.DataFrame,
        validation: pl.DataFrame,
        encode: Encode,
        objective: ObjectiveName,
        *,
        label: str,
    ) -> Self:
        """Fit on the training rows, with the penalty of `PENALTIES` that predicts the validation rows best.

        Best is the smallest metric that the objective names (`chosen_by`); among equals, the strongest penalty. No
        label may be null.
        """
        from threadpoolctl import threadpool_limits

        few = _spread(train, encode)
        y = few.get_column(label).cast(pl.Float64).to_numpy()
        numeric, category = encode(few)
        columns = _Columns.of(numeric, category)
        facts = facts_of(objective)
        is_value = facts.link == "identity"
        offset, scale = (float(y.mean()), float(y.std()) or 1.0) if is_value else (0.0, 1.0)
        problem = _Problem.of(columns, numeric, category, (y - offset) / scale, facts.link)
        tried = _spread(validation, encode)
        known = tried.get_column(label).cast(pl.Float64).to_numpy()
        loss = METRICS[facts.chosen_by].on_rows
        best: tuple[float, Self] | None = None
        # One thread, so that the order of additions and the result do not depend on the machine's cores.
        with threadpool_limits(limits=1, user_api="blas"):
            paths = list(problem.path(PENALTIES))
        for penalty, weights in zip(PENALTIES, paths, strict=True):
            fitted = cls(
                objective=objective,
                encode=encode,
                columns=columns,
                weights=weights,
                offset=offset,
                scale=scale,
                penalty=penalty,
                rows=few.height,
                all_rows=train.height,
            )
            found = loss(known, fitted.predict(tried))
            if best is None or found < best[0]:
                best = found, fitted
        assert best is not None
        return best[1]

    def predict(self, frame: pl.DataFrame) -> Vector:
        """Return the prediction of each row, a probability or a value, float64 `[N]`."""
        parts = [self._sums(part) for part in frame.iter_slices(_AT_ONCE)]
        sums = np.concatenate(parts) if parts else np.empty(0)
        return self.offset + self.scale * _LINKS[facts_of(self.objective).link](sums)

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
        kind = facts_of(self.objective).reference
        if len(self.weights) == 1:
            return f"{kind} regression without columns: the mean"
        some = f", fitted on {self.rows:,} of {self.all_rows:,} rows" if self.rows < self.all_rows else ""
        return f"{kind} regression on the same columns (penalty {self.penalty:g}, chosen on validation{some})"


@dataclass(frozen=True, kw_only=True)
class _Problem:
    """Penalised least squares, or penalised logistic regression, on rows held in memory."""

    dense: NDArray[np.float64]
    categories: Any
    """scipy.sparse CSR `[rows, categories]` of ones."""
    y: Vector
    link: Link

    @classmethod
    def of(
        cls,
        columns: _Columns,
        numeric: NDArray[np.float32],
        category: NDArray[np.int32],
        y: Vector,
        link: Link,
    ) -> Self:
        from scipy import sparse

        places = columns.sparse(category)
        has_weight = places < columns.count
        ends = np.concatenate([[0], np.cumsum(has_weight.sum(axis=1))])
        ones = np.ones(int(ends[-1]))
        categories = sparse.csr_matrix((ones, places[has_weight], ends), shape=(len(y), columns.count))
        return cls(dense=columns.dense(numeric), categories=categories, y=y, link=link)

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.dense.shape[1] + self.categories.shape[1]

    def path(self, penalties: Sequence[float]) -> Iterator[Vector]:
        """Yield the weights of least loss for each penalty, by Newton's method from the weights before.

        Second derivatives are expensive and change little from step to step. They are computed again only after a step
        that left more than `_ENOUGH` of the gradient. A step that does not lower the loss is halved.
        """
        from scipy import linalg

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

    def _loss(self, penalties: Vector, weights: Vector) -> tuple[float, Vector, Vector]:
        """Return the loss, its gradient `[size]`, and each row's second derivative `[rows]`."""
        width = self.dense.shape[1]
        sums = self.dense @ weights[:width] + self.categories @ weights[width:]
        penalised = float((penalties * weights**2).sum()) / 2
        loss, p, curvature = _LOSSES[self.link](sums, self.y)
        residuals = p - self.y
        gradient = np.concatenate([residuals @ self.dense, self.categories.T @ residuals])
        return loss + penalised, gradient + penalties * weights, curvature

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


def _spread(frame: pl.DataFrame, encode: Encode) -> pl.DataFrame:
    """Return as many rows as `MOST_VALUES` allows, spread evenly over `frame`."""
    numeric, category = encode(frame.head(1))
    most = MOST_VALUES // max(numeric.shape[1] + category.shape[1], 1)
    if frame.height <= most:
        return frame
    return frame[np.linspace(0, frame.height - 1, most).round().astype(np.intp)]


def _sigmoid(sums: Vector) -> Vector:
    return np.exp(-np.logaddexp(0, -sums))


def _cross_entropy(sums: Vector, y: Vector) -> tuple[float, Vector, Vector]:
    p = _sigmoid(sums)
    return float((np.logaddexp(0, sums) - y * sums).sum()), p, p * (1 - p)


def _half_squares(sums: Vector, y: Vector) -> tuple[float, Vector, Vector]:
    return float(((sums - y) ** 2).sum()) / 2, sums, np.ones(len(y))


_LINKS: dict[Link, Callable[[Vector], Vector]] = {"sigmoid": _sigmoid, "identity": lambda sums: sums}
_LOSSES: dict[Link, Callable[[Vector, Vector], tuple[float, Vector, Vector]]] = {
    "sigmoid": _cross_entropy,
    "identity": _half_squares,
}
"""Link → (sums, labels) → loss, its prediction for each row, and each row's second derivative. For these losses the
first derivative is the prediction minus the label."""
