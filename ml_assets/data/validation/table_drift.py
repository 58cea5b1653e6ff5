"""Drift of a partition from its table's own past, by stored profiles and a declared rule.

Real days differ more than independent rows, and differently in each column. So the distance of a partition from its
window is held against the distances of the window's partitions from each other. A column drifts if its distance is

* large: above the declared limit, as PSI beyond chance;
* unusual for the column: above its second largest distance in the past, so that one odd day hides nothing;
* unusual for the table: by twice the factor by which some column exceeded its own past in nine of ten past partitions.

The last point is what keeps many columns from adding up to false alarms. It takes the largest factor of all columns in
each past partition, so columns that move together count once (the max-T procedure of Westfall and Young, 1993, with
past partitions in place of permutations).

Not here: distances (`drift.py`), means and their predictions (`shifts.py`), profiles of past partitions
(`ml_assets.data.tables.past_profiles`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ml_assets.data.validation.drift import psi
from ml_assets.data.validation.drift_counts import Floats, ProfileCounts
from ml_assets.data.validation.drift_rule import RULE, ColumnPolicy, DriftRule
from ml_assets.data.validation.drift_words import change_in_words
from ml_assets.data.validation.findings import Finding
from ml_assets.data.validation.shifts import TableShifts, shift_finding

_USUAL, _TIMES = 0.9, 2.0
"""Share of past partitions that decide what is usual for the table, and the factor above it."""
_NO_DISTANCE = 1e-3
"""Distance that counts as none, where chance gives less."""

Profile = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ColumnDrift:
    """Distance of one column."""

    column: str
    distance: float
    """PSI of the partition beyond chance, at least 0."""
    past: tuple[float, ...]
    """The same of each past partition, against the others of the window; oldest first."""
    limit: float
    """Largest distance that is not reported: the declared limit, or what is usual in the past."""
    declared: float
    """The declared limit."""

    @property
    def drifts(self) -> bool:
        """True if the distance is large and unusual."""
        return self.distance > self.limit


@dataclass(frozen=True, slots=True)
class TableDrift:
    """Distances of all compared columns of one partition."""

    past: tuple[str, ...]
    """Keys of the partitions that it was compared with, oldest first; of blocks, the first of each."""
    columns: tuple[ColumnDrift, ...]
    """Columns, the farthest above its limit first."""
    shifts: TableShifts | None = None
    """Means and their predictions; None if they were not compared."""

    @property
    def largest(self) -> float:
        """Largest distance of a distribution or a mean, as a multiple of its column's limit; 0 without columns."""
        of_means = 0.0 if self.shifts is None else self.shifts.largest
        return max([of_means, *(one.distance / one.limit for one in self.columns)])

    @property
    def drifting(self) -> tuple[ColumnDrift, ...]:
        """Columns that drift."""
        return tuple(one for one in self.columns if one.drifts)


