"""Shifts: columns whose mean moved, given the other columns, farther than it ever does in the table's past.

`table_drift` compares distributions, and a column that moves by itself hides a shift there. Here a column counts by its
residual: the mean minus its prediction, from the past's mean or from the other columns of the partition, whichever
predicted the past better (`relations.py`). A column shifts if its residual is

* large: above the declared number of standard deviations;
* unusual for the column and the table: above nine of ten residuals of its past, times the factor by which some column
  exceeded these in nine of ten past partitions, times `_TIMES`.

Columns in which most rows share one value are left out: their mean says nothing after a month without rain, and a shift
of all their rows is a drift of their distribution.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ml_assets.data.validation.drift_rule import RULE, DriftRule, GivenOthers
from ml_assets.data.validation.drift_words import number_in_words
from ml_assets.data.validation.findings import Finding
from ml_assets.data.validation.relations import Bools, Floats, Ints, Relations

_USUAL, _TIMES = 0.9, 1.6
"""Share of past residuals that are usual, and the factor above them."""
_ONE_VALUE = 0.5
"""Share of rows with one value from which a column is left out."""
_NO_DISTANCE = 1e-3
"""Distance that counts as none. The mean of a column such as an hour is the same each day, up to rounding."""

Profile = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ColumnShift:
    """Residual of one column's mean."""

    column: str
    residual: float
    """Standard deviations of the column, from its prediction; negative if the mean is smaller."""
    mean: float
    """Mean of the partition."""
    limit: float
    """Largest size of a residual that is not reported."""
    declared: float
    """The declared limit."""
    expected: float
    """Its prediction."""
    given_others: bool
    """True if the other columns predict it; False if the past's mean predicted the past better."""

    @property
    def drifts(self) -> bool:
        """True if the residual is large and unusual."""
        return abs(self.residual) > self.limit


@dataclass(frozen=True, slots=True)
class TableShifts:
    """Residuals of all compared columns of one partition."""

    past: tuple[str, ...]
    """Keys of the partitions that it was compared with, oldest first."""
    columns: tuple[ColumnShift, ...]
    """Columns, the farthest above its limit first. After a column that shifts, the others count as if it had not."""

    @property
    def largest(self) -> float:
        """Largest residual, as a multiple of its column's limit; 0 without columns."""
        return max((abs(one.residual) / one.limit for one in self.columns), default=0.0)

    @property
    def shifting(self) -> tuple[ColumnShift, ...]:
        """Columns that shift."""
        return tuple(one for one in self.columns if one.drifts)


def shift_finding(one: ColumnShift, shifts: TableShifts, rule: DriftRule, helps: str) -> Finding:
    """Return the finding about a column that shifts. `helps` is the remedy."""
    where = "above" if one.residual > 0 else "below"
    predicts = "the other columns predict" if one.given_others else "its past predicts"
    against = f"the {len(shifts.past)} partitions before it, {shifts.past[0]} to {shifts.past[-1]}"
    moved = (
        f"mean {number_in_words(one.mean)}, {abs(one.residual):.2f} standard deviations {where} "
        f"{number_in_words(one.expected)}, which {predicts}"
    )
    return Finding(
        rule=RULE,
        column=one.column,
        severity="block" if rule.severity == "error" else "warn",
        measured=moved,
        limit=f"at most {one.limit:.2f} standard deviations; declared {one.declared:.2f}",
        explanation=f"Its mean moved away from its prediction, by {against}: {moved}. {helps}",
    )


class Shifts:
    """Profiles of a table's partitions, to look for shifts in some of them."""

    def __init__(self, profiles: Mapping[str, Profile]) -> None:
        """`profiles` is partition key → profile. Partitions without rows are left out."""
        known = {key: one for key, one in sorted(profiles.items()) if one["rows"]}
        self._place = {key: place for place, key in enumerate(known)}
        self._relations = Relations(list(known.values()))

    def compare(
        self, key: str, window: Sequence[str], policy: GivenOthers, rule: DriftRule
    ) -> TableShifts | None:
        """Compare partition `key` with those of `window` that have rows, oldest first.

        None if its past has fewer than `rule.least`, or the table has no two number columns. So a column that came
        later is compared once it has as many.
        """
        has_some = self._relations.has_some
        past = [one for one in window if one in self._place and has_some[self._place[one]]]
        now = self._place.get(key)
        if now is None or not has_some[now] or len(past) < rule.least:
            return None
        places: Ints = np.array([self._place[one] for one in past])
        kept: Bools = np.array([name not in rule.ignore for name in self._relations.columns], dtype=bool)
        kept &= self._relations.partitions_with(places) >= rule.least
        compared = self._relations.residuals(places, now, kept)
        names = compared[0].columns
        if not names:
            return None
        at: Ints = np.array([self._relations.columns.index(name) for name in names])
        with np.errstate(invalid="ignore"):
            share = np.nanmean(self._relations.largest_share[places[:, None], at], axis=0)
        usual = np.stack([np.quantile(np.abs(one.past), _USUAL, axis=0, method="higher") for one in compared])
        best = usual.argmin(axis=0)
        chosen = np.arange(len(names))
        usual = np.maximum(usual[best, chosen], _NO_DISTANCE)
        of_past: Floats = np.abs(np.stack([one.past for one in compared])[best, :, chosen]).T
        is_compared = share <= _ONE_VALUE
        if not is_compared.any():
            return None
        factors = (of_past / usual)[:, is_compared].max(axis=1)
        factor = max(1.0, float(np.quantile(factors, _USUAL, method="higher")))
        limits = np.maximum(policy.at_most, _TIMES * factor * usual)
        moves = np.stack([one.moves for one in compared])[best, chosen]
        residuals = np.stack([one.now for one in compared])[best, chosen]
        steadiness = np.stack([one.steadiness for one in compared])[best, chosen]
        shown = np.full(len(names), np.nan)
        left = np.full(len(names), True)
        # A column that moves also moves the residuals of its neighbours. Its own residual is the largest of them in
        # units of what rows differ by, given the others (Cauchy and Schwarz): it is taken to have moved, and the others
        # are compared as if it had not. This also holds for a column of one value that gets another one.
        while (far := left & (np.abs(residuals) > limits)).any():
            place = int(np.where(far, np.abs(residuals) * steadiness, -1.0).argmax())
            left[place], shown[place] = False, residuals[place]
            residuals = residuals - moves[:, place] * residuals[place]
        shown[left] = residuals[left]
        found = [
            ColumnShift(
                column=names[place],
                residual=float(shown[place]),
                mean=float(compared[0].means[place]),
                expected=float(compared[0].means[place] - shown[place] * compared[0].sd[place]),
                limit=float(limits[place]),
                declared=policy.at_most,
                given_others=bool(best[place]),
            )
            for place in np.flatnonzero(is_compared)
        ]
        return TableShifts(
            tuple(past), tuple(sorted(found, key=lambda one: (-abs(one.residual) / one.limit, one.column)))
        )
