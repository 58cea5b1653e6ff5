"""Interface of a source: the rows of a partition, the newest day, a preview, and a check."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import polars as pl

from ml_assets.validation.contract import Contract
from ml_assets.validation.midnight import begin_of

OVERLAP = timedelta(days=2)
"""More than a clock that is set back by a day, and than any transaction that a database should have."""
CLOCKS_DIFFER = timedelta(hours=1)
"""Difference of two clocks that is no reason to doubt them."""


@dataclass(frozen=True, slots=True)
class Span:
    """Days of one partition, from `first` up to and without `end`. Of an hourly table, the moments (UTC) at which its
    hour and the next one begin."""

    first: date
    end: date

    def moments(self, time_zone: str) -> tuple[datetime, datetime]:
        """Return the UTC moments at which `first` and `end` begin; days begin in `time_zone`."""
        return begin_of(self.first, time_zone), begin_of(self.end, time_zone)

    def days(self, time_zone: str) -> list[date]:
        """Return the days of `time_zone` that lie in it, or the one that holds its hour."""
        if isinstance(self.first, datetime):
            return [self.first.astimezone(ZoneInfo(time_zone)).date()]
        return [self.first + timedelta(days=n) for n in range((self.end - self.first).days)]


@dataclass(frozen=True, kw_only=True)
class SourceRows:
    """Rows of one partition, as the source returned them."""

    frame: pl.DataFrame
    watermark: datetime | None = None
    """Newest change in these rows according to the source. It follows from the rows, never from a clock."""
    version: str | None = None
    """Version of these rows, if the source has versions of days. It follows from the rows."""


@dataclass(frozen=True, slots=True)
class ReadPartition:
    """A partition as main holds it."""

    watermark: datetime | None
    version: str | None
    """See `SourceRows`."""


PageFacts = Mapping[str, str | int | Sequence[Mapping[str, str | int]]]
"""Facts for the asset's page: name → text, number, or rows of a table."""


@dataclass(frozen=True, kw_only=True)
class SourceTable:
    """Facts of the table that a source fills."""

    name: str
    """Table id, `datasets/<name>`."""
    contract: Contract | None
    """Columns that the table must have; None before the table has a contract."""
    start: date | None = None
    """First day of the table; None for a table without partitions."""
    is_hourly: bool = False
    """True if a partition is an hour."""

    @property
    def first(self) -> date | None:
        """First day of the table, or its first hour; None for a table without partitions."""
        return begin_of(self.start, "UTC") if self.is_hourly and self.start else self.start

    @property
    def time_zone(self) -> str:
        """Time zone whose midnight begins a day."""
        return self.contract.event_time_zone if self.contract else "UTC"


class SourceReader(ABC):
    """Open source of one table. Every method raises `SourceRefused` or `SourceAway`. Not safe for threads."""

    @abstractmethod
    def read(self, span: Span | None) -> SourceRows:
        """Return the rows of a partition; of the whole table if `span` is None."""

    @abstractmethod
    def latest(self) -> date | None:
        """Return the newest day that is complete at the source; None if the source has no day yet.

        Of an hourly table, return the newest hour: the moment (UTC) at which it begins.
        """

    @abstractmethod
    def preview(self, rows: int) -> pl.DataFrame:
        """Return up to `rows` of the newest rows, with the types of the source."""

    @abstractmethod
    def check(self) -> Sequence[str]:
        """Connect, and return a sentence with a remedy for each fault; empty if there is none."""

    @property
    def records_changes(self) -> bool:
        """True if the source knows when a row last changed, so that `changed` finds late changes."""
        return False

    @property
    def overlap(self) -> timedelta:
        """Time before the newest watermark on main from which on `reopened` finds changes."""
        return OVERLAP

    def changed(self, after: datetime) -> Mapping[date, datetime]:
        """Return the days, or hours of an hourly table, with changes newer than `after`; the newest change of each."""
        return {}

    def now(self) -> datetime:
        """Return the time of the clock that dates changes; by default that of this machine."""
        return datetime.now(UTC)

    def ahead(self, read: Mapping[Span, ReadPartition]) -> frozenset[Span]:
        """Return the spans among `read` with a watermark that is later than the source's clock.

        The clock was set back, or was ahead before: what changes now looks older than what was read already.
        """
        marks = {span: one.watermark for span, one in read.items() if one.watermark is not None}
        if not marks:
            return frozenset()
        limit = self.now() + CLOCKS_DIFFER
        return frozenset(span for span, mark in marks.items() if mark > limit)

    def reopened(self, read: Mapping[Span, ReadPartition]) -> frozenset[Span]:
        """Return the spans among `read`, the partitions on main, whose rows changed at the source since, or may have.

        A change may be dated up to `overlap` before the newest one that was read: a long transaction commits late, or a
        clock was set back. So the newest change of each partition is compared with its own watermark.
        """
        ahead = self.ahead(read)
        marks = [one.watermark for span, one in read.items() if one.watermark and span not in ahead]
        if not marks or not self.records_changes:
            return ahead
        after = max(marks) - self.overlap
        newest = self.changed(after)
        days = sorted(newest)

        def differs(span: Span, stored: datetime | None) -> bool:
            of_span = days[bisect_left(days, span.first) : bisect_left(days, span.end)]
            found = max((newest[day] for day in of_span), default=None)
            if found is None:  # nothing is newer than `after` there, so nothing may be newer on main
                return stored is not None and stored > after
            return found != stored

        return ahead | {span for span, one in read.items() if differs(span, one.watermark)}

    def facts(self) -> PageFacts:
        """Return facts about the source for the asset's page, as they were at the last read."""
        return {}

    def close(self) -> None:  # noqa: B027 - most readers hold nothing open
        """Close connections. The reader may be used again."""
