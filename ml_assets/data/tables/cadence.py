"""Arithmetic of partition keys: the keys of a table, the keys before a key, the days that a key covers.

A key is a string. A daily key is its day (`"2013-01-01"`), a weekly key its Monday, a monthly, quarterly or yearly key
the first day of its month, quarter or year. An hourly key is an hour of UTC (`"2013-01-01T05"`); in arithmetic, an hour
is the moment at which it begins. A table without partitions has the single key `"all"`. Nothing here knows the lake or
Dagster.
"""

from calendar import monthrange
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from typing import Literal, Self

from pydantic import model_validator

from ml_assets.foundation.days import after, begin_of, iso_name
from ml_assets.foundation.sections import Section

CadenceKind = Literal["hourly", "daily", "weekly", "monthly", "quarterly", "yearly", "none"]

UNPARTITIONED = "all"
"""The single key of a table without partitions."""

Fit = Literal["same", "finer", "coarser"]
"""Partitions of an input, compared with those of the table that reads it."""

_FITS: dict[tuple[CadenceKind, CadenceKind], Fit] = {
    ("daily", "hourly"): "finer",
    ("weekly", "hourly"): "finer",
    ("weekly", "daily"): "finer",
    ("monthly", "hourly"): "finer",
    ("monthly", "daily"): "finer",
    ("quarterly", "hourly"): "finer",
    ("quarterly", "daily"): "finer",
    ("quarterly", "monthly"): "finer",
    ("yearly", "hourly"): "finer",
    ("yearly", "daily"): "finer",
    ("yearly", "monthly"): "finer",
    ("yearly", "quarterly"): "finer",
    ("hourly", "daily"): "coarser",
    ("hourly", "weekly"): "coarser",
    ("daily", "weekly"): "coarser",
}
_MONTHS: dict[CadenceKind, int] = {"monthly": 1, "quarterly": 3, "yearly": 12}
OF_MONTHS: dict[CadenceKind, str] = {"monthly": "months", "quarterly": "quarters", "yearly": "years"}
"""Cadence of partitions that begin with a month → their plural."""
_HOURS = 24
HOUR_KEY = "%Y-%m-%dT%H"
"""Format of an hourly key."""


FIRST_YEAR, LAST_YEAR = 1001, 9998
"""Years that partitions can have. Dagster writes the keys of earlier years without their zero, and after the last
partition of a later year begins a day that no calendar of Python has."""


def fit_of(own: CadenceKind, read: CadenceKind) -> Fit | None:
    """Return how the partitions of an input fit those of the table that reads it; None if they do not."""
    return "same" if read == own else _FITS.get((own, read))


class YearRefused(ValueError):
    """A day is in a year that partitions cannot have."""

    def __init__(self, day: date) -> None:
        super().__init__(f"{day} is not in the years {FIRST_YEAR} to {LAST_YEAR}, which partitions can have")


class KeyRefused(ValueError):
    """A string is not a partition key of this cadence."""


