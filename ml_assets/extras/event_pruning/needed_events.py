"""Events that Dagster's answers of today need: statuses, staleness, lineage, newest verdicts of checks.

An event is needed if its id is returned here, or if it is as new as the first event that is kept for its age. Not here:
deleting the others (`prune`).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import dagster as dg
import sqlalchemy as sa
from dagster import (
    DagsterEventType,
    DataProvenance,
    EventLogEntry,
    deserialize_value,
    partition_loading_context,
)

from ml_assets.components.metadata import DATA_VERSION
from ml_assets.dagster_host.asset_graph import BaseAssetGraph
from ml_assets.dagster_host.event_log import (
    INPUT_EVENT_POINTER_TAG_PREFIX,
    SKIP_PARTITION_DATA_VERSION_DEPENDENCY_THRESHOLD,
    extract_data_provenance_from_entry,
)
from ml_assets.dagster_host.event_tables import AssetEventTagsTable, SqlEventLogStorageTable

_MATERIALIZATION = DagsterEventType.ASSET_MATERIALIZATION.value
_MADE = (_MATERIALIZATION, DagsterEventType.ASSET_OBSERVATION.value)
_AT_ONCE = 500
"""Ids in one question; SQLite's limit of variables was 999 once."""

Ids = list[int]
Made = Mapping[tuple[str, str | None], Ids]
"""Kind of event and partition (None: without one) → ids, ascending."""


class NeededEvents:
    """Events of assets before the id `before` that today's answers need, read over one connection.

    `graph` names the parents of each partition. Events of assets outside of it are kept by their newest of each kind.
    """

    def __init__(self, connection: sa.Connection, graph: BaseAssetGraph[Any], before: int) -> None:
        self._connection = connection
        self._graph = graph
        self._before = before
        self._made: dict[str, Made] = {}

    def ids(self) -> set[int]:
        """Return the needed ids below `before`."""
        needed: set[int] = set()
        column = SqlEventLogStorageTable.c.asset_key
        assets = sa.select(column).distinct().where(column.is_not(None))
        for asset in self._connection.execute(assets).scalars().all():
            needed |= self._newest_of(asset)
            needed |= self._first_seen(asset, needed)
        with partition_loading_context(dynamic_partitions_store=None):
            needed |= self._inputs()
        return needed

    def _newest_of(self, asset: str) -> set[int]:
        """Return the newest event of each kind and partition, and the newest one with a data version."""
        table = SqlEventLogStorageTable.c
        of_asset = (table.asset_key == asset, table.id < self._before)
        newest = (
            sa.select(sa.func.max(table.id))
            .where(*of_asset)
            .group_by(table.dagster_event_type, table.partition)
        )
        tags = AssetEventTagsTable.c
        versioned = (
            sa.select(sa.func.max(table.id))
            .join_from(SqlEventLogStorageTable, AssetEventTagsTable, tags.event_id == table.id)
            .where(*of_asset, tags.key == DATA_VERSION)
            .group_by(table.partition)
        )
        return {row[0] for question in (newest, versioned) for row in self._connection.execute(question)}

    def _first_seen(self, asset: str, needed: set[int]) -> set[int]:
        """Return an older event of partitions that a needed event found materialized already.

        Dagster derives the data time of a partition from the partitions that existed when it was made.
        """
        key = dg.AssetKey.from_db_string(asset)
        if key is None or not self._graph.has(key):
            return set()
        node = self._graph.get(key)
        if not node.is_partitioned or not node.parent_keys:
            return set()
        made = [ids for (kind, _), ids in self._made_of(asset).items() if kind == _MATERIALIZATION]
        seen = sorted(one for ids in made for one in ids if one in needed)
        found: set[int] = set()
        for ids in made:
            old = [one for one in ids if one < self._before]
            if not old:
                continue
            place = bisect_left(seen, old[0])
            if place < len(seen) and seen[place] < old[-1]:
                found.add(_newest_until(old, seen[place]))
        return found - {-1}

    def _inputs(self) -> set[int]:
        """Return the events to which the newest events point as their inputs, also indirectly."""
        found: set[int] = set()
        looked_at: set[int] = set()
        waiting = {
            ids[-1]
            for asset in self._graph.get_all_asset_keys()
            for ids in self._made_of(asset.to_string()).values()
        }
        while waiting:
            more: set[int] = set()
            for asset, partition, provenance in self._with_pointers(waiting):
                for parent, pointer in provenance.input_storage_ids.items():
                    if pointer is not None:
                        more |= self._pointed_at(asset, partition, parent, pointer)
            looked_at |= waiting
            found |= more
            waiting = more - looked_at
        return {one for one in found if one < self._before}

    def _pointed_at(
        self, asset: dg.AssetKey, partition: str | None, parent: dg.AssetKey, pointer: int
    ) -> set[int]:
        """Return the events of `parent` that were the newest when the event with this pointer was made."""
        if not self._graph.has(parent) or parent not in self._graph.get(asset).parent_keys:
            return set()
        made = self._made_of(parent.to_string())
        if pointer >= max((ids[-1] for ids in made.values()), default=0):
            return set()  # nothing came since
        wanted: Collection[str | None] = {each for _, each in made}
        if partition is not None and self._graph.get(parent).is_partitioned:
            wanted = self._parents(asset, partition, parent)
            if len(wanted) >= SKIP_PARTITION_DATA_VERSION_DEPENDENCY_THRESHOLD:
                return set()  # Dagster does not look at so many either
        return {_newest_until(ids, pointer) for (_, each), ids in made.items() if each in wanted} - {-1}

    def _parents(self, asset: dg.AssetKey, partition: str, parent: dg.AssetKey) -> Collection[str]:
        if not self._graph.get(asset).is_partitioned:
            return ()
        found = self._graph.get_parent_partition_keys_for_child(partition, parent, asset)
        return set(found.partitions_subset.get_partition_keys())

    def _with_pointers(self, ids: Iterable[int]) -> Iterator[tuple[dg.AssetKey, str | None, DataProvenance]]:
        """Yield asset, partition and provenance of those events that name events of their inputs."""
        table = SqlEventLogStorageTable.c
        rest = iter(sorted(ids))
        while some := list(islice(rest, _AT_ONCE)):
            question = sa.select(table.asset_key, table.partition, table.event).where(table.id.in_(some))
            for asset, partition, text in self._connection.execute(question):
                if INPUT_EVENT_POINTER_TAG_PREFIX not in text:
                    continue
                key = dg.AssetKey.from_db_string(asset)
                provenance = extract_data_provenance_from_entry(deserialize_value(text, EventLogEntry))
                if key is not None and provenance is not None:
                    yield key, partition, provenance

    def _made_of(self, asset: str) -> Made:
        """Return the ids of all materializations and observations of an asset, also of those after `before`."""
        if asset not in self._made:
            table = SqlEventLogStorageTable.c
            question = (
                sa.select(table.dagster_event_type, table.partition, table.id)
                .where(table.asset_key == asset, table.dagster_event_type.in_(_MADE))
                .order_by(table.id)
            )
            found: dict[tuple[str, str | None], Ids] = {}
            for kind, partition, id_ in self._connection.execute(question):
                found.setdefault((kind, partition), []).append(id_)
            self._made[asset] = found
        return self._made[asset]


def _newest_until(ids: Sequence[int], last: int) -> int:
    """Return the newest of the ascending `ids` up to `last`; -1 if there is none."""
    place = bisect_right(ids, last)
    return ids[place - 1] if place else -1
