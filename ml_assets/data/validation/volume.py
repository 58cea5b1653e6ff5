"""Comparison of a partition's row count with the counts of its predecessors.

The history comes from the ledger: row counts of partitions that passed, of those that this rule rejected, and the
levels that a person accepted. A table that goes on with another number of rows would be rejected for good, because
rejected partitions are no history. So when several in a row are at one level, the finding proposes one acceptance of
all of them. From then on earlier counts are scaled to the level. Nothing adapts by itself.
"""

import statistics
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator, Field, model_validator

from ml_assets.data.validation.verdict import Finding
from ml_assets.foundation.days import iso_name
from ml_assets.foundation.sections import Section

_Group = tuple[bool, int, int]
"""Partitions that are compared with each other: hours or days, weekday, hour."""


class VolumeRule(Section):
    """Allowed distance of the number of rows from the usual one."""

    kind: Literal["same_weekday_median", "previous", "none"] = "same_weekday_median"
    """Compare with the median of the last partitions of the same weekday, with the partition before, or not at all.

    On a table with days, holidays and weekends make `previous` fire about ten times as often. On a weekly, monthly,
    quarterly or yearly table, the median is over the last partitions; on an hourly one, over the same hour of that
    weekday in the `event_time_zone` of the contract."""
    warn: Annotated[float, Field(gt=0)] = 0.2
    """A deviation above this share warns."""
    block: Annotated[float, Field(gt=0)] = 0.45
    """A deviation above this share blocks."""
    min_history: Annotated[int, Field(ge=1)] = 4
    """Number of partitions of the same weekday in the median. With fewer, no deviation is checked. If as many in a row
    are rejected at one level, the finding names the command that accepts the level."""
    allow_empty: bool = False
    """Allow a partition without rows."""

    @model_validator(mode="after")
    def _make_sense(self) -> Self:
        if self.warn > self.block:
            raise ValueError(
                f"`warn` {self.warn:g} is larger than `block` {self.block:g}: no deviation would only warn. "
                f"Make `warn` the smaller"
            )
        return self


def _switched_off(value: Any) -> Any:
    # YAML reads an unquoted off as false.
    return {"kind": "none", "allow_empty": True} if value is False or value == "off" else value


VolumeSection = Annotated[
    VolumeRule,
    BeforeValidator(_switched_off, json_schema_input_type=VolumeRule | Literal["off", False]),
]
"""A rule, or `off`: any number of rows passes, also zero."""


@dataclass(frozen=True, kw_only=True)
class VolumePast:
    """Row counts of a table's partitions so far."""

    passed: Mapping[str, int] = field(default_factory=dict[str, int])
    """Partition key → rows, of partitions that passed or were accepted."""
    rejected: Mapping[str, int] = field(default_factory=dict[str, int])
    """The same of partitions whose newest verdict is a rejection by this rule alone."""
    levels: Sequence[Set[str]] = ()
    """Keys that one acceptance of a level covers, in the order of the acceptances."""


def volume_findings(
    rows: Mapping[str, int],
    past: VolumePast,
    rule: VolumeRule,
    *,
    table: str = "TABLE",
    of_months: str = "",
    zone: str = "UTC",
) -> dict[str, Finding]:
    """Return partition key → finding, for partitions that have one. An empty one blocks unless the rule allows it.

    Goes through `rows` in the order of keys: a backfill compares each day with the days before it, also with days of
    the same backfill, but not with days that block. Only keys before a key count; for a table without partitions, the
    version before. Leave partitions that other rules reject out of `rows`: a broken day says nothing about the days
    after it. `of_months`: plural of partitions of whole months, whose weekday says nothing. `zone`: the local time of
    hours.
    """
    usual = _Usual(past, rule, of_months=of_months, zone=zone)
    runs = _Runs(usual, rule)
    found: dict[str, Finding] = {}
    for key in sorted({**past.rejected, **rows}):
        if key not in rows:
            runs.add(key, past.rejected[key])
        elif rows[key] == 0:
            if not rule.allow_empty:
                found[key] = _empty(key)
        elif rule.kind != "none":
            finding = _finding(key, rows[key], usual, runs, rule, table)
            if finding is not None:
                found[key] = finding
            if finding is None or not finding.blocks:
                usual.add(key, rows[key])
    return found


