"""Distances between stored profiles of a table, column by column, without reading a row. No thresholds.

Both sides are lists of profiles (`profile.py`), counted in common bins for all columns and partitions at once, so a
window of daily partitions is compared like a single one. Thresholds belong to the declaration of a rule
(`drift_rule.py`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ml_assets.data.validation.profile import BUCKETS, bucket

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Column = Mapping[str, Any]

BINS = 10
"""Bins of a number column: quantiles of the past."""


class ProfileCounts:
    """Profiles of one table, to be counted in common bins. Decodes each profile once."""

    def __init__(self, profiles: Sequence[Mapping[str, Any]]) -> None:
        columns: list[Mapping[str, Column]] = [profile["columns"] for profile in profiles]
        names = list(dict.fromkeys(name for one in columns for name in one))
        rows = np.array([profile["rows"] for profile in profiles], dtype=np.float64)
        by_name = {name: [_comparable(one.get(name)) for one in columns] for name in names}
        self._rows = {
            name: np.where([column is not None for column in some], rows, 0.0)
            for name, some in by_name.items()
        }
        self._numbers = _Numbers({name: some for name, some in by_name.items() if _any(some, "mean")})
        self._categories = {
            name: _Categories(some) for name, some in by_name.items() if _any(some, "distinct")
        }

    def counts(self, past: Sequence[int], now: Sequence[int], *, missing: bool = False) -> dict[str, Floats]:
        """Return column → rows in each bin, of shape (partitions, bins): `past` in order, then `now`.

        `past` and `now` are positions of profiles. `missing` adds a last bin: rows without a finite value. Columns that
        have no counts in all of `past`, or none in `now`, are left out, and so are those without a distribution.
        """
        some, first = np.array([*past, *now]), len(past)
        found = self._numbers.counts(some, first)
        for name, one in self._categories.items():
            counted = one.counts(some)
            if name not in found or counted[first:].any():  # the type may have changed meanwhile
                found[name] = counted
        if missing:
            found = {
                name: np.column_stack([counts, np.maximum(self._rows[name][some] - counts.sum(axis=1), 0.0)])
                for name, counts in found.items()
            }
        return {name: one for name, one in found.items() if one[:first].any() and one[first:].any()}


def _comparable(column: Column | None) -> Column | None:
    """Return None for a profile of an earlier form, which counts neither all values nor buckets."""
    return None if column is None or (column.get("others") and "buckets" not in column) else column


def _any(columns: Sequence[Column | None], key: str) -> bool:
    return any(column is not None and key in column for column in columns)


class _Numbers:
    """Cumulative counts of number columns. All arrays begin with (columns, partitions)."""

    def __init__(self, columns: Mapping[str, Sequence[Column | None]]) -> None:
        self.names = list(columns)
        known = [[_points(column) for column in some] for some in columns.values()]
        width = max((len(points) for some in known for points, _, _ in some), default=1)
        shape = (len(known), len(next(iter(columns.values()), ())))
        self._points = np.full((*shape, width), np.inf)
        self._cumulative = np.zeros((*shape, width))
        self._quantiles = np.full((*shape, BINS - 1), np.nan)
        for place, some in enumerate(known):
            for number, (points, cumulative, quantiles) in enumerate(some):
                if size := len(points):
                    self._points[place, number, :size] = points
                    self._cumulative[place, number, :size] = cumulative
                    self._cumulative[place, number, size:] = cumulative[-1]
                    self._quantiles[place, number] = quantiles

    def counts(self, some: Ints, first: int) -> dict[str, Floats]:
        """Return column → rows in each bin, of shape (partitions, bins). Those before position `first` are the past."""
        if not self.names:
            return {}
        edges = self._edges(some[:first])
        below = self._rows_up_to(edges, some)
        total = self._cumulative[:, some, -1:]
        counts = np.diff(np.concatenate([below, total], axis=2), axis=2, prepend=0.0)
        return dict(zip(self.names, np.maximum(counts, 0.0), strict=True))

    def _edges(self, past: Ints) -> Floats:
        """Return the edges of each column, ascending: quantiles of the past.

        If many rows have the smallest value, it is the first quantile; then smaller values get a bin of their own.
        """
        points, quantiles = self._points[:, past], self._quantiles[:, past]
        rows = self._cumulative[:, past, -1]
        smallest = points[:, :, 0].min(axis=1)
        # Each partition stands for its rows at its own quantiles: exact for one partition, near for many.
        values = quantiles.reshape(len(self.names), -1)
        weights = np.repeat(rows, BINS - 1, axis=1)
        order = np.argsort(values, axis=1)  # NaN last, with weight 0
        values = np.take_along_axis(values, order, axis=1)
        heard = np.take_along_axis(weights, order, axis=1).cumsum(axis=1)
        wanted = heard[:, -1:] * np.arange(1, BINS) / BINS
        places = (heard[:, :, None] < wanted[:, None, :]).sum(axis=1).clip(max=values.shape[1] - 1)
        inner = np.take_along_axis(values, places, axis=1)
        below = np.nextafter(inner[:, 0], -np.inf)
        first = np.where(below <= smallest, below, inner[:, 0])
        edges = np.column_stack([first, inner])
        return np.where(np.isfinite(edges), edges, 0.0)

    def _rows_up_to(self, edges: Floats, some: Ints) -> Floats:
        """Return the rows with a value of at most each edge: (columns, partitions, edges)."""
        points, cumulative = self._points[:, some], self._cumulative[:, some]
        right = (points[:, :, None, :] <= edges[:, None, :, None]).sum(axis=3)
        left, last = np.maximum(right - 1, 0), np.minimum(right, points.shape[2] - 1)
        low, high = (np.take_along_axis(points, place, axis=2) for place in (left, last))
        before, after = (np.take_along_axis(cumulative, place, axis=2) for place in (left, last))
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(np.isfinite(high) & (high > low), (edges[:, None, :] - low) / (high - low), 0.0)
        return np.where(right == 0, 0.0, before + share * (after - before))


def _points(column: Column | None) -> tuple[Floats, Floats, Floats]:
    """Return values, ascending, the rows up to each, and quantiles. Between two values, rows count as evenly spread."""
    if column is None or "mean" not in column:
        return np.empty(0), np.empty(0), np.empty(0)
    wanted: Floats = np.linspace(0.0, 1.0, BINS + 1)[1:-1]
    if "values" in column:
        ordered: Floats = np.array(sorted(column["values"]), dtype=np.float64)
        values, up_to = ordered[:, 0], ordered[:, 1].cumsum()
        at: Ints = (up_to < wanted[:, None] * up_to[-1]).sum(axis=1)
        quantiles = np.asarray(values[at], dtype=np.float64)
        # A step at each value: no rows lie between two values.
        points = np.column_stack([np.nextafter(values, -np.inf), values]).ravel()
        return points, np.column_stack([np.append(0.0, up_to[:-1]), up_to]).ravel(), quantiles
    points = np.array([column["min"], *column["edges"], column["max"]], dtype=np.float64)
    # Edges are rounded, so the outermost may lie just outside.
    points = np.maximum.accumulate(points.clip(column["min"], column["max"]))
    cumulative = np.cumsum([0, *column["counts"]], dtype=np.float64)
    inner = np.asarray(np.interp(wanted * cumulative[-1], cumulative, points), dtype=np.float64)
    return points, cumulative, inner


class _Categories:
    """Counts of a column of texts or booleans, by value and by bucket."""

    def __init__(self, columns: Sequence[Column | None]) -> None:
        some = [column if column is not None and "distinct" in column else None for column in columns]
        listed: list[list[tuple[str | bool, int]]] = [[] if one is None else one["values"] for one in some]
        place: dict[str | bool, int] = {}
        for value, _ in (each for one in listed for each in one):
            place.setdefault(value, len(place))
        self._by_value = np.zeros((len(some), len(place)))
        self._by_bucket = np.zeros((len(some), BUCKETS))
        self._is_whole = np.array([one is None or one["others"] == 0 for one in some])
        for number, column in enumerate(some):
            for value, rows in listed[number]:
                self._by_value[number, place[value]] += rows
            if column is not None and column["others"]:
                self._by_bucket[number] = column["buckets"]
                continue
            for value, rows in listed[number]:
                self._by_bucket[number, bucket(value)] += rows

    def counts(self, some: Ints) -> Floats:
        """Return the rows of each value, or of each bucket if the profile of a partition does not list all values."""
        return self._by_value[some] if self._is_whole[some].all() else self._by_bucket[some]


Profile = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Distances between the distributions of one column, without its missing values."""

    psi: float
    """Population stability index: sum of (q - p) ln(q / p), 0 to infinity."""
    js: float
    """Jensen–Shannon divergence in nats, 0 to ln 2."""
    linf: float
    """Largest difference of one bin's share, 0 to 1."""
    ks: float | None
    """Largest difference of the cumulative shares at bin edges, 0 to 1; None for categories."""
    psi_expected: float
    """PSI expected from independent rows without any change (`psi`)."""
    rows: tuple[int, int]
    """Rows with a value: baseline, current."""
    missing: tuple[float, float]
    """Share of rows without a value: baseline, current."""

    @property
    def psi_excess(self) -> float:
        """PSI beyond what chance explains, at least 0."""
        return max(0.0, self.psi - self.psi_expected)


