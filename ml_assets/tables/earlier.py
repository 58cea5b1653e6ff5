"""Earlier versions of partitions: what main held of a partition before its source changed it.

A source that changes its past, and does not say since when, would change what features of the past knew. So a table
with `known_at: ingestion` keeps the rows that a change replaces, with the moment of the change. A reader of that time
(`TableReader.as_known`) gets these rows. The first rows of a partition have no such moment: they count as known since
the partition's own time, also if they were ingested years later.

An earlier version is the objects of that time at other paths, so the lake stores no byte twice. Equal rows change
nothing. Not here: reading them (`reader.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from ml_assets.tables import layout
from ml_assets.tables.manifest import PartitionManifest
from ml_assets.tables.reader import TableReader

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class KeptChange:
    """Changes of the lake that keep, or drop, the earlier versions of a partition."""

    put: Mapping[str, Path]
    """Path → content."""
    remove: Sequence[str]


def keep_earlier(
    base: TableReader,
    table: str,
    key: str,
    objects: Mapping[str, bytes | Path],
    now: datetime,
) -> KeptChange:
    """Return what keeps the rows of `base` when `objects` replace them at `now` (UTC).

    Rows are kept if the new manifest asks for it (`final_from`), if they differ, and if their columns have the same
    names and types. With other columns the partition begins anew, because nobody can read both together: all its
    earlier versions are dropped. With another cadence it does, too, because the rows are of other days. Versions are
    also dropped if the manifest does not ask for them any more, or the partition goes.
    """
    kept = [one for one in base.earlier(table) if one.key == key]
    dropped = KeptChange({}, [one.stat.path for one in kept])
    before = base.digests(table).get(key)
    if before is None:
        return dropped
    new = _new_manifest(table, key, objects)
    if new is None or new.final_from is None:
        return dropped
    readable, _ = base.checked_manifests(table, [key])
    old = readable.get(key)
    # The week of a Monday is no earlier version of its day.
    if old is None or (old.schema_hash, old.cadence) != (new.schema_hash, new.cadence):
        return dropped
    if before == new.content_digest or now < datetime.fromisoformat(new.final_from):
        return KeptChange({}, ())
    moment = now
    if kept:  # also after a clock was set back, the later change has the later moment
        moment = max(moment, max(one.until for one in kept) + _MICROSECOND)
    paths = list(base.object_hashes(table, key))
    local = base.store.fetch(base.commit_id, paths)
    return KeptChange({layout.earlier_path(path, moment): local[path] for path in paths}, ())


def _new_manifest(table: str, key: str, objects: Mapping[str, bytes | Path]) -> PartitionManifest | None:
    content = objects.get(layout.manifest_path(table, key))
    if content is None:
        return None
    return PartitionManifest.from_json(content.read_bytes() if isinstance(content, Path) else content)
