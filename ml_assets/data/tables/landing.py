"""Landing of partitions: write them to a branch and merge it into `main`. The callers decide if they may land.

Main and the ledger change together within the table's turn (`Ledger.turn`). Two processes may land in any order: main
always holds the content of the newest verdict in the ledger.
"""

import contextlib
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ml_assets.data.tables import layout
from ml_assets.data.tables.earlier import keep_earlier, moment_of_change, put_changes
from ml_assets.data.tables.reader import TableReader
from resources.lake import LakeBusy, LakeError, MergeConflict, VersionedStore
from resources.ledger import Ledger
from resources.threads import side_by_side

MAIN = "main"
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