def drift(baseline: Sequence[Profile], current: Sequence[Profile]) -> dict[str, Drift]:
    """Return column → distances, for columns that have a distribution on both sides.

    Exact at edges that both sides share. Between two edges of a profile, rows are assumed to be evenly spread.
    """
    if not baseline or not current:
        return {}
    first, all_of_them = len(baseline), [*baseline, *current]
    counted = ProfileCounts(all_of_them).counts(range(first), range(first, len(all_of_them)))
    return {
        name: _distances(
            counts[:first].sum(axis=0),
            counts[first:].sum(axis=0),
            any("mean" in one["columns"].get(name, ()) for one in current),
            (_missing(baseline, name), _missing(current, name)),
        )
        for name, counts in counted.items()
    }


def psi(before: Floats, now: Floats) -> tuple[Floats, Floats]:
    """Return the population stability index of counts of shape (…, bins), and its expectation without a change.

    Half a row is added to each used bin (Jeffreys), so that an empty bin gives a large distance, not an infinite one.
    The expectation is over independent rows with the shares of both sides together. Bins with many rows contribute
    (1 - share) (1/n + 1/m) each (Yurdakul, 2018); a bin with few rows contributes less by its own variance, and more
    because half a row moves its two shares apart.
    """
    used = (before + now) > 0
    n, m = (np.maximum(side.sum(axis=-1, keepdims=True), 1.0) for side in (before, now))
    half = used.sum(axis=-1, keepdims=True) / 2
    share = (before + now) / (n + m)
    expected = np.zeros(used.shape)
    before_size, now_size = n + half, m + half
    p, q = (before + 0.5) / before_size, (now + 0.5) / now_size
    distance = (q - p) * np.log(q / p)
    sides: list[tuple[Floats, Floats]] = []
    for rows, size in ((n, before_size), (m, now_size)):
        log, covariance = _few_rows(rows * share)
        expected += (1 - share) * covariance / size
        sides.append(((rows * share + 0.5) / size, log - np.log(size)))
    (mean_before, log_before), (mean_now, log_now) = sides
    expected += (mean_now - mean_before) * (log_now - log_before)
    return np.where(used, distance, 0.0).sum(axis=-1), np.where(used, expected, 0.0).sum(axis=-1)


