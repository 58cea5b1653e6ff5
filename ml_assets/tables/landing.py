"""How partitions get onto a branch and from there to `main`. Whether they may is decided by the callers."""

import contextlib
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ml_assets.tables import layout
from ml_assets.tables.reader import TableReader
from resources.lake import LakeBusy, LakeError, MergeConflict, VersionedStore
from resources.lake.threads import side_by_side

MAIN = "main"
ATTEMPTS = 8
"""How often a merge that lost a race is made again, from the new head, before the error is let through."""


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """Every object of one partition, its manifest included."""

    table: str
    key: str
    objects: Mapping[str, bytes | Path]
    """Path in the lake → content."""
    hashes: Mapping[str, str]
    """Path in the lake → SHA-256."""


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """What a commit says of itself."""

    message: str
    metadata: Mapping[str, str]


def land(
    store: VersionedStore, partitions: Sequence[StoredPartition], run_id: str, facts: CommitFacts
) -> str:
    """Bring partitions of one table to main in one merge; return main's commit that holds them.

    What main holds already is left out; without anything new, main stays as it is. A lost race is repeated
    from main's new head, so of two runs that change one partition the later merge wins. Raises
    `MergeConflict` or `LakeBusy` after `ATTEMPTS`.
    """
    for attempt in range(1, ATTEMPTS + 1):
        base = TableReader.at(store, MAIN)
        news = [p for p in partitions if base.object_hashes(p.table, p.key) != p.hashes]
        if not news:
            return base.commit_id
        branch = new_branch(store, base, news[0], run_id)
        try:
            write(store, branch, base, news)
            store.commit(branch, facts.message, facts.metadata)
            return store.merge(branch, MAIN, facts.message, facts.metadata)
        except (MergeConflict, LakeBusy):
            if attempt == ATTEMPTS:
                raise
            time.sleep(random.uniform(0.5, 1.5) * 0.05 * 2 ** min(attempt, 5))
        finally:
            # A branch that stays costs nothing; failing here would hide what happened above.
            with contextlib.suppress(LakeError):
                store.delete_branch(branch)
    raise AssertionError("unreachable")


def new_branch(store: VersionedStore, base: TableReader, first: StoredPartition, run_id: str) -> str:
    """An audit branch nobody used before, made from `base`: leftovers of a dead attempt are not built on."""
    taken = store.branches(layout.audit_branch(first.table, first.key, run_id))
    attempt = 1
    while (name := layout.audit_branch(first.table, first.key, run_id, attempt)) in taken:
        attempt += 1
    store.create_branch(name, base.commit_id)
    return name


def write(
    store: VersionedStore, branch: str, base: TableReader, partitions: Sequence[StoredPartition]
) -> None:
    """Put partitions on a branch made from `base`; remove the files that only their older versions had."""
    objects = [item for one in partitions for item in one.objects.items()]
    side_by_side(lambda item: store.put(branch, *item), objects)
    older = [
        path
        for one in partitions
        for path in base.object_hashes(one.table, one.key).keys() - one.objects.keys()
    ]
    side_by_side(lambda path: store.remove(branch, path), older)
