"""Both halves of a source: its section in a `defs.yaml`, and the reader of its rows. A kind of source extends both.

Here: keys and errors that several kinds share, and what a reader answers: the rows of a partition, the newest day, a
look for changes, a preview, a check. Nothing here connects.

A look compares main with the source in two ways. A version notices every change, and costs a look at the rows or files
of a partition, so a sensor asks for the newest partitions alone. A source with `watermark_column` also dates its
changes, which finds changed rows of any age.

Each error says what is wrong, where, and what helps; none contains a credential.
"""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Annotated, Any, ClassVar, TypeVar
from zoneinfo import ZoneInfo

import polars as pl
from pydantic import AfterValidator, Field

from ml_assets.data.tables.spec import UndatedRows
from ml_assets.data.validation.contract import Column, Contract
from ml_assets.foundation.days import begin_of
from ml_assets.foundation.sections import Section
from resources.addresses import Address
from resources.platform import Platform
from resources.retry import patiently

Answer = TypeVar("Answer")


class SourceRefused(Exception):
    """A source cannot return what was asked for, and another try would not help."""


class SourceAway(SourceRefused, ConnectionError):
    """A source did not answer, after retries. A later try may succeed."""


class PartitionOpen(SourceRefused):
    """A partition is not over, or its source may still get rows of it."""


class VariableMissing(SourceRefused):
    """The environment variable that a section names is not set."""


class ColumnsChanged(SourceRefused):
    """The columns of a source are not the contract's: some were added, removed, or have another type."""


_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


def _must_be_a_variable(text: str) -> str:
    # The message never repeats the text, because it may be the credential itself.
    if not _VARIABLE.fullmatch(text):
        raise ValueError(
            "write the name of an environment variable, such as WAREHOUSE_URL; a credential never stands in a file"
        )
    return text


VariableName = Annotated[str, AfterValidator(_must_be_a_variable)]
"""Name of an environment variable that holds an address or a credential."""


def _must_have_no_credentials(text: str) -> str:
    if Address(text).has_credentials:
        raise ValueError(
            f"{Address(text)} holds credentials: leave them out, and name environment variables in the keys that end "
            "with _env"
        )
    return text


PublicAddress = Annotated[str, AfterValidator(_must_have_no_credentials)]
"""Address or path without credentials."""


class WatchSection(Section):
    """A sensor that asks a source for its latest day."""

    every_seconds: int = Field(default=60, ge=5)
    """Seconds between two calls of `latest`."""
    retry_seconds: int = Field(default=3600, ge=5)
    """Seconds to wait before the sensor requests a failed, rejected or missing partition again."""
    recheck: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,4}[dh]$")] | None = Field(
        default=None, examples=["7d"]
    )
    """Time before the end of the newest partition on main, such as `7d` or `36h`. Each call compares the partitions
    that lie in it with the source, and requests those that changed there. Default: the two newest partitions."""
    enabled: bool = False
    """Run the sensor without switching it on in the UI."""

    @property
    def recheck_time(self) -> timedelta | None:
        """`recheck` as a duration."""
        if self.recheck is None:
            return None
        number = int(self.recheck[:-1])
        return timedelta(days=number) if self.recheck.endswith("d") else timedelta(hours=number)


class SourceSection(Section):
    """Source of a dataset."""

    apart_from_rows: ClassVar[frozenset[str]] = frozenset({"watch"})
    """Keys that do not decide which rows are read."""
    watch: WatchSection | None = None
    """Sensor that asks the source for its latest day and ingests new partitions."""

    @property
    def code_version(self) -> str:
        """Code version of the dataset, 16 hex digits: a digest of the keys that decide which rows are read.

        Names of environment variables and `apart_from_rows` do not count.
        """
        facts: dict[str, Any] = self.model_dump(mode="json", exclude=set(self.apart_from_rows))
        facts = {name: value for name, value in facts.items() if not name.endswith("_env")}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def reads_at_once(self) -> int:
        """Partitions that may be read at the same time, each by a reader of its own."""
        return 1

    @property
    def lacks_for_latest(self) -> str | None:
        """Key that the section lacks to find the newest day of the source, and its meaning; None if it lacks none."""
        return None

    @property
    def complete_after(self) -> timedelta:
        """Time after the end of a partition until the source holds all its rows."""
        return timedelta(0)

    def lacks_in(self, contract: Contract) -> str | None:
        """Return what this kind of source needs and the contract lacks, with the remedy; None if it lacks nothing."""
        return None


