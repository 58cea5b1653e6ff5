"""Earlier versions of partitions: the rows that a correction replaces, kept with the moment of the change.

A source that changes its past, and does not say since when, would change what features of the past knew. So a table
with `known_at: ingestion` keeps the rows that a change replaces, with the moment of the change. A reader of that time
(`TableReader.as_known`) gets these rows. The first rows of a partition have no such moment: they count as known since
the partition's own time, also if they were ingested years later. An earlier version is the objects of that time at
other paths, so the lake stores no byte twice. Equal rows change nothing. The moment is that of main: a correction that
was made in an environment counts from its merge.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ml_assets.data.tables import layout
from ml_assets.data.tables.manifest import PartitionManifest
from ml_assets.data.tables.reader import TableReader
from ml_assets.foundation.days import MICROSECOND
from resources.lake import VersionedStore
from resources.ledger import Ledger
from resources.threads import side_by_side


@dataclass(frozen=True, slots=True)
class KeptChange:
    """Changes of the lake that keep, or drop, the earlier versions of a partition."""

    put: Mapping[str, Path]
    """Path → content."""
    remove: Sequence[str]


def put_changes(store: VersionedStore, branch: str, changes: Sequence[KeptChange]) -> None:
    """Write changes to a branch, without a commit."""
    side_by_side(lambda item: store.put(branch, *item), [i for one in changes for i in one.put.items()])
    side_by_side(lambda path: store.remove(branch, path), [p for one in changes for p in one.remove])


def moment_of_change(base: TableReader, ledger: Ledger, table: str, now: datetime) -> datetime:
    """Return the moment (UTC) at which a change of `table` counts: `now`, and never before an earlier change of it.

    A clock that was set back would date a correction before the days that read the rows it replaces, or count a
    partition as unfinished whose rows came when it was over, and drop them.
    """
    recorded = ledger.newest_moment(table)
    kept = [one.until + MICROSECOND for one in base.earlier(table)]
    return max([now, *kept, *([recorded] if recorded else [])])


def keep_earlier(
    base: TableReader,
    table: str,
    key: str,
    objects: Mapping[str, bytes | Path],
    moment: datetime,
) -> KeptChange:
    """Return what keeps the rows of `base` when `objects` replace them at `moment` (UTC, from `moment_of_change`).

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
    if before == new.content_digest or moment < datetime.fromisoformat(new.final_from):
        return KeptChange({}, ())
    paths = list(base.object_hashes(table, key))
    local = base.store.fetch(base.commit_id, paths)
    return KeptChange({layout.earlier_path(path, moment): local[path] for path in paths}, ())


def keep_merged(
    base: TableReader, head: TableReader, table: str, keys: Sequence[str], moment: datetime
) -> KeptChange:
    """Return what makes the earlier versions at `head` those of `base`, with the rows that a merge of `keys` replaces.

    `head` is the commit of an environment, which is merged into that of main, `base`, at `moment` (UTC). Versions that
    only the environment had were never read on main, so they are removed.
    """
    put: dict[str, Path] = {}
    remove: list[str] = []
    ours, theirs = (_by_key(one, table) for one in (base, head))
    paths = {key: layout.manifest_path(table, key) for key in keys}
    there = [key for key in keys if paths[key] in head.object_hashes(table, key)]
    manifests = head.store.fetch(head.commit_id, [paths[key] for key in there])
    for key in keys:
        new: dict[str, bytes | Path] = {paths[key]: manifests[paths[key]]} if key in there else {}
        change = keep_earlier(base, table, key, new, moment)
        stay = ours[key] - set(change.remove)
        lacking = sorted(stay - theirs[key])
        put |= {**change.put, **(base.store.fetch(base.commit_id, lacking) if lacking else {})}
        remove += sorted(theirs[key] - stay)
    return KeptChange(put, remove)


def _by_key(reader: TableReader, table: str) -> dict[str, set[str]]:
    """Return key → paths of the earlier versions of its partition."""
    found: dict[str, set[str]] = defaultdict(set)
    for one in reader.earlier(table):
        found[one.key].add(one.stat.path)
    return found


def _new_manifest(table: str, key: str, objects: Mapping[str, bytes | Path]) -> PartitionManifest | None:
    content = objects.get(layout.manifest_path(table, key))
    if content is None:
        return None
    return PartitionManifest.from_json(content.read_bytes() if isinstance(content, Path) else content)
