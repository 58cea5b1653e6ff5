"""Landing of partitions: write them to a branch and merge it into `main`. The callers decide if they may land.

Main and the ledger change together within the table's turn (`Ledger.turn`). Two processes may land in any order: main
always holds the content of the newest verdict in the ledger.

A source that changes its past, and does not say since when, would change what features of the past knew. So a table
with `known_at: ingestion` keeps the rows that a change replaces, with the moment of the change. A reader of that time
(`TableReader.as_known`) gets these rows. The first rows of a partition have no such moment: they count as known since
the partition's own time, also if they were ingested years later. An earlier version is the objects of that time at
other paths, so the lake stores no byte twice. Equal rows change nothing. The moment is that of main: a correction that
was made in an environment counts from its merge.
"""

import contextlib
import random
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ml_assets.data.tables import layout
from ml_assets.data.tables.layout import MAIN
from ml_assets.data.tables.manifest import PartitionManifest
from ml_assets.data.tables.reader import TableReader
from resources.lake import LakeBusy, LakeError, MergeConflict, VersionedStore
from resources.ledger import Ledger
from resources.threads import side_by_side

_MICROSECOND = timedelta(microseconds=1)


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
    kept = [one.until + _MICROSECOND for one in base.earlier(table)]
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


TRIES = 8
"""Merges to try before raising the error. After each lost race, the next try starts from the new head."""


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """All objects of one partition, its manifest included."""

    table: str
    key: str
    objects: Mapping[str, bytes | Path]
    """Path in the lake → content."""
    hashes: Mapping[str, str]
    """Path in the lake → SHA-256."""


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """Metadata of a commit."""

    message: str
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Landed:
    """Main after a landing."""

    commit_id: str
    """Commit of main that holds every partition."""
    before: TableReader
    """Main before the landing."""


def land(
    store: VersionedStore,
    ledger: Ledger,
    table: str,
    partitions: Sequence[StoredPartition],
    run_id: str,
    facts: Callable[[Sequence[str]], CommitFacts],
    *,
    begin: Callable[[], None],
    record: Callable[[], None],
) -> Landed:
    """Merge partitions of `table` into main in one merge and record their verdicts in the ledger.

    Partitions whose content main already holds are left out. If none is left, main does not change. `facts` is called
    with the keys that change. The table's turn covers `begin` (which may raise to end the landing), the merge and
    `record`. Objects are uploaded before the turn. If another process changed these partitions meanwhile, they are
    uploaded again within the turn, so the later merge wins. What a partition with `final_from` in its manifest
    replaces is kept as an earlier version. Raises `MergeConflict` or `LakeBusy` after `TRIES`
    lost races, which only writers that take no turns can cause.
    """

    def try_once(*, alone: bool) -> Landed | None:
        with contextlib.ExitStack() as stack:
            if alone:
                stack.enter_context(ledger.turn(table))
            base = TableReader.at(store, MAIN)
            news = [p for p in partitions if base.object_hashes(p.table, p.key) != p.hashes]
            staged = stack.enter_context(_staged(store, ledger, table, base, news, run_id, facts))
            if not alone:
                stack.enter_context(ledger.turn(table))
                if _has_changed(store, base, table, partitions):
                    return None
            begin()
            commit_id = staged.merge() if staged else base.commit_id
            record()
            return Landed(commit_id, base)

    for number in range(1, TRIES + 1):
        try:
            landed = try_once(alone=number > 1)
        except (MergeConflict, LakeBusy):
            if number == TRIES:
                raise
            landed = None
        if landed is not None:
            return landed
        time.sleep(random.uniform(0.5, 1.5) * 0.05 * 2 ** min(number, 5))
    raise AssertionError("unreachable")


@dataclass(frozen=True, slots=True)
class _Staged:
    """Branch with committed partitions that wait for the merge."""

    store: VersionedStore
    branch: str
    facts: CommitFacts

    def merge(self) -> str:
        return self.store.merge(self.branch, MAIN, self.facts.message, self.facts.metadata)


@contextlib.contextmanager
def _staged(
    store: VersionedStore,
    ledger: Ledger,
    table: str,
    base: TableReader,
    news: Sequence[StoredPartition],
    run_id: str,
    facts: Callable[[Sequence[str]], CommitFacts],
) -> Generator[_Staged | None]:
    """Commit `news` to a branch and delete the branch after the block; yield None if `news` is empty."""
    if not news:
        yield None
        return
    said = facts([one.key for one in news])
    branch = new_branch(store, base, news[0], run_id)
    try:
        write(store, branch, base, news)
        # One moment for all: a reader sees all changes of a landing or none.
        moment = moment_of_change(base, ledger, table, datetime.now(UTC))
        changes = [keep_earlier(base, one.table, one.key, one.objects, moment) for one in news]
        put_changes(store, branch, changes)
        store.commit(branch, said.message, said.metadata)
        yield _Staged(store, branch, said)
    finally:
        # A branch that stays costs nothing; an error here would hide the error above.
        with contextlib.suppress(LakeError):
            store.delete_branch(branch)


def _has_changed(
    store: VersionedStore, base: TableReader, table: str, partitions: Sequence[StoredPartition]
) -> bool:
    """True if main now holds other content of these partitions than `base`, or a newer correction of `table`."""
    now = TableReader.at(store, MAIN)
    return now.commit_id != base.commit_id and (
        now.earlier(table) != base.earlier(table)
        or any(
            now.object_hashes(one.table, one.key) != base.object_hashes(one.table, one.key)
            for one in partitions
        )
    )


def new_branch(store: VersionedStore, base: TableReader, first: StoredPartition, run_id: str) -> str:
    """Create an audit branch from `base` for this try alone; return its name."""
    name = layout.audit_branch(first.table, first.key, run_id)
    store.create_branch(name, base.commit_id)
    return name


def write(
    store: VersionedStore, branch: str, base: TableReader, partitions: Sequence[StoredPartition]
) -> None:
    """Write partitions to a branch made from `base`; remove files that only their older versions had."""
    objects = [item for one in partitions for item in one.objects.items()]
    side_by_side(lambda item: store.put(branch, *item), objects)
    older = [
        path
        for one in partitions
        for path in base.object_hashes(one.table, one.key).keys() - one.objects.keys()
    ]
    side_by_side(lambda path: store.remove(branch, path), older)