class TabularSource(SourceSection):
    """Source that holds a table, with a column for the time of a row."""

    time_column: str | None = Field(default=None, examples=["sold_at"])
    """Column of type date or datetime that decides to which partition a row belongs; of type datetime if partitions are
    hours. Default: the contract's event time."""
    watermark_column: str | None = Field(default=None, examples=["changed_at"])
    """Column of type datetime with the moment at which the source last changed a row."""
    complete_after_hours: Annotated[float, Field(ge=0, le=24 * 366)] = 0.0
    """Hours after the end of a partition until the source holds all its rows. It is not read before."""

    @property
    def complete_after(self) -> timedelta:
        """See `SourceSection`."""
        return timedelta(hours=self.complete_after_hours)


_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


class StoredSource(TabularSource):
    """Source of files in a local folder or in S3."""

    endpoint_url_env: VariableName | None = Field(default=None, examples=["SHOP_S3_URL"])
    """Environment variable with the address of an S3 server. Default: the platform's, `ML_ASSETS_S3_ENDPOINT_URL`."""
    access_key_id_env: VariableName | None = Field(default=None, examples=["SHOP_KEY_ID"])
    """Environment variable with the access key. Default: AWS's own variables and files."""
    secret_access_key_env: VariableName | None = Field(default=None, examples=["SHOP_SECRET_KEY"])
    """Environment variable with the secret key; required with `access_key_id_env`."""


def variable(name: str, platform: Platform) -> str:
    """Return the value of an environment variable that a section names. Raises `VariableMissing`."""
    value = platform.variable(name)
    if value is None:
        raise VariableMissing(
            f"the environment variable {name} is not set, and source names it: set it where Dagster and the command run"
        )
    return value


def storage_options(section: StoredSource, platform: Platform) -> dict[str, str]:
    """Return options for polars and deltalake, by their shared names. Raises `VariableMissing`."""
    options: dict[str, str] = {}
    endpoint = (
        variable(section.endpoint_url_env, platform)
        if section.endpoint_url_env
        else platform.settings.s3_endpoint_url.reveal()
        if platform.settings.s3_endpoint_url
        else None
    )
    if endpoint is not None:
        options["aws_endpoint_url"] = endpoint
    # The clients of polars and deltalake find AWS's own variables, but refuse an address without TLS.
    used = endpoint or next(filter(None, map(platform.variable, _ENDPOINTS)), "")
    if used.startswith("http://"):
        options["aws_allow_http"] = "true"
    if section.access_key_id_env is not None:
        options["aws_access_key_id"] = variable(section.access_key_id_env, platform)
    if section.secret_access_key_env is not None:
        options["aws_secret_access_key"] = variable(section.secret_access_key_env, platform)
    return options


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
        """Return the days of `time_zone` that lie in it, or those of its hour: two if a day begins within the hour, as
        at 18:30 UTC in Kolkata."""
        if isinstance(self.first, datetime):
            first, end = self.moments(time_zone)
            return sorted(
                {
                    one.astimezone(ZoneInfo(time_zone)).date()
                    for one in (first, end - timedelta(microseconds=1))
                }
            )
        return [self.first + timedelta(days=n) for n in range((self.end - self.first).days)]


@dataclass(frozen=True, kw_only=True)
class SourceRows:
    """Rows of one partition, as the source returned them."""

    frame: pl.DataFrame
    returned: int
    """Rows that the source returned for the partition, counted before any of them was converted or left out."""
    undated: UndatedRows = field(default_factory=UndatedRows)
    """Rows without a time: returned, and not in `frame`. None where the place of a row tells its partition, as the path
    of a file does; its rows without a time are in `frame`."""
    repeated: int = 0
    """Copies of a message that were left out."""
    watermark: datetime | None = None
    """Newest change in these rows according to the source. It follows from the rows, never from a clock."""
    version: str | None = None
    """Version of these rows, if the source has versions of partitions. `look` compares it with the source."""


