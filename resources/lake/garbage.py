"""Garbage of a lake: contents that no kept commit holds. The rules, and the collections of both lakes.

Kept are the heads of all branches and tags, uncommitted changes, the commits that the caller names, each commit of the
last days, and what each branch held when these days began. So a content can be read for as long after it was replaced
as the rules say. Only contents are deleted. Commits and their trees stay, so `log`, `compare` and merges work for every
commit; `fetch` from an expired commit names the missing content.

A `LocalStore` marks the contents of kept commits, then deletes the other files. Linear in the number of commits,
distinct ranges and files. Safe beside any number of writers: files are deleted in batches, each inside a write
transaction that first marks what became reachable since. A writer that found a content already stored checks it again
when its path is staged, in a write transaction of its own, and writes it again if it is gone. Young files are never
deleted, so that this is rare.

lakeFS's own job deletes objects: a Spark job, or a part of its enterprise edition. The open source server has none, so
this module sets the rules that the job reads, and computes what they free. lakeFS counts as roots the heads of branches
only, and what each branch held in the last days, never tags. So commits to keep get a branch.
"""

import os
import sqlite3
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from resources.lake import LakeError, ObjectStat, VersionedStore, refs
from resources.lake.lakefs_api import LakeFSApi, Refusal
from resources.lake.lakefs_setup import MAIN
from resources.lake.refs import SQLiteDatabase
from resources.lake.tree import Trees


@dataclass(frozen=True, kw_only=True)
class GarbageRules:
    """Contents to keep beside those of branches and tags."""

    since: datetime
    """Time, UTC. Contents that a branch held at this time or later are kept."""
    commits: Collection[str] = ()
    """Commits whose contents are kept, whatever their age."""
    without: Collection[str] = ()
    """Branches that count as deleted, to see beforehand what their deletion frees."""


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """Contents that no rule keeps."""

    objects: int
    size: int
    """Bytes."""
    note: str = ""
    """Sentence on their deletion, if another program does it."""


class GarbageCollector(Protocol):
    """Collector of one lake. Both methods may raise `LakeError`."""

    def look(self, rules: GarbageRules) -> Garbage:
        """Return what `collect` would delete. Changes nothing."""
        ...

    def collect(self, rules: GarbageRules) -> Garbage:
        """Delete what no rule keeps; return what was deleted."""
        ...


_YOUNG = 3600.0
"""Seconds since its last write for which a file is never deleted."""
_BATCH = 500
"""Files deleted in one write transaction: other writers wait some milliseconds."""


class LocalSweep:
    """`GarbageCollector` of the embedded lake in the folder `root`."""

    def __init__(self, root: Path, *, patience: float = 15.0, young: float = _YOUNG) -> None:
        """Open the repository at `root`. A batch waits up to `patience` seconds for other writers, then raises
        `LakeBusy`. Files younger than `young` seconds stay."""
        self._objects = root / "objects"
        self._young = young
        self._database = SQLiteDatabase(root / "refs.db", refs.SCHEMA, patience)
        self._trees = Trees(
            load=lambda id_: refs.load_range(self._database.connection, id_),
            save=lambda id_, body: refs.save_range(self._database.connection, id_, body),
        )

    def look(self, rules: GarbageRules) -> Garbage:
        """Return what `collect` would delete. Changes nothing."""
        marks = _Marks(self._trees)
        with self._database.reading() as db:
            marks.mark(db, rules)
        found = list(self._candidates(marks))
        return Garbage(objects=len(found), size=sum(size for _, size in found))

    def collect(self, rules: GarbageRules) -> Garbage:
        """Delete the files of contents that no rule keeps; return their number and bytes."""
        marks = _Marks(self._trees)
        with self._database.reading() as db:
            marks.mark(db, rules)
        found = list(self._candidates(marks))
        objects = size = 0
        for start in range(0, len(found), _BATCH):
            with self._database.writing(durable=False) as db:
                marks.mark_news(db)
                for file, bytes_ in found[start : start + _BATCH]:
                    if self._is_garbage(file, marks):
                        file.unlink(missing_ok=True)
                        objects += 1
                        size += bytes_
        return Garbage(objects=objects, size=size)

    def _candidates(self, marks: "_Marks") -> Iterator[tuple[Path, int]]:
        """Yield (file, bytes) of old files whose content is not marked."""
        oldest = time.time() - self._young
        for folder in sorted(self._objects.iterdir()):
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not marks.holds(entry.name):
                        stat = entry.stat()
                        if stat.st_mtime < oldest:
                            yield Path(entry.path), stat.st_size

    def _is_garbage(self, file: Path, marks: "_Marks") -> bool:
        """True if a candidate is still unmarked and old: a writer may have written the same content again."""
        try:
            return not marks.holds(file.name) and file.stat().st_mtime < time.time() - self._young
        except FileNotFoundError:
            return False