def _finding(
    key: str, rows: int, usual: "_Usual", runs: "_Runs", rule: VolumeRule, table: str
) -> Finding | None:
    number, what = usual.of(key)
    if not number:
        return None
    deviation = rows / number - 1
    if abs(deviation) <= rule.warn:
        return None
    blocks = abs(deviation) > rule.block
    if blocks:
        first, count = runs.add(key, rows)
        helps = "Check that the source was complete. If the number is right, accept the partition:"
        accepts = key
        if count >= rule.min_history:
            accepts = f"{first}..{key}"
            helps = (
                f"The {count - 1} rejected before it, from {first} on, deviate alike. Check the source. If this is the "
                f"new level, accept it once for all of them, and later partitions are compared with it:"
            )
        helps = f"{helps} ml-assets accept {table} {accepts} --reason '…'"
    else:
        helps = "It passes. If no holiday explains the number, check the source."
    more_or_fewer = f"{abs(deviation):.0%} {'more' if deviation > 0 else 'fewer'}"
    return Finding(
        rule="volume",
        severity="block" if blocks else "warn",
        measured=f"{rows:,} rows, {deviation:+.0%} against {number:,.10g}",
        limit=f"±{rule.block if blocks else rule.warn:.0%} of {what}",
        explanation=f"{rows:,} rows are {more_or_fewer} than {number:,.10g}, {what}. {helps}",
    )


def _empty(key: str) -> Finding:
    return Finding(
        rule="empty_partition",
        measured="0 rows",
        limit="at least one row",
        explanation=(
            f"The source returned no rows for {key}. Materialize it again when the source has rows, or set "
            f"`allow_empty: true` for this table if a partition may be empty."
        ),
    )


@dataclass(frozen=True)
class _Level:
    """A level that a person accepted."""

    first: date
    ratios: Mapping[date, float]
    """Covered partition → its rows, divided by the usual number before the level."""
    is_whole: bool
    """True if no partition passed in between, so that the level is that of all weekdays and hours."""