@dataclass(frozen=True, slots=True)
class ReadPartition:
    """A partition as main holds it."""

    watermark: datetime | None
    version: str | None
    """See `SourceRows`."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """State of a source at one moment, found without reading partitions again."""

    latest: date | None
    """See `SourceReader.latest`."""
    changed: frozenset[Span] = frozenset()
    """Partitions on main whose rows are others now, or may be."""
    ahead: frozenset[Span] = frozenset()
    """Partitions among them with changes that are dated later than the source's clock says."""
    cost: Mapping[str, int] = field(default_factory=dict[str, int])
    """Cost of the look: noun → number read, such as `queries` → 1 and `rows` → 1204."""


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
    def event_time(self) -> str | None:
        """Column of the time of a row, by the contract."""
        return self.contract.event_time if self.contract else None

    @property
    def columns(self) -> Mapping[str, Column]:
        """Columns of the contract; empty before the table has one."""
        return self.contract.by_name if self.contract else {}

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

    looks_at: ClassVar[str]
    """Part of the source that `look` reads to notice changes, in words."""

    def __init__(self, table: SourceTable, platform: Platform) -> None:
        """Without a patience of `platform`, wait 60 s for a source that does not answer."""
        self._table = table
        self._patience = 60.0 if platform.patience_seconds is None else platform.patience_seconds

    def _patiently(self, call: Callable[[], Answer], may_pass: Callable[[BaseException], bool]) -> Answer:
        """Return the result of `call`; repeat it while its error may pass."""
        return patiently(call, may_pass, lambda _: self._patience, first_pause=0.2, longest_pause=5.0)

    def _away(self, who: str, said: str) -> SourceAway:
        return SourceAway(f"{self._table.name}: {who} did not answer for {self._patience:g} s: {said}")

    @abstractmethod
    def read(self, span: Span | None) -> SourceRows:
        """Return the rows of a partition; of the whole table if `span` is None."""

    @abstractmethod
    def latest(self) -> date | None:
        """Return the newest day of which the source has rows, or that it calls complete; None if it has no day yet.

        Of an hourly table, return the newest hour: the moment (UTC) at which it begins. The day may still be open.
        """

    @abstractmethod
    def preview(self, rows: int) -> pl.DataFrame:
        """Return up to `rows` of the newest rows, with the types of the source."""

    @abstractmethod
    def check(self) -> Sequence[str]:
        """Connect, and return a sentence with a remedy for each fault; empty if there is none."""

    def look(self, read: Mapping[Span, ReadPartition], window: Collection[Span]) -> Look:
        """Look for the newest day and for changed partitions. `read` are the partitions on main.

        Of those in `window`, the version of the rows is compared. By default, the source knows nothing of changes.
        """
        return Look(latest=self.latest())

    def facts(self) -> PageFacts:
        """Return facts about the source for the asset's page, as they were at the last read."""
        return {}

    def close(self) -> None:  # noqa: B027 - most readers hold nothing open
        """Close connections. The reader may be used again."""


OVERLAP = timedelta(days=2)
"""More than a clock that is set back by a day, and than any transaction that a database should have."""
CLOCKS_DIFFER = timedelta(hours=1)
"""Difference of two clocks that is no reason to doubt them."""


def version_of_files(files: Iterable[tuple[object, ...]]) -> str:
    """Return the version of the rows in files, 32 hex digits. A file is its name and facts that change with it."""
    listed = sorted(json.dumps(list(one)) for one in files)
    return hashlib.sha256("\n".join(listed).encode()).hexdigest()[:32]


def differing(read: Mapping[Span, ReadPartition], versions: Mapping[Span, str | None]) -> frozenset[Span]:
    """Return the partitions whose version on main is not the source's; None: the source has no rows of it."""
    return frozenset(span for span, version in versions.items() if read[span].version != version)


def ahead_of(now: datetime, read: Mapping[Span, ReadPartition]) -> frozenset[Span]:
    """Return the partitions with changes that are later than `now`, the time of the source's clock.

    The clock was set back, or was ahead before: what changes now looks older than what was read already.
    """
    limit = now + CLOCKS_DIFFER
    return frozenset(
        span for span, one in read.items() if one.watermark is not None and one.watermark > limit
    )


def unread_after(
    read: Mapping[Span, ReadPartition], ahead: frozenset[Span], overlap: timedelta = OVERLAP
) -> datetime | None:
    """Return the moment after which changes may be unread; None if main has no change with a date.

    A change may be dated up to `overlap` before the newest one that was read: a long transaction commits late, or a
    clock was set back.
    """
    marks = [one.watermark for span, one in read.items() if one.watermark and span not in ahead]
    return max(marks) - overlap if marks else None


def redated(
    read: Mapping[Span, ReadPartition], newest: Mapping[Span, datetime], after: datetime
) -> frozenset[Span]:
    """Return the partitions whose newest change is not the one on main. `newest`: changes after `after`."""

    def differs(span: Span, stored: datetime | None) -> bool:
        found = newest.get(span)
        if found is None:  # nothing is newer than `after` there, so nothing may be newer on main
            return stored is not None and stored > after
        return found != stored

    return frozenset(span for span, one in read.items() if differs(span, one.watermark))