@dataclass(frozen=True, slots=True)
class Cadence:
    """Cut of a table into partitions. Keys sort in time order as strings."""

    kind: CadenceKind
    start: date | None = None
    """First day covered; needed unless `kind` is "none". A partition of many days begins the table if it holds this
    day; an hourly table begins with the first hour."""
    end: date | None = None
    """Last day covered, inclusive; None means open."""

    def __post_init__(self) -> None:
        if self.kind == "none":
            return
        if self.start is None:
            raise ValueError(
                f"a {self.kind} cadence needs its first day: set `start`, for example 2013-01-01"
            )
        if self.end is not None and self.end < self.start:
            raise ValueError(f"cadence ends on {self.end}, before its start {self.start}: swap them")

    def key_of(self, day: date) -> str:
        """Return the key of the partition that holds a day or a moment, even if the table does not cover that day. In
        an hourly table, a day stands for its first hour."""
        if self.kind == "none":
            return UNPARTITIONED
        return iso_name(self._at(self._number(day)))

    def bounds(self, key: str) -> tuple[date, date]:
        """Return the first and last day of `key`, both inclusive. Raises `KeyRefused` for a key of another cadence.

        Of an hourly table, return the hour twice. A table without partitions has no days: the bounds are (`date.min`,
        `date.max`).
        """
        if self.kind == "none":
            if key != UNPARTITIONED:
                raise KeyRefused(f"{key!r}: a table without partitions has only the key {UNPARTITIONED!r}")
            return date.min, date.max
        first = begin_of_key(key)
        if first is None or isinstance(first, datetime) != (self.kind == "hourly"):
            form = "the hour of UTC as YYYY-MM-DDTHH" if self.kind == "hourly" else "the day as YYYY-MM-DD"
            raise KeyRefused(f"{key!r} is not a {self.kind} key: write {form}")
        if self.key_of(first) != key:
            raise KeyRefused(f"{key!r} is not a {self.kind} key: that day belongs to {self.key_of(first)!r}")
        return first, self._last_day(first)

    def end_of(self, key: str, zone: str) -> datetime | None:
        """Return the moment (UTC) at which partition `key` is over; None for a table without partitions.

        Days begin at midnight in `zone`.
        """
        return None if self.kind == "none" else begin_of(after(self.bounds(key)[1]), zone)

    def require(self, key: str) -> None:
        """Raise `KeyRefused` if `key` belongs to another cadence or lies outside the days that this cadence covers."""
        first, _ = self.bounds(key)
        if self.kind == "none":
            return
        if self._number(first) < self._number(self._covered_from):
            raise KeyRefused(
                f"{key}: partitions begin with {self.key_of(self._covered_from)}, at the table's start"
            )
        if self.end is not None and self._number(first) > self._last_number(self.end):
            end = iso_name(self._at(self._last_number(self.end)))
            raise KeyRefused(f"{key}: partitions end with {end}, at the table's end")

    def keys(self, first: date, last: date) -> list[str]:
        """Return the keys of the table's partitions that overlap the days, or hours, `first`..`last` (inclusive)."""
        if self.kind == "none":
            return [UNPARTITIONED]
        return self._covered(self._number(first), self._last_number(last))

    def complete(self, latest: date) -> list[str]:
        """Return the keys of the partitions that end by the end of a day, or of an hour."""
        if self.kind == "none":
            return [UNPARTITIONED]
        # The partition of the next day, or hour, is the first one that is not over.
        return self._covered(self._number(self._covered_from), self._number(after(latest)) - 1)

    def covers(self, key: str) -> bool:
        """True if `key` is a partition of this cadence within the days that it covers."""
        try:
            self.require(key)
        except KeyRefused:
            return False
        return True

    def is_key(self, key: str) -> bool:
        """True if `key` is a key of this cadence, also one outside the days that it covers."""
        try:
            self.bounds(key)
        except KeyRefused:
            return False
        return True

    def newest_of(self, present: Iterable[str], n: int = 1) -> list[str]:
        """Return the newest `n` of the keys that are keys of this cadence, oldest first.

        Main may hold others, from the time before the table's cadence changed.
        """
        return list(islice(filter(self.is_key, sorted(present, reverse=True)), n))[::-1]

    def are_neighbours(self, earlier: str, later: str) -> bool:
        """True if no partition lies between `earlier` and `later`."""
        return self._number(self.bounds(later)[0]) - self._number(self.bounds(earlier)[0]) == 1

    def previous(self, key: str, n: int = 1) -> list[str]:
        """Return up to `n` keys just before `key`, oldest first; fewer at the table's start."""
        return [k for k in self.window(key, n + 1) if k < key]

    def window(self, key: str, lookback: int) -> list[str]:
        """Return the `lookback` keys up to and including `key`, oldest first; fewer at the table's start."""
        if lookback < 1:
            raise ValueError(f"a window holds at least its own key: lookback is {lookback}")
        first, _ = self.bounds(key)
        if self.kind == "none":
            return [UNPARTITIONED]
        # A window may reach back before the calendar begins.
        low = max(self._number(first) - (lookback - 1), self._number(self._covered_from))
        return [k for k in self.keys(self._at(low), first) if k <= key][-lookback:]

    def before(self, day: date, n: int) -> list[str]:
        """Return the keys of the `n` partitions before the one that holds `day`, oldest first, whatever the start."""
        number = self._number(day)
        return [iso_name(self._at(number - back)) for back in range(n, 0, -1) if number > back]

    @property
    def _covered_from(self) -> date:
        return self.start or date.min

    def _last_day(self, first: date) -> date:
        if months := _MONTHS.get(self.kind):
            last = first.month + months - 1
            return first.replace(month=last, day=monthrange(first.year, last)[1])
        return first + timedelta(days=6) if self.kind == "weekly" else first

    def _covered(self, low: int, high: int) -> list[str]:
        """Return the keys of the table's partitions with the numbers `low`..`high` (inclusive)."""
        low = max(low, self._number(self._covered_from))
        if self.end is not None:
            high = min(high, self._last_number(self.end))
        return [iso_name(self._at(number)) for number in range(low, high + 1)]

    def _number(self, day: date) -> int:
        """Return the number of the partition that holds a day or a moment; of the first one if it holds several.

        Partitions are counted from the begin of the calendar, a Monday.
        """
        if isinstance(day, datetime):
            day = day.astimezone(UTC)
        if self.kind == "hourly":
            return day.toordinal() * _HOURS + (day.hour if isinstance(day, datetime) else 0)
        if months := _MONTHS.get(self.kind):
            return (day.year * 12 + day.month - 1) // months
        return (day.toordinal() - 1) // 7 if self.kind == "weekly" else day.toordinal()

    def _last_number(self, day: date) -> int:
        is_day_of_hours = self.kind == "hourly" and not isinstance(day, datetime)
        return self._number(day) + (_HOURS - 1 if is_day_of_hours else 0)

    def _at(self, number: int) -> date:
        """Return the first day of a partition by its number; its hour in an hourly table."""
        if self.kind == "hourly":
            day, hour = divmod(number, _HOURS)
            return datetime.combine(date.fromordinal(day), time(hour), UTC)
        if months := _MONTHS.get(self.kind):
            year, month = divmod(number * months, 12)
            return date(year, month + 1, 1)
        return date.fromordinal(number * 7 + 1 if self.kind == "weekly" else number)


