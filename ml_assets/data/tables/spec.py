"""Specification of a table for publishing, and the values that go in. No lake, no validation.

Its section `retain` counts the age of a partition from the newest partition of the table, not from today: a table whose
source stopped loses nothing.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Self

import polars as pl
from pydantic import Field, model_validator

from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.layout import check_table
from ml_assets.data.tables.manifest import Reconciliation
from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.drift_rule import DriftRule
from ml_assets.data.validation.quarantine import COLUMN, REASON, RULE
from ml_assets.data.validation.volume import VolumeRule
from ml_assets.foundation.sections import Section

Count = Annotated[int, Field(ge=1)]


class Retain(Section):
    """Newest partitions that stay on main: a number of them, or those of a number of days."""

    days: Count | None = None
    """Days back from the last day of the newest partition, that day included."""
    partitions: Count | None = None
    """Number of partitions."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.days is None) == (self.partitions is None):
            raise ValueError("name either days or partitions, such as {days: 400}")
        return self

    def oldest(self, cadence: Cadence, present: Collection[str]) -> str:
        """Return the key before which partitions are not retained, given those `present`; empty if there are none.

        Only keys of the `cadence` count.
        """
        newest = cadence.newest_of(present, self.partitions or 1)
        if not newest or self.partitions is not None:
            return newest[0] if newest else ""
        _, last = cadence.bounds(newest[0])
        day = last.date() if isinstance(last, datetime) else last
        return cadence.key_of(day - timedelta(days=(self.days or 1) - 1))

    def oldest_wanted(self, cadence: Cadence, present: Sequence[str]) -> str:
        """Return the key before which a missing partition would not be retained; empty if none is `present`.

        `present`: keys of the `cadence`, sorted. Missing partitions count among `partitions`: the first days of a new
        table, some of which failed, are wanted.
        """
        if not present or self.partitions is None:
            return self.oldest(cadence, present)
        return cadence.window(present[-1], self.partitions)[0]


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """One table: its name, its rules and the code behind it."""

    kind: str
    """`datasets` or `features`."""
    name: str
    contract: Contract
    cadence: Cadence
    volume: VolumeRule
    """Allowed deviation of a partition's row count from the usual count, and if a partition may be empty."""
    drift: DriftRule | None = None
    """Comparison of a partition with the partitions before it; None: it is not compared."""
    quarantine_limit: float | None = None
    """Largest share of bad rows that are set aside; None: any bad row rejects its partition."""
    retain: Retain | None = None
    """Partitions that `ml-assets gc` leaves on main; None: all."""
    deprecated: str = ""
    """Advice for readers of a deprecated table; empty if it is not deprecated."""
    is_known_at_ingestion: bool = False
    """True if a changed partition keeps its earlier rows, for readers of the time before the change."""
    code_version: str = ""
    """`code_version.code_version` of the function that makes the frames."""
    sort_key: tuple[str, ...] = ()
    """Order of rows in a partition; by default the contract's primary key, then its event time."""
    inputs: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    """Inputs of a derived table: table id → lookback in partitions; None for a table that is read whole."""

    def __post_init__(self) -> None:
        check_table(self.table)
        unknown = [c for c in self.sort_key if c not in self.contract.names]
        if unknown:
            raise ValueError(f"{self.table}: sort_key names {', '.join(unknown)}, which the contract lacks")

        if any(one.table == self.table for one in self.contract.foreign_keys):
            raise ValueError(f"{self.table}: a foreign key refers to another table, not to its own")

    @property
    def table(self) -> str:
        """Table id, `<kind>/<name>`."""
        return f"{self.kind}/{self.name}"

    @property
    def order(self) -> tuple[str, ...]:
        """Columns by which rows are sorted first."""
        event_time = (self.contract.event_time,) if self.contract.event_time else ()
        return self.sort_key or (*self.contract.primary_key, *event_time)

    def final_from(self, key: str) -> datetime | None:
        """Return the moment (UTC) from which a change of partition `key` is a correction; None: never.

        Rows that come before the partition is over only complete it.
        """
        if not self.is_known_at_ingestion:
            return None
        # A table without partitions is corrected at any time.
        return self.cadence.end_of(key, self.contract.event_time_zone) or datetime.min.replace(tzinfo=UTC)

    def hides(self, name: str) -> bool:
        """True if values of a stored column must not be shown: `Contract.hides`, and never those of a quarantine."""
        return name not in (RULE, COLUMN, REASON) and self.contract.hides(name)

    @property
    def rules_digest(self) -> str:
        """SHA-256 of all rules for a partition. Content that passed by these rules is not validated again."""
        rules = [self.contract.contract_digest, self.volume.model_dump_json(), self.cadence.kind]
        if self.quarantine_limit is not None:
            rules.append(f"quarantine {self.quarantine_limit!r}")
        if self.drift is not None:
            rules.append(f"drift {self.drift.model_dump_json()}")
        return hashlib.sha256("\n".join(rules).encode()).hexdigest()


class SourceFailed(Exception):
    """The source could not return one partition. The other partitions are still published.

    The message is shown after credentials in its addresses are removed.
    """


MOST_UNDATED = 10_000
"""Rows without a time that are read with a partition. With more of them, it is rejected."""


@dataclass(frozen=True, kw_only=True)
class UndatedRows:
    """Rows of a source that belong to no partition, because their time is null, or one that no calendar has."""

    frame: pl.DataFrame = field(default_factory=pl.DataFrame)
    """All such rows of the source, or `MOST_UNDATED` and one more, whatever partition was read. A time that no calendar
    has is null."""
    column: str = ""
    """Column of the time."""


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """One partition from a source: its rows, or the reason why there are none."""

    key: str
    data: pl.DataFrame | SourceFailed
    """Any columns. A frame that breaks the contract is validated and kept like any other."""
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """Inputs of a derived table: table → key → content digest of each input partition."""
    read_columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Columns of the inputs that the function read: table → names. An input without an entry was read whole."""
    read_digests: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """Digests of these columns: table → key → `TableReader.read_digests`."""
    behind: tuple[tuple[str, str, str], ...] = ()
    """Inputs of those inputs: see `TableReader.behind`."""
    version: str | None = None
    """Version of these rows at the source, if it has versions. It must follow from the content, too."""
    undated: UndatedRows | None = None
    """Rows of the source without a time; None if nobody asked the source."""
    reconciliation: Reconciliation | None = None
    """Rows that the source returned; None for a derived table. Publishing counts `undated` and `outside`, and adds to
    `quarantined`."""
    watermark: datetime | None = None
    """Watermark of the source. It must follow from the content: with a clock, every re-run would be a change."""


@dataclass(frozen=True, kw_only=True)
class PublishingRun:
    """Facts of the publishing run. They go into commits and the ledger, never into an object."""

    run_id: str
    url: str | None = None
    """Page of the run, linked from the lake's commit."""
    author: str = ""
    """Name of the person who runs it, for the lake's history. Nobody checks it."""