class _Marks:
    """Contents of kept commits."""

    def __init__(self, trees: Trees) -> None:
        self._trees = trees
        self._seen: set[str] = set()
        """Ids of the pages and ranges that were read. A range is read once, however many commits share it."""
        self._contents: set[bytes] = set()
        self._without: frozenset[str] = frozenset()
        """Branches that count as deleted."""
        self._newest = 0
        """Greatest row id of the commits that were marked."""

    def holds(self, sha256: str) -> bool:
        """True if a kept commit holds this content."""
        return bytes.fromhex(sha256) in self._contents

    def mark(self, db: sqlite3.Connection, rules: GarbageRules) -> None:
        """Mark what the rules keep."""
        commits: dict[str, tuple[str, str | None, str]] = {}
        for row, id_, at, parent, tree in db.execute(
            "SELECT rowid, id, json_extract(body, '$.created_at'), json_extract(body, '$.parents[0]'), "
            "json_extract(body, '$.tree') FROM commits"
        ):
            commits[id_] = (at, parent, tree)
            self._newest = max(self._newest, row)
        since = rules.since.astimezone(UTC).isoformat(timespec="microseconds")
        kept = {id_ for id_, (at, _, _) in commits.items() if at >= since} | set(rules.commits)
        self._without = frozenset(rules.without)
        for head in self._heads(db):
            walked: str | None = head
            while walked is not None and commits[walked][0] >= since:
                walked = commits[walked][1]
            # What the branch held when the kept time began.
            kept.update({head} if walked is None else {head, walked})
        for id_ in kept & commits.keys():
            self._mark_tree(commits[id_][2])
        self.mark_news(db)

    def mark_news(self, db: sqlite3.Connection) -> None:
        """Mark what became reachable since: heads, tags, newer commits, uncommitted changes."""
        for id_ in {*self._heads(db), *refs.all_tags(db).values()}:
            self._mark_tree(refs.commit_at(db, id_).tree)
        newer = "SELECT rowid, json_extract(body, '$.tree') FROM commits WHERE rowid > ?"
        for row, tree in db.execute(newer, (self._newest,)).fetchall():
            self._mark_tree(tree)
            self._newest = max(self._newest, row)
        staged = db.execute("SELECT branch, sha256 FROM staged WHERE sha256 IS NOT NULL")
        self._contents.update(
            bytes.fromhex(sha256) for branch, sha256 in staged if branch not in self._without
        )

    def _heads(self, db: sqlite3.Connection) -> list[str]:
        return [head for name, head in refs.all_branches(db).items() if name not in self._without]

    def _mark_tree(self, tree: str) -> None:
        self._contents.update(bytes.fromhex(one.sha256) for one in self._trees.unseen(tree, self._seen))


KEPT = "keep-base-"
"""Prefix of the branches that keep commits for garbage collection."""
_EVERY = 1 << 31
"""Commits of a whole history."""
_NOTE = "lakeFS deletes them when its garbage collection job runs: a Spark job, or a part of its enterprise edition"


class LakeFSRetention:
    """`GarbageCollector` of a lakeFS repository: it sets rules, and lakeFS deletes."""

    def __init__(self, api: LakeFSApi, store: VersionedStore) -> None:
        self._api = api
        self._store = store

    def look(self, rules: GarbageRules) -> Garbage:
        """Return contents of main that were replaced before `rules.since` and that no branch holds.

        Reads the differences of the commits before that time, and of the branches with main. Contents of deleted
        branches are not counted.
        """
        gone: set[ObjectStat] = set()
        for commit in self._store.log(MAIN, _EVERY):
            if commit.created_at < rules.since and commit.parents:
                changes = self._store.compare(commit.parents[0], commit.id)
                gone.update(one.before for one in changes if one.before is not None)
        if gone:
            gone.difference_update(self._store.list(MAIN))
            left_out = {MAIN, *rules.without}
            heads = {head for name, head in self._store.branches().items() if name not in left_out}
            for commit in heads.union(rules.commits):
                gone.difference_update(
                    one.after for one in self._store.compare(MAIN, commit) if one.after is not None
                )
        return Garbage(objects=len(gone), size=sum(one.size for one in gone), note=_NOTE)

    def collect(self, rules: GarbageRules) -> Garbage:
        """Set the rules of the repository and keep the named commits on branches; return what lakeFS may delete."""
        wanted = {f"{KEPT}{commit[:12]}": commit for commit in rules.commits}
        for name, commit in wanted.items():
            self._store.keep(name, commit)
        for name in self._store.branches(KEPT):
            if name not in wanted:
                self._store.release(name)
        days = max(1, round((datetime.now(UTC) - rules.since) / timedelta(days=1)))
        self._api.ask(
            "repositories_api",
            "set_gc_rules",
            self._api.model("GarbageCollectionRules", default_retention_days=days, branches=[]),
        )
        if self.retention_days() != days:
            raise LakeError(
                f"lakeFS did not keep the rules of {self._api.repository!r}: {days} days were set. Look at the "
                "repository's retention settings in lakeFS, then run ml-assets gc --delete again."
            )
        return self.look(rules)

    def retention_days(self) -> int | None:
        """Return the days of the rules on the server; None if it has none."""
        try:
            # As JSON: the client refuses the server's own answer, in which `branches` is null.
            rules = self._api.ask_plainly("repositories_api", "get_gc_rules")
            return int(rules["default_retention_days"])
        except Refusal as refusal:
            if refusal.status != 404:
                raise
            return None
