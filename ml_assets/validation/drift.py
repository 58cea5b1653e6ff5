"""Distances between two stored profiles of a table, column by column. No thresholds.

Both sides are lists of profiles (`profile.py`), so a window of daily partitions is compared without reading a row.
Thresholds belong to the declaration of a rule.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Column = dict[str, Any]

BINS = 10
"""Bins of a number column: quantiles of the baseline."""


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
    """PSI expected from independent rows without any change: (bins - 1) (1/n + 1/m) (Yurdakul, 2018)."""
    rows: tuple[int, int]
    """Rows with a value: baseline, current."""
    missing: tuple[float, float]
    """Share of rows without a value: baseline, current."""

    @property
    def psi_excess(self) -> float:
        """PSI beyond what chance explains, at least 0."""
        return max(0.0, self.psi - self.psi_expected)


def drift(baseline: Sequence[Column], current: Sequence[Column]) -> dict[str, Drift]:
    """Return column → distances, for columns that have a distribution on both sides.

    Exact at edges that both sides share. Between two edges of a profile, rows are assumed to be evenly spread.
    """
    found: dict[str, Drift] = {}
    for name in baseline[0]["columns"] if baseline else ():
        before = [profile["columns"][name] for profile in baseline if name in profile["columns"]]
        now = [profile["columns"][name] for profile in current if name in profile["columns"]]
        is_number = any("min" in column and "mean" in column for column in before)
        p, q = _histograms(before, now) if is_number else _categories(before, now)
        if p.sum() and q.sum():
            found[name] = _distances(p, q, is_number, (_missing(baseline, name), _missing(current, name)))
    return found


def _histograms(before: Sequence[Column], now: Sequence[Column]) -> tuple[Floats, Floats]:
    """Return the counts of both sides in bins between quantiles of the baseline."""
    points = np.unique(np.concatenate([_points(column)[0] for column in before]))
    cumulative = _cumulative(before, points)
    wanted = cumulative[-1] * np.arange(1, BINS) / BINS
    # Take the known points of the baseline that are nearest to its quantiles.
    nearest = np.abs(cumulative[:, None] - wanted).argmin(axis=0)
    edges = np.unique(points[nearest])
    p, q = (np.append(_cumulative(side, edges), _rows(side)) for side in (before, now))
    return np.diff(p, prepend=0.0), np.diff(q, prepend=0.0)


def _cumulative(side: Sequence[Column], at: Floats) -> Floats:
    """Return for each point in `at` the rows with a value of at most that point."""
    total = np.zeros(len(at))
    for column in side:
        points, counts = _points(column)
        if "values" in column:
            total += np.append(0.0, counts)[np.searchsorted(points, at, side="right")]
        elif len(points):
            total += np.interp(at, points, counts, left=0.0)
    return total


def _points(column: Column) -> tuple[Floats, Floats]:
    """Return the values at which a column's profile gives the cumulative count, and the counts."""
    if "values" in column:
        ordered = sorted(column["values"])
        return np.array([value for value, _ in ordered]), np.cumsum(
            [count for _, count in ordered], dtype=float
        )
    if "edges" not in column:
        return np.empty(0), np.empty(0)
    points = np.array([column["min"], *column["edges"], column["max"]])
    return points, np.cumsum([0, *column["counts"]], dtype=float)


def _rows(side: Sequence[Column]) -> float:
    return float(sum(counts[-1] for _, counts in map(_points, side) if len(counts)))


def _categories(before: Sequence[Column], now: Sequence[Column]) -> tuple[Floats, Floats]:
    """Return the counts of both sides per value that the baseline lists; last, the count of all other values."""
    listed = sorted({value for column in before for value, _ in column.get("values", [])}, key=str)
    place = {value: index for index, value in enumerate(listed)}

    def counted(side: Sequence[Column]) -> Floats:
        counts = np.zeros(len(listed) + 1)
        for column in side:
            counts[-1] += column.get("others", 0)
            for value, count in column.get("values", []):
                counts[place.get(value, -1)] += count
        return counts

    return counted(before), counted(now)


def _distances(before: Floats, now: Floats, is_number: bool, missing: tuple[float, float]) -> Drift:
    n, m = before.sum(), now.sum()
    used = (before + now) > 0
    before, now = before[used], now[used]
    # Add half a row to every bin (Jeffreys), so that an empty bin gives a large distance and not an infinite one.
    p, q = (before + 0.5) / (n + len(before) / 2), (now + 0.5) / (m + len(now) / 2)
    middle = (p + q) / 2
    return Drift(
        psi=float(((q - p) * np.log(q / p)).sum()),
        js=float(min((p * np.log(p / middle) + q * np.log(q / middle)).sum() / 2, math.log(2))),
        linf=float(np.abs(before / n - now / m).max()),
        ks=float(np.abs(np.cumsum(before) / n - np.cumsum(now) / m).max()) if is_number else None,
        psi_expected=float((len(before) - 1) * (1 / n + 1 / m)),
        rows=(round(n), round(m)),
        missing=missing,
    )


def _missing(side: Sequence[Column], name: str) -> float:
    rows = sum(profile["rows"] for profile in side if name in profile["columns"])
    nulls = sum(profile["columns"][name]["nulls"] for profile in side if name in profile["columns"])
    return nulls / rows if rows else 0.0
