"""Relations between the number columns of a table: the mean of a column, given the means of all others.

The daily mean of a temperature moves by more than half a standard deviation; given dew point and humidity it hardly
moves. So a column is predicted from the others by a ridge regression of the past, and the residual of the partition's
mean is held against the residuals of past partitions. All regressions follow from one inverse of the correlation matrix
(of a Gaussian with precision P, the residual of column j given the others is (P z)_j / P_jj), and correlations are in
the stored profiles, so no past row is read.

Here: the correlations of a partition, and residuals of partitions. Not here: what is unusual (`shifts.py`).
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

ROWS = 50_000
"""Rows of a partition from which correlations are computed, evenly spaced. Their error is then below 0.005."""
COLUMNS = 128
"""Most number columns with correlations: they take 22 kB of the manifest. Of more, the first are compared."""
RIDGE = 0.003
"""Variance that is added to each standardized column. Measured on the demo's tables: 0.0003 finds as many shifts, 0.03
fewer."""
_SCALE = 32767
"""Correlations are stored as whole numbers of 16 bits."""
_FOLDS = 7
"""Parts of the past, each predicted by the regression on the others: a regression knows its own past too well."""


def correlations(columns: Mapping[str, Floats]) -> dict[str, Any]:
    """Return JSON values of the correlations of number columns: `columns`, `sd`, and `upper`; empty for fewer than two.

    `columns` maps a name to its values, of which those that are not finite are missing. `sd` are the standard
    deviations. `upper` is base64 of little-endian int16: the correlations above the diagonal, row by row, times 32767.
    A missing value counts as the mean of its column. Columns without two different values are left out.
    """
    if len(columns) < 2:
        return {}
    names = list(columns)[:COLUMNS]
    values: Floats = np.stack([columns[name] for name in names])
    known = np.isfinite(values)
    counts = known.sum(axis=1)
    with np.errstate(all="ignore"):
        values = np.where(known, values, 0.0)
        mean = values.sum(axis=1) / np.maximum(counts, 1)
        values = np.where(known, values - mean[:, None], 0.0)
        squares = np.einsum("cr,cr->c", values, values)
    some = np.flatnonzero((squares > 0) & np.isfinite(squares))
    if len(some) < 2:
        return {}
    values = values[some] / np.sqrt(squares[some])[:, None]
    found = np.clip(values @ values.T, -1.0, 1.0)
    whole = np.rint(found[np.triu_indices(len(some), 1)] * _SCALE).astype("<i2")
    return {
        "columns": [names[place] for place in some],
        "sd": [float(f"{one:.6g}") for one in np.sqrt(squares[some] / counts[some])],
        "upper": base64.b64encode(whole.tobytes()).decode(),
    }


@dataclass(frozen=True, kw_only=True)
class Residuals:
    """Distances of the means of one partition, and of its past, from their predictions. Unit: standard deviations of
    the column in the past."""

    columns: tuple[str, ...]
    means: Floats
    """Means of the partition, in units of the columns, shape (columns,)."""
    sd: Floats
    """Standard deviations of rows of the past, shape (columns,)."""
    now: Floats
    """Distances of the partition, shape (columns,)."""
    past: Floats
    """Distances of each past partition, predicted by the others, shape (partitions, columns)."""
    moves: Floats
    """Change of each residual (row) if the mean of a column moves by 1, shape (columns, columns)."""
    steadiness: Floats
    """1 / standard deviation of each column given the others, in rows of the past, shape (columns,)."""


class Relations:
    """Means and correlations of a table's partitions. Decodes each profile once."""

    def __init__(self, profiles: Sequence[Mapping[str, Any]]) -> None:
        """`profiles` are of one table, in the order of time. Those without correlations are never compared."""
        known: list[Mapping[str, Any]] = [one.get("correlations", {"columns": ()}) for one in profiles]
        names: list[str] = [name for one in known for name in one["columns"]]
        self.columns = tuple(dict.fromkeys(names))
        """Number columns with correlations in any partition."""
        place = {name: number for number, name in enumerate(self.columns)}
        shape = (len(profiles), len(self.columns))
        self._rows, self._means, self._sd = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._correlations = np.zeros((*shape, len(self.columns)), dtype=np.float32)
        self.largest_share = np.full(shape, np.nan)
        """Largest share of a partition's rows that have one value, or lie in one bin: (partitions, columns)."""
        for number, (profile, one) in enumerate(zip(profiles, known, strict=True)):
            for name in self.columns:
                column: Mapping[str, Any] = profile["columns"].get(name, {})
                if "mean" in column:
                    at = number, place[name]
                    self._rows[at] = profile["rows"] - column["nulls"] - column.get("infinite", 0)
                    self._means[at] = column["mean"]
                    self.largest_share[at] = _largest_share(column)
            if not one["columns"]:
                continue
            places: Ints = np.array([place[name] for name in one["columns"]])
            self._sd[number, places] = one["sd"]
            upper = np.frombuffer(base64.b64decode(one["upper"]), dtype="<i2") / _SCALE
            rows, others = np.triu_indices(len(places), 1)
            at_rows, at_others = places[rows], places[others]
            self._correlations[number, at_rows, at_others] = upper
            self._correlations[number, at_others, at_rows] = upper
        self.has_some = np.array([bool(one["columns"]) for one in known], dtype=bool)
        """True for partitions with correlations."""

    def partitions_with(self, past: Ints) -> Ints:
        """Return the number of partitions of `past` in which each column has a value, shape (columns,)."""
        return (self._rows[past] > 0).sum(axis=0)

    def residuals(self, past: Ints, now: int, usable: Bools) -> tuple[Residuals, Residuals]:
        """Return the residuals of `now` and its past: from the mean of the past, and given the other columns.

        `past` and `now` are positions of profiles; `usable` are the columns to compare.
        """
        places = np.flatnonzero(usable & (self._rows[now] > 0) & (self._sd[past].max(axis=0) > 0))
        names = tuple(self.columns[place] for place in places.tolist())
        of_past, diagonal = past[:, None], np.arange(len(places))
        rows, means = self._rows[of_past, places], self._means[of_past, places]
        # Sums of products around each partition's own means.
        scale = np.sqrt(rows) * self._sd[of_past, places]
        products = self._correlations[past[:, None, None], places[:, None], places].astype(np.float64)
        products[:, diagonal, diagonal] = 1.0
        products *= scale[:, :, None] * scale[:, None, :]
        folds = [fold for fold in np.array_split(np.arange(len(past)), _FOLDS) if len(fold)]
        in_fold = np.array([products[fold].sum(axis=0) for fold in folds])
        center, covariance = _pooled(in_fold.sum(axis=0), rows, means)
        sd = np.sqrt(np.diagonal(covariance) / np.maximum(rows.sum(axis=0), 1.0))
        sd = np.where(sd > 0, sd, 1.0)
        from_mean, given_others = np.zeros(means.shape), np.zeros(means.shape)
        for number, fold in enumerate(folds):
            rest = np.setdiff1d(np.arange(len(past)), fold)
            around, others = _pooled(np.delete(in_fold, number, axis=0).sum(axis=0), rows[rest], means[rest])
            from_mean[fold] = np.where(rows[fold] > 0, (means[fold] - around) / sd, 0.0)
            given_others[fold] = from_mean[fold] @ _regressions(others)[0].T
        moves, steadiness = _regressions(covariance)
        moved = (self._means[now, places] - center) / sd
        alone = Residuals(
            columns=names,
            means=self._means[now, places],
            sd=sd,
            now=moved,
            past=from_mean,
            moves=np.eye(len(places)),
            steadiness=np.ones(len(places)),
        )
        together = replace(alone, now=moves @ moved, past=given_others, moves=moves, steadiness=steadiness)
        return alone, together


def _pooled(products: Floats, rows: Floats, means: Floats) -> tuple[Floats, Floats]:
    """Return the means over partitions, and the sums of products around them: within partitions and between them."""
    center = (rows * means).sum(axis=0) / np.maximum(rows.sum(axis=0), 1.0)
    apart = np.sqrt(rows) * (means - center)
    return center, products + apart.T @ apart


def _regressions(covariance: Floats) -> tuple[Floats, Floats]:
    """Return the matrix that turns standardized means into residuals given all other columns, by ridge regressions, and
    1 / standard deviation of each column's rows given the others."""
    size = np.sqrt(np.diagonal(covariance))
    size = np.where(size > 0, size, 1.0)
    correlation = covariance / size[:, None] / size
    np.fill_diagonal(correlation, 1.0)
    precision = np.linalg.inv(correlation + RIDGE * np.eye(len(correlation)))
    return precision / np.diagonal(precision)[:, None], np.sqrt(np.diagonal(precision))


def _largest_share(column: Mapping[str, Any]) -> float:
    counts: list[int] = [rows for _, rows in column["values"]] if "values" in column else column["counts"]
    return max(counts) / max(1, sum(counts))