class _Usual:
    """Usual row counts of a table. Counts from before an accepted level are scaled to it."""

    def __init__(self, past: VolumePast, rule: VolumeRule, *, of_months: str, zone: str) -> None:
        self._rule = rule
        self._of_months = of_months
        self._zone = ZoneInfo(zone)
        self._rows: dict[date, int] = {}
        self._days: dict[_Group, list[date]] = {}
        self._all: dict[bool, list[date]] = {False: [], True: []}
        self._version = past.passed.get("all", 0)
        for key, rows in past.passed.items():
            self.add(key, rows)
        self._levels: list[_Level] = []
        for keys in past.levels:
            self._add_level(keys)

    def add(self, key: str, rows: int) -> None:
        """Add a partition that passed. Without rows, it is legal and says nothing about others."""
        day = _as_date(key)
        if not rows or day is None:
            return
        if day not in self._rows:
            insort(self._days.setdefault(self.group(day), []), day)
            insort(self._all[isinstance(day, datetime)], day)
        self._rows[day] = rows

    def of(self, key: str) -> tuple[float, str]:
        """Return the usual row count and its name; 0 if there is too little history."""
        today = _as_date(key)
        if today is None:
            return self._version, "the version before it"
        last = self._before(today)
        if not last:
            return 0, ""
        if self._rule.kind == "previous":
            return self._median(last, today, self._levels), f"the partition before it, {iso_name(last[-1])}"
        local = today.astimezone(self._zone) if isinstance(today, datetime) else today
        hour = f" at {local:%H}:00 {self._zone}" if isinstance(local, datetime) else ""
        alike = self._of_months or f"{local:%A}s{hour}"
        return self._median(last, today, self._levels), f"the median of the last {len(last)} {alike}"

    def newest_passed(self, today: date, group: _Group | None) -> date | None:
        """Return the newest partition with rows before `today`, of all or of a group."""
        days = self._all[isinstance(today, datetime)] if group is None else self._days.get(group, [])
        place = bisect_left(days, today)
        return days[place - 1] if place else None

    def group(self, day: date) -> _Group:
        """Return the group of partitions with which `day` is compared."""
        is_hour = isinstance(day, datetime)
        if self._rule.kind == "previous" or self._of_months:
            return is_hour, 0, 0
        if isinstance(day, datetime):
            local = day.astimezone(self._zone)
            return is_hour, local.weekday(), local.hour
        return is_hour, day.weekday(), 0

    def _before(self, today: date, end: date | None = None) -> list[date]:
        """Return the partitions with which `today` is compared, of those before `end`; none if they are too few."""
        days = self._days.get(self.group(today), [])
        needed = 1 if self._rule.kind == "previous" else self._rule.min_history
        place = bisect_left(days, end or today)
        return days[place - needed : place] if place >= needed else []

    def _median(self, days: Sequence[date], today: date, levels: Sequence[_Level]) -> float:
        return statistics.median(self._scaled(day, today, levels) for day in days)

    def _scaled(self, day: date, today: date, levels: Sequence[_Level]) -> float:
        rows: float = self._rows[day]
        for level in levels:
            if day < level.first <= today:
                rows *= self._factor(level, self.group(day))
        return rows

    def _factor(self, level: _Level, group: _Group) -> float:
        own = [ratio for day, ratio in level.ratios.items() if self.group(day) == group]
        return statistics.median(own or (level.ratios.values() if level.is_whole else [1.0]))

    def _add_level(self, keys: Set[str]) -> None:
        days = sorted(day for key in keys if (day := _as_date(key)) is not None and day in self._rows)
        days = [day for day in days if isinstance(day, datetime) == isinstance(days[0], datetime)]
        if not days:
            return
        ratios: dict[date, float] = {}
        for day in days:
            last = self._before(day, days[0])
            if last and (number := self._median(last, day, self._levels)):
                ratios[day] = self._rows[day] / number
        if ratios:
            every = self._all[isinstance(days[0], datetime)]
            between = every[bisect_left(every, days[0]) : bisect_left(every, days[-1]) + 1]
            self._levels.append(_Level(days[0], ratios, is_whole=between == days))


@dataclass(frozen=True)
class _Run:
    """Rejected partitions one after the other whose rows deviate alike."""

    first: date
    last: date
    count: int
    ratio: float
    """Rows of the first, divided by the usual number."""


class _Runs:
    """Newest runs of rejected partitions: of the whole table, and of each weekday or hour."""

    def __init__(self, usual: _Usual, rule: VolumeRule) -> None:
        self._usual = usual
        self._warn = rule.warn
        self._newest: dict[_Group | bool, _Run] = {}

    def add(self, key: str, rows: int) -> tuple[str, int]:
        """Add a rejected partition, in the order of keys. Return the first key of its longest run, and its length."""
        day = _as_date(key)
        number, _ = self._usual.of(key)
        if day is None or not number:
            return key, 1
        group = self._usual.group(day)
        longest = max(
            (
                self._grown(isinstance(day, datetime), None, day, rows / number),
                self._grown(group, group, day, rows / number),
            ),
            key=lambda run: run.count,
        )
        return iso_name(longest.first), longest.count

    def _grown(self, name: "_Group | bool", group: _Group | None, day: date, ratio: float) -> _Run:
        before, passed = self._newest.get(name), self._usual.newest_passed(day, group)
        goes_on = (
            before is not None
            and (passed is None or passed <= before.last)
            and abs(ratio / before.ratio - 1) <= self._warn
        )
        run = (
            _Run(before.first, day, before.count + 1, before.ratio)
            if before and goes_on
            else _Run(day, day, 1, ratio)
        )
        self._newest[name] = run
        return run


@lru_cache(maxsize=100_000)
def _as_date(key: str) -> date | None:
    """Return the day in a key, or its hour (UTC) as a `datetime`; None for a table without partitions."""
    try:
        return datetime.fromisoformat(key).replace(tzinfo=UTC) if "T" in key else date.fromisoformat(key)
    except ValueError:
        return None