def _few_rows(mean: Floats) -> tuple[Floats, Floats]:
    """Return the expectation of ln(X + 1/2) and the covariance of X with it, for a Poisson X with each `mean`."""
    at, logs, covariances = _poisson()
    place = np.log(np.maximum(mean, at[0]))
    known = np.log(at)
    log = np.where(mean > at[-1], place, np.interp(place, known, logs))
    return log, np.interp(place, known, covariances)


@cache
def _poisson() -> tuple[Floats, Floats, Floats]:
    """Return means, and the two figures of `_few_rows` for each, by summing over the distribution."""
    means = np.geomspace(1e-3, 200, 120)
    rows = np.arange(500.0)
    log_factorials = np.append(0.0, np.log(rows[1:]).cumsum())
    probability = np.exp(np.outer(np.log(means), rows) - means[:, None] - log_factorials)
    logs = np.log(rows + 0.5)
    expected = probability @ logs
    return means, expected, probability @ (rows * logs) - means * expected


def _distances(before: Floats, now: Floats, is_number: bool, missing: tuple[float, float]) -> Drift:
    n, m = before.sum(), now.sum()
    used = (before + now) > 0
    before, now = before[used], now[used]
    p, q = (before + 0.5) / (n + len(before) / 2), (now + 0.5) / (m + len(now) / 2)
    middle = (p + q) / 2
    distance, expected = psi(before, now)
    return Drift(
        psi=float(distance),
        js=float(min((p * np.log(p / middle) + q * np.log(q / middle)).sum() / 2, math.log(2))),
        linf=float(np.abs(before / n - now / m).max()),
        ks=float(np.abs(np.cumsum(before) / n - np.cumsum(now) / m).max()) if is_number else None,
        psi_expected=float(expected),
        rows=(round(n), round(m)),
        missing=missing,
    )


def _missing(side: Sequence[Profile], name: str) -> float:
    rows = sum(profile["rows"] for profile in side if name in profile["columns"])
    nulls = sum(profile["columns"][name]["nulls"] for profile in side if name in profile["columns"])
    return nulls / rows if rows else 0.0