def require_year(day: date) -> None:
    """Raise `YearRefused` unless partitions can have this day."""
    if not FIRST_YEAR <= day.year <= LAST_YEAR:
        raise YearRefused(day)


def begin_of_key(key: str) -> date | None:
    """Return the day in a key, or the hour (UTC); None for a text that is neither."""
    try:
        first = (
            datetime.strptime(key, HOUR_KEY).replace(tzinfo=UTC) if "T" in key else date.fromisoformat(key)
        )
    except ValueError:
        return None
    return first if iso_name(first) == key else None


class PartitionsSection(Section):
    """Partitions of a table or model, by date."""

    cadence: Literal["hourly", "daily", "weekly", "monthly", "quarterly", "yearly"]
    """`hourly`: a partition is an hour of UTC, such as `2013-01-01T05`; for tables alone, not for models. `daily`: it
    is a day. `weekly`: it is named by its Monday. `monthly`, `quarterly`, `yearly`: by the first day."""
    start: date
    """First day. A table with partitions of many days begins with the partition that holds it."""
    end: date | None = None
    """Last day; open if not given."""

    @model_validator(mode="after")
    def _starts_before_it_ends(self) -> Self:
        for day in filter(None, (self.start, self.end)):
            require_year(day)
        if self.end is not None and self.end < self.start:
            raise ValueError(f"start {self.start} is after end {self.end}: swap them")
        return self

    @property
    def as_cadence(self) -> Cadence:
        """The same partitions as a `Cadence`."""
        return Cadence(self.cadence, self.start, self.end)
