"""Difference of the lake between two commits: partitions, rows, columns, and statistics of columns.

A partition that both commits hold with the same digest is never looked at. Statistics come from the profiles in the
manifests. Data files are read only for the rows of partitions whose content differs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ml_assets.data.tables import layout
from ml_assets.data.tables.changed_rows import PartitionChange, ReadWindow, compare_partition, reasons
from ml_assets.data.tables.manifest import PartitionManifest
from ml_assets.data.tables.reader import TableReader
from resources.lake import VersionedStore

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
        if before is not None and after is not None:
            same = before.content_digest == after.content_digest
            one = PartitionDifference(
                table=table,
                key=key,
                kind="manifest" if same else "rows",
                why=reasons(before, after),
                before=before.rows,
                after=after.rows,
                statistics=tuple(_statistics(before.profile, after.profile)),
            )
            yield one, (before, after)
        elif after is not None:
            came = PartitionDifference(
                table=table, key=key, kind="came", before=None, after=after.rows, why=""
            )
            yield came, None
        elif before is not None:
            went = PartitionDifference(
                table=table, key=key, kind="went", before=before.rows, after=None, why=""
            )
            yield went, None


def _statistics(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ColumnStatistic]:
    old, new = before["columns"], after["columns"]
    for column in dict.fromkeys([*new, *old]):
        sides = [side.get(column, {}) for side in (old, new)]
        for statistic in _STATISTICS:
            was, now = (side.get(statistic) for side in sides)
            if was != now:
                yield ColumnStatistic(column=column, statistic=statistic, before=was, after=now)
