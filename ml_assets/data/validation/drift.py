"""Distances between two stored profiles of a table, column by column. No thresholds.

Both sides are lists of profiles (`profile.py`), so a window of daily partitions is compared without reading a row.
Thresholds belong to the declaration of a rule (`drift_rule.py`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ml_assets.data.validation.drift_counts import Floats, ProfileCounts

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
