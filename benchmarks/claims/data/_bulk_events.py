"""Materializations in Dagster's history by plain inserts: each like the one that the platform reported of its table.

Dagster writes an event in 12 ms of CPU time, which a quarter of a million of them would take an hour.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg
import sqlalchemy as sa
from dagster._core.storage.event_log.schema import AssetEventTagsTable, SqlEventLogStorageTable

AT_ONCE = 500


def add_materializations(
    instance: dg.DagsterInstance, asset: dg.AssetKey, like: str, digests: Mapping[str, str]
) -> None:
    """Add an event for each partition key of `digests`, key → content digest, like that of the partition `like`.

    `digests` has `like`, whose event exists and is the newest of the asset.
    """
    events, tags = SqlEventLogStorageTable, AssetEventTagsTable
    name = asset.to_string()
    with instance.event_log_storage.index_connection() as connection:  # pyright: ignore
        newest = sa.select(events).where(events.c.asset_key == name).order_by(events.c.id.desc()).limit(1)
        event = dict(connection.execute(newest).mappings().one())
        of_event = sa.select(tags).where(tags.c.event_id == event.pop("id"))
        its_tags = [dict(row) for row in connection.execute(of_event).mappings()]
        others = [key for key in digests if key != like]
        for first in range(0, len(others), AT_ONCE):
            keys = others[first : first + AT_ONCE]
            rows = [_like(event, like, key, digests) for key in keys]
            connection.execute(sa.insert(events), rows)
            where = events.c.asset_key == name, events.c.partition.in_(keys)
            ids = connection.execute(sa.select(events.c.id, events.c.partition).where(*where)).all()
            connection.execute(
                sa.insert(tags),
                [
                    _like({**tag, "event_id": number}, like, key, digests)
                    for number, key in ids
                    for tag in its_tags
                ],
            )
        connection.commit()


def _like(row: Mapping[str, Any], like: str, key: str, digests: Mapping[str, str]) -> dict[str, Any]:
    """Return a row with another partition and its digest."""
    return {
        name: value.replace(digests[like], digests[key]).replace(like, key)
        if isinstance(value, str)
        else value
        for name, value in row.items()
        if name != "id"
    }
