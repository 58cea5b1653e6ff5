"""Specification of a table for publishing, and the values that go in. No lake, no judging."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import polars as pl

from ml_assets.tables.cadence import Cadence
from ml_assets.tables.layout import check_table
from ml_assets.validation.contract import Contract
from ml_assets.validation.volume import VolumeRule


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """One table: its name, its rules and the code behind it."""

    kind: str
    """`datasets` or `features`."""
    name: str
    contract: Contract
    cadence: Cadence
    volume: VolumeRule
    """Allowed distance of a partition's number of rows from the usual one; says, too, if it may be empty."""
    code_version: str = ""
    """`code_version.code_version` of the function that makes the frames."""
    sort_key: tuple[str, ...] = ()
    """Order of rows in a partition; by default the contract's primary key, then its event time."""
    inputs: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    """For a derived table: table id → lookback in partitions; None for a table that is read whole."""

    def __post_init__(self) -> None:
        check_table(self.table)
        unknown = [c for c in self.sort_key if c not in self.contract.names]
        if unknown:
            raise ValueError(f"{self.table}: sort_key names {', '.join(unknown)}, no column of the contract")

    @property
    def table(self) -> str:
        """Table id, `<kind>/<name>`."""
        return f"{self.kind}/{self.name}"

    @property
    def order(self) -> tuple[str, ...]:
        """Columns rows are sorted by first."""
        event_time = (self.contract.event_time,) if self.contract.event_time else ()
        return self.sort_key or (*self.contract.primary_key, *event_time)

    @property
    def rules_digest(self) -> str:
        """Identity of all a partition is judged by: what passed by these rules is not judged again."""
        rules = (self.contract.contract_digest, self.volume.model_dump_json(), self.cadence.kind)
        return hashlib.sha256("\n".join(rules).encode()).hexdigest()


class SourceFailed(Exception):
    """The source could not give one partition. The others are published all the same.

    The message is shown without the credentials of addresses in it.
    """


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """One partition as it comes from a source: its rows, or why there are none."""

    key: str
    data: pl.DataFrame | SourceFailed
    """Any columns: a frame that breaks the contract is judged and kept like any other."""
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """For a derived table: table → key → content digest of each partition the rows were made from."""
    behind: tuple[tuple[str, str, str], ...] = ()
    """Inputs of those inputs: see `TableReader.behind`."""
    watermark: datetime | None = None
    """Watermark of the source. Must follow from the content: a clock here makes every re-run a change."""


@dataclass(frozen=True, kw_only=True)
class PublishingRun:
    """Facts of the publishing run. They go into commits and the ledger, never into an object."""

    run_id: str
    url: str | None = None
    """Page of the run, linked from the lake's commit."""
