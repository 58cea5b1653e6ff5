"""Difference of the lake between two commits: partitions, rows, columns, statistics of columns, and their reasons.

Here: partitions that came, went or hold other rows, of the whole lake or in the windows that two models read, with the
declarations and code that made them; and the moments at which other rows replaced those of a partition. A partition
that both commits hold with the same digest is never looked at. Statistics come from the profiles in the manifests. Data
files are read only for the rows of partitions whose content differs. Not here: models, and keeping the earlier rows
(`publish/earlier.py`).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

import polars as pl

from ml_assets.data.tables import layout
from ml_assets.data.tables.manifest import PartitionManifest
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.validation.column_types import explain_columns
from ml_assets.foundation.days import MICROSECOND
from resources.lake import VersionedStore
from resources.ledger import Ledger


@dataclass(frozen=True, kw_only=True)
class PartitionChange:
    """Rows of one partition that two windows share, if its content differs."""

    key: str
    before: int
    after: int
    """Number of rows."""
    came: int
    went: int
    changed: int
    """Rows with the same primary key and other values; 0 if both partitions have no key in common."""
    why: str
    """Parts of the manifest that differ: code, contract, columns, inputs."""
    columns: Mapping[str, int] = field(default_factory=dict[str, int])
    """Column of both partitions → rows with the same primary key and another value in it, if there are any."""


@dataclass(frozen=True, kw_only=True)
class TableChange:
    """One table as two windows read it, at two commits."""

    came: Mapping[str, int]
    went: Mapping[str, int]
    """Partition that only one window reads → rows."""
    same: int
    """Partitions that both windows read with the same content."""
    changed: tuple[PartitionChange, ...]
    """Partitions that both windows read with other content, oldest first."""
    declarations: tuple[str, ...]
    """Tables behind the windows whose code, contract or columns differ, one sentence each."""


@dataclass(frozen=True, kw_only=True)
class ReadWindow:
    """Partitions of a table at a commit."""

    reader: TableReader
    table: str
    keys: Sequence[str]


def compare_windows(before: ReadWindow, after: ReadWindow, primary_key: Sequence[str]) -> TableChange:
    """Compare two windows of one table. `primary_key` names a row. Raises `PartitionMissing`."""
    old = before.reader.manifests(before.table, before.keys)
    new = after.reader.manifests(after.table, after.keys)
    both = [key for key in after.keys if key in old]
    differing = [key for key in both if old[key].content_digest != new[key].content_digest]
    return TableChange(
        came={key: one.rows for key, one in new.items() if key not in old},
        went={key: one.rows for key, one in old.items() if key not in new},
        same=len(both) - len(differing),
        changed=tuple(
            compare_partition(before, after, key, (old[key], new[key]), primary_key) for key in differing
        ),
        declarations=tuple(_declarations(before, after)),
    )


def compare_partition(
    before: ReadWindow,
    after: ReadWindow,
    key: str,
    manifests: tuple[PartitionManifest, PartitionManifest],
    primary_key: Sequence[str],
) -> PartitionChange:
    """Read partition `key` of two windows and count the rows and the values that differ."""
    old, new = manifests
    frames = [window.reader.scan(window.table, [key]).collect() for window in (before, after)]
    there = all(set(primary_key) <= set(frame.columns) for frame in frames)
    named = tuple(primary_key) if there else ()
    shared = [name for name in frames[0].columns if name in frames[1].columns and name not in named]
    rows = [_hashed(frame, named, shared) for frame in frames]
    if any(frame["key"].is_duplicated().any() for frame in rows):  # it is the key of one of both alone
        rows = [_hashed(frame, [], []) for frame in frames]
    joined = rows[0].join(rows[1], on="key", how="full", nulls_equal=True, suffix="_after")
    came, went = pl.col("row").is_null(), pl.col("row_after").is_null()
    differing = ~came & ~went & (pl.col("row") != pl.col("row_after"))
    counts = joined.select(came=came.sum(), went=went.sum(), changed=differing.sum()).row(0, named=True)
    has_values = rows[0].width > len(("key", "row"))
    values = joined.filter(differing).select(
        (pl.col(f"{_VALUE}{place}") != pl.col(f"{_VALUE}{place}_after")).sum().alias(name)
        for place, name in enumerate(shared if has_values else ())
    )
    return PartitionChange(
        key=key,
        before=old.rows,
        after=new.rows,
        why=reasons(old, new),
        columns={
            name: number
            for name, number in (values.row(0, named=True) if values.width else {}).items()
            if number
        },
        **counts,
    )


_VALUE = "value of "
"""Prefix of the names of the hashes of single values, before the place of the column: columns have any names."""


def _hashed(frame: pl.DataFrame, named: Sequence[str], shared: Sequence[str]) -> pl.DataFrame:
    """Return the hashes `key` and `row` of each row, and of its values in the columns `shared`.

    Without names, the key is the row and its place among equals.
    """
    columns = sorted(frame.columns)  # another order of the columns is the same row
    row = pl.struct(columns).hash()
    if named:
        values = [frame[name].hash().alias(f"{_VALUE}{place}") for place, name in enumerate(shared)]
        return frame.select(pl.struct(named).hash().alias("key"), row.alias("row"), *values)
    return frame.select(row=row).select(
        "row", key=pl.struct("row", copy=pl.int_range(pl.len()).over("row")).hash()
    )


def reasons(old: PartitionManifest, new: PartitionManifest) -> str:
    """Return the parts of two manifests that differ, in words: inputs, code, contract, columns; else the source."""
    inputs = sorted(
        table for table in {*old.inputs, *new.inputs} if old.inputs.get(table) != new.inputs.get(table)
    )
    said = [f"input {table}" for table in inputs]
    said += ["code"] if old.code_version != new.code_version else []
    said += ["contract"] if old.contract_digest != new.contract_digest else []
    said += ["columns"] if old.schema_hash != new.schema_hash else []
    return ", ".join(said) or "rows of the source"


def _declarations(before: ReadWindow, after: ReadWindow) -> list[str]:
    old, new = _behind(before), _behind(after)
    found: list[str] = []
    for table in {**new, **old}:
        if table not in old or table not in new:
            found.append(f"{table} is read only by the {'later' if table in new else 'earlier'} version.")
            continue
        for what, name in (("code", "code_version"), ("contract", "contract_digest")):
            versions = [
                list(dict.fromkeys(getattr(one, name)[:12] for one in side[table])) for side in (old, new)
            ]
            if versions[0] != versions[1]:
                found.append(f"{table}: {what} {'+'.join(versions[0])} became {'+'.join(versions[1])}.")
        if columns := explain_columns(new[table][-1].schema, old[table][-1].schema):
            found.append(f"{table}: in the later version, {columns}.")
    return found


def _behind(window: ReadWindow) -> dict[str, list[PartitionManifest]]:
    """Return table → manifests of the window and of all partitions that it was made from, as far as they are kept."""
    found: dict[str, list[PartitionManifest]] = {}
    wanted: dict[str, set[str]] = {window.table: set(window.keys)}
    while wanted:
        table, keys = wanted.popitem()
        there = sorted(keys & set(window.reader.keys(table)))
        found[table] = list(window.reader.manifests(table, there).values())
        below: dict[str, set[str]] = defaultdict(set)
        for manifest in found[table]:
            for source, made_from in manifest.inputs.items():
                below[source] |= {key for key, digest in made_from.items() if digest}
        for source, more in below.items():
            if source not in found:
                wanted[source] = wanted.get(source, set()) | more
    return {table: manifests for table, manifests in found.items() if manifests}


_STATISTICS = ("nulls", "infinite", "min", "max", "mean", "distinct")
"""Facts of a column in a profile that a difference shows."""


@dataclass(frozen=True, kw_only=True)
class ColumnStatistic:
    """A statistic of one column, before and after."""

    column: str
    statistic: str
    before: Any
    """None if the column or the value is missing."""
    after: Any


@dataclass(frozen=True, kw_only=True)
class PartitionDifference:
    """One partition that differs between two commits."""

    table: str
    key: str
    kind: Literal["came", "went", "rows", "manifest"]
    """`rows`: both commits hold it, with other content. `manifest`: the same rows, made by other code or rules."""
    before: int | None
    after: int | None
    """Number of rows; None if the commit lacks the partition."""
    why: str
    """Differences of the manifests, in words; empty if a commit lacks the partition."""
    statistics: tuple[ColumnStatistic, ...] = ()
    """Statistics that differ, by column."""
    change: PartitionChange | None = None
    """Rows and values that differ; None unless the files were read."""


@dataclass(frozen=True, kw_only=True)
class LakeDifference:
    """Two commits of the lake, compared."""

    before: str
    after: str
    """Commit ids."""
    partitions: tuple[PartitionDifference, ...]
    """Sorted by table and key."""

    @property
    def tables(self) -> dict[str, list[PartitionDifference]]:
        """Table → its partitions that differ."""
        found: dict[str, list[PartitionDifference]] = {}
        for one in self.partitions:
            found.setdefault(one.table, []).append(one)
        return found


def changed_partitions(store: VersionedStore, before: str, after: str) -> dict[str, list[str]]:
    """Return table → sorted keys whose objects differ between two refs. Opens no file."""
    found: dict[str, set[str]] = {}
    for one in store.compare(before, after):
        if (place := layout.partition_of(one.path)) is not None:
            found.setdefault(place[0], set()).add(place[1])
    return {table: sorted(found[table]) for table in sorted(found)}


def compare_lake(
    store: VersionedStore,
    before: str,
    after: str,
    primary_keys: Mapping[str, Sequence[str]],
    *,
    tables: Sequence[str] = (),
    read_rows: bool = True,
) -> LakeDifference:
    """Compare two refs; only `tables`, if there are any.

    `primary_keys` is table → columns that name a row. Rows of other tables count as came and went. Without `read_rows`
    no data file is opened.
    """
    old, new = TableReader.at(store, before), TableReader.at(store, after)
    found: list[PartitionDifference] = []
    for table, keys in changed_partitions(store, old.commit_id, new.commit_id).items():
        if tables and table not in tables:
            continue
        windows = (
            ReadWindow(reader=old, table=table, keys=keys),
            ReadWindow(reader=new, table=table, keys=keys),
        )
        for one, manifests in _partitions(windows, table, keys):
            if one.kind == "rows" and read_rows and manifests is not None:
                change = compare_partition(*windows, one.key, manifests, primary_keys.get(table, ()))
                one = replace(one, change=change)
            found.append(one)
    return LakeDifference(before=old.commit_id, after=new.commit_id, partitions=tuple(found))


def _partitions(
    windows: Sequence[ReadWindow], table: str, keys: Sequence[str]
) -> Iterator[tuple[PartitionDifference, tuple[PartitionManifest, PartitionManifest] | None]]:
    """Yield the differing partitions, with their manifests if both commits hold them."""
    old, new = (
        one.reader.manifests(table, [key for key in keys if key in one.reader.digests(table)])
        for one in windows
    )
    for key in keys:
        before, after = old.get(key), new.get(key)
        if before is None and after is None:
            continue
        one = PartitionDifference(
            table=table,
            key=key,
            kind="came" if before is None else "went",
            before=before.rows if before else None,
            after=after.rows if after else None,
            why="",
        )
        if before is None or after is None:
            yield one, None
            continue
        kind = "manifest" if before.content_digest == after.content_digest else "rows"
        statistics = tuple(_statistics(before.profile, after.profile))
        yield replace(one, kind=kind, why=reasons(before, after), statistics=statistics), (before, after)


def _statistics(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ColumnStatistic]:
    old, new = before["columns"], after["columns"]
    for column in dict.fromkeys([*new, *old]):
        sides = [side.get(column, {}) for side in (old, new)]
        for statistic in _STATISTICS:
            was, now = (side.get(statistic) for side in sides)
            if was != now:
                yield ColumnStatistic(column=column, statistic=statistic, before=was, after=now)


@dataclass(frozen=True, kw_only=True)
class Correction:
    """One change of a partition that was over."""

    key: str
    known_at: datetime
    """Moment (UTC) from which on readers get the new rows."""
    change: PartitionChange | None
    """Rows and values that differ; None if the rows from before were rejected later, so that nobody reads them."""


def corrections_of(
    reader: TableReader, ledger: Ledger, table: str, key: str | None, primary_key: Sequence[str]
) -> Iterator[Correction]:
    """Yield the corrections of `table`, or of its partition `key`, by partition and moment. Reads the rows of each.

    `primary_key` names a row; rows of a table without one count as came and went.
    """
    moments = {(one.key, one.until) for one in reader.earlier(table) if key in (None, one.key)}
    for corrected, moment in sorted(moments):
        sides = [reader.as_known(table, at, ledger) for at in (moment - MICROSECOND, moment)]
        old, new = (side.manifest(table, corrected) for side in sides)
        if old.content_digest == new.content_digest:
            yield Correction(key=corrected, known_at=moment, change=None)
            continue
        before, after = (ReadWindow(reader=side, table=table, keys=[corrected]) for side in sides)
        change = compare_partition(before, after, corrected, (old, new), primary_key)
        yield Correction(key=corrected, known_at=moment, change=change)
