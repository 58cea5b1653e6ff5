"""Days and hours: the moments at which they begin, their names, and sets of days.

A day is a `date`. An hour is the moment (UTC) at which it begins, a `datetime`. A set of days is, for example, the days
that a model has seen, or those of a holdout.

Partition keys of different cadences cannot be compared: a monthly key is one day as text and covers 31. So whatever
was trained, searched or measured is compared by its days. Not here: the days of a partition key (`tables.cadence`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Self
from zoneinfo import ZoneInfo

HOUR = timedelta(hours=1)
MICROSECOND = timedelta(microseconds=1)
"""Resolution of all moments in tables."""
UNITS_A_DAY = {"ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}
"""Unit of time of a polars type → its number in a day."""


def midnight(day: date, zone: str) -> datetime:
    """Return the first moment (UTC) of `day` in `zone`.

    If clocks skip midnight, as in Cairo in spring, the day begins at the skip. If midnight comes twice, the day begins
    at the first.
    """
    # For a time that clocks skip, Python uses the earlier offset. At midnight this gives the moment of the skip.
    return datetime.combine(day, time(), ZoneInfo(zone)).astimezone(UTC)


def begin_of(first: date, zone: str) -> datetime:
    """Return the first moment (UTC) of a day in `zone`, or of an hour."""
    return first.astimezone(UTC) if isinstance(first, datetime) else midnight(first, zone)


def after(last: date) -> date:
    """Return the day after a day, or the hour after an hour."""
    return last + (HOUR if isinstance(last, datetime) else timedelta(days=1))


def iso_name(first: date) -> str:
    """Return the name of a day or hour: `2024-03-08`, `2024-03-08T05`."""
    # Not by strftime, which writes the year 999 with three digits.
    return f"{first.date()}T{first.hour:02}" if isinstance(first, datetime) else first.isoformat()


@dataclass(frozen=True)
class Days:
    """Set of days. Equal sets are equal values. False if empty."""

    spans: tuple[tuple[str, str], ...] = ()
    """First and last day of each interval, as ISO 8601 text; oldest first, with at least one day between two intervals.
    """

    @classmethod
    def of(cls, spans: Iterable[tuple[date, date]]) -> Self:
        """Return the days of all `spans`, which are pairs of a first and a last day in any order, also overlapping."""
        merged: list[tuple[date, date]] = []
        for first, last in sorted(spans):
            if last < first:
                raise ValueError(f"a span ends on {last}, before its begin {first}: swap them")
            if merged and first.toordinal() <= merged[-1][1].toordinal() + 1:
                merged[-1] = merged[-1][0], max(merged[-1][1], last)
            else:
                merged.append((first, last))
        return cls(tuple((first.isoformat(), last.isoformat()) for first, last in merged))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `dataclasses.asdict`, also after JSON. Raises `ValueError`, `KeyError` or `TypeError`."""
        spans = document["spans"]
        return cls.of((date.fromisoformat(first), date.fromisoformat(last)) for first, last in spans)

    @property
    def _spans(self) -> list[tuple[date, date]]:
        return [(date.fromisoformat(first), date.fromisoformat(last)) for first, last in self.spans]

    def __bool__(self) -> bool:
        """Return False for the empty set."""
        return bool(self.spans)

    def __or__(self, other: Self) -> Self:
        """Return the days of both."""
        return type(self).of([*self._spans, *other._spans])

    def __and__(self, other: Self) -> Self:
        """Return the days that both hold."""
        pairs = ((one, another) for one in self._spans for another in other._spans)
        both = ((max(one[0], another[0]), min(one[1], another[1])) for one, another in pairs)
        return type(self).of((first, last) for first, last in both if first <= last)

    def reaches(self, other: Self) -> bool:
        """Return True if some day of this set is the first day of `other` or later.

        Weights and values that saw a later day than the first of a holdout know the future of that holdout, even where
        they skipped its days.
        """
        return bool(self and other) and self.spans[-1][1] >= other.spans[0][0]

    def __str__(self) -> str:
        """Return the intervals for people: `2024-01-01 to 2024-02-10, 2024-03-01`."""
        return ", ".join(first if first == last else f"{first} to {last}" for first, last in self.spans)