class PastAndNow:
    """Profiles of a table's partitions, to compare some of them with their past."""

    def __init__(self, profiles: Mapping[str, Profile]) -> None:
        """`profiles` is partition key → profile. Partitions without rows are left out."""
        self._profiles = {key: one for key, one in sorted(profiles.items()) if one["rows"]}
        self._place = {key: place for place, key in enumerate(self._profiles)}
        self._counts = ProfileCounts(list(self._profiles.values()))

    def compare(self, key: str, window: Sequence[str], rule: DriftRule) -> TableDrift | None:
        """Compare partition `key` with those of `window` that have rows, oldest first.

        None if the partition has no rows, or its past has fewer than `rule.least`.
        """
        return self.compare_blocks([key], [[one] for one in window], rule, least=rule.least)

    def compare_blocks(
        self,
        now: Sequence[str],
        past: Sequence[Sequence[str]],
        policy: ColumnPolicy,
        *,
        least: int,
        only: Collection[str] | None = None,
    ) -> TableDrift | None:
        """Compare the partitions `now` together with blocks of earlier ones, oldest first. `only`: these columns.

        Partitions without rows are left out. None if nothing is left of `now`, or fewer than `least` blocks, of which
        there must be 3, have rows.
        """
        blocks = [[self._place[key] for key in block if key in self._place] for block in (*past, now)]
        if not blocks[-1] or sum(map(bool, blocks[:-1])) < least:
            return None
        names = tuple(block[0] for block, places in zip(past, blocks, strict=False) if places)
        blocks = [places for places in blocks if places]
        counted = self._counts.counts(
            [one for block in blocks[:-1] for one in block], blocks[-1], missing=True
        )
        begins = np.cumsum([0, *map(len, blocks[:-1])])
        columns = {
            name: np.add.reduceat(one, begins, axis=0)
            for name, one in counted.items()
            if name not in policy.ignore and (only is None or name in only)
        }
        if not columns:
            return TableDrift(names, ())
        distances, chance = _distances(list(columns.values()))
        before, current = distances[:, :-1], distances[:, -1]
        ranked = np.sort(before, axis=1)
        floor = np.maximum(chance, _NO_DISTANCE)
        # Of a partition among the two largest, the others' second largest is the third.
        others = np.where(before >= ranked[:, -2:-1], ranked[:, -3:-2], ranked[:, -2:-1])
        factors = (before / np.maximum(others, floor[:, None])).max(axis=0)
        usual = _TIMES * max(1.0, float(np.quantile(factors, _USUAL, method="higher")))
        limits = usual * np.maximum(ranked[:, -2], floor)
        found = [
            ColumnDrift(
                column=name,
                distance=float(current[place]),
                past=tuple(map(float, before[place])),
                limit=max(float(limits[place]), policy.limit_of(name)),
                declared=policy.limit_of(name),
            )
            for place, name in enumerate(columns)
        ]
        return TableDrift(
            names, tuple(sorted(found, key=lambda one: (-one.distance / one.limit, one.column)))
        )

    def findings(self, key: str, drift: TableDrift, rule: DriftRule) -> list[Finding]:
        """Return a finding for each column that drifts, by its distribution or else by its mean."""
        before = [self._profiles[one] for one in drift.past]
        found = [_finding(one, drift, before, self._profiles[key], rule) for one in drift.drifting]
        if drift.shifts is not None:
            known = {one.column for one in drift.drifting}
            shifting = [one for one in drift.shifts.shifting if one.column not in known]
            found += [shift_finding(one, drift.shifts, rule, _remedy(rule)) for one in shifting]
        return found


def _distances(columns: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Return PSI beyond chance of shape (columns, partitions), and the PSI by chance of each column now.

    A past partition is compared with the rest of the past, the last one with all of it.
    """
    found = np.zeros((len(columns), len(columns[0])))
    chance = np.zeros(len(columns))
    widths = [one.shape[1] for one in columns]
    for width in set(widths):  # together, because most columns have equally many bins
        places = [place for place, one in enumerate(widths) if one == width]
        counts: Floats = np.stack([columns[place] for place in places])
        past = counts[:, :-1].sum(axis=1, keepdims=True)
        # Differences of sums of fractions may be a rounding below 0.
        rest = np.maximum(np.concatenate([past - counts[:, :-1], past], axis=1), 0.0)
        distances, expected = psi(rest, counts)
        is_known = (rest.sum(axis=2) > 0) & (counts.sum(axis=2) > 0)
        found[places] = np.where(is_known, np.maximum(distances - expected, 0.0), 0.0)
        chance[places] = expected[:, -1]
    return found, chance


def _finding(
    one: ColumnDrift, drift: TableDrift, before: Sequence[Profile], now: Profile, rule: DriftRule
) -> Finding:
    changed = change_in_words(one.column, before, now)
    against = f"the {len(drift.past)} partitions before it, {drift.past[0]} to {drift.past[-1]}"
    reached = sorted(one.past)[-2]
    return Finding(
        rule=RULE,
        column=one.column,
        severity="block" if rule.severity == "error" else "warn",
        measured=f"PSI {one.distance:.3g} beyond chance; {changed}",
        limit=f"at most {one.limit:.3g}; declared {one.declared:.3g}, and {reached:.3g} was reached before",
        explanation=f"Its distribution moved away from {against}: {changed}. {_remedy(rule)}",
    )


def _remedy(rule: DriftRule) -> str:
    return (
        "Check the source. If the change is real, accept the partition."
        if rule.severity == "error"
        else "It passes. Check the source. If the change is real, later partitions are compared with it, too."
    )
