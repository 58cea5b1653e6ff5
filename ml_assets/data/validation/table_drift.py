"""Drift of a partition from its table's own past, by stored profiles and a declared rule.

Real days differ more than independent rows, and differently in each column. So the distance of a partition from its
window is held against the distances of the window's partitions from each other. A column drifts if its distance is

* large: above the declared limit, as PSI beyond chance;
* unusual for the column: above its second largest distance in the past, so that one odd day hides nothing;
* unusual for the table: by twice the factor by which some column exceeded its own past in nine of ten past partitions.

The last point is what keeps many columns from adding up to false alarms. It takes the largest factor of all columns in
each past partition, so columns that move together count once (the max-T procedure of Westfall and Young, 1993, with
past partitions in place of permutations).

A column that moves by itself hides a shift of its mean given the others. So means are compared, too: a column counts by
its residual, the mean minus its prediction, from the past's mean or from the other columns of the partition, whichever
predicted the past better (`profile.Relations`). A column shifts if its residual is

* large: above the declared number of standard deviations;
* unusual for the column and the table: above nine of ten residuals of its past, times the factor by which some column
  exceeded these in nine of ten past partitions, times `_TIMES_SHIFT`.

Columns in which most rows share one value are left out: their mean says nothing after a month without rain, and a shift
of all their rows is a drift of their distribution.

Not here: distances (`drift.py`), profiles of past partitions (`tables.publish`).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ml_assets.data.validation.drift import Floats, ProfileCounts, psi
from ml_assets.data.validation.drift_rule import RULE, ColumnPolicy, DriftRule, GivenOthers
from ml_assets.data.validation.profile import Bools, Ints, Relations
from ml_assets.data.validation.verdict import Finding
from resources.threads import one_blas_thread

_USUAL, _TIMES = 0.9, 2.0
"""Share of past partitions that decide what is usual for the table, and the factor above it."""
_NO_DISTANCE = 1e-3
"""Distance that counts as none, where chance gives less."""

Profile = Mapping[str, Any]
_MISSING = 0.05
"""Change of the share of rows without a value that is worth a word."""


def change_in_words(column: str, before: Sequence[Profile], now: Profile) -> str:
    """Return the largest change of a column, such as `mean 1,040 to 1,310`."""
    past = [one["columns"][column] for one in before if column in one["columns"]]
    rows = [one["rows"] for one in before if column in one["columns"]]
    here = now["columns"][column]
    said: list[str] = []
    was, is_now = sum(one["nulls"] for one in past) / max(1, sum(rows)), here["nulls"] / now["rows"]
    if abs(is_now - was) >= _MISSING:
        said.append(f"without a value {was:.1%} to {is_now:.1%}")
    known = [(one["mean"], n - one["nulls"]) for one, n in zip(past, rows, strict=True) if "mean" in one]
    if "mean" in here and known:
        mean = sum(value * n for value, n in known) / max(1, sum(n for _, n in known))
        said.append(f"mean {number_in_words(mean)} to {number_in_words(here['mean'])}")
    elif "distinct" in here:
        said.append(_value_in_words([one for one in past if "distinct" in one], here))
    return "; ".join(filter(None, said)) or "its values"


def _value_in_words(past: Sequence[Mapping[str, Any]], now: Mapping[str, Any]) -> str:
    """Return the listed value whose share moved most."""
    before, current = _shares(past), _shares([now])
    moved = {value: current[value] - before[value] for value in {*before, *current}}
    if not moved:
        return ""
    value = max(moved, key=lambda one: (abs(moved[one]), str(one)))
    return f"{value!r} {before[value]:.1%} to {current[value]:.1%} of the rows"


def _shares(columns: Sequence[Mapping[str, Any]]) -> Counter[Any]:
    counts = Counter[Any]()
    for column in columns:
        for value, rows in column["values"]:
            counts[value] += rows
    total = sum(sum(rows for _, rows in column["values"]) + column["others"] for column in columns)
    return Counter({value: rows / total for value, rows in counts.items()})  # type: ignore[arg-type]


def number_in_words(value: float) -> str:
    """Return a mean with four digits, or all digits before the point."""
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


_TIMES_SHIFT = 1.6
"""Factor above the usual share of past residuals."""
_ONE_VALUE = 0.5
"""Share of rows with one value from which a column is left out. The mean of a column such as an hour is the same each
day, up to rounding."""


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
        with one_blas_thread():
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
        limits = np.maximum(policy.at_most, _TIMES_SHIFT * factor * usual)
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
