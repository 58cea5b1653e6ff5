"""Garbage collection of a `LocalStore`: mark the contents of kept commits, then delete the other files.

Linear in the number of commits, distinct ranges and files. Safe beside any number of writers: files are deleted in
batches, each inside a write transaction that first marks what became reachable since. A writer that found a content
already stored checks it again when its path is staged, in a write transaction of its own, and writes it again if it is
gone. Young files are never deleted, so that this is rare.

Only contents are deleted. Commits and their trees stay, so `log`, `compare` and merges work for every commit; `fetch`
from an expired commit names the missing content.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path

from resources.lake import refs
from resources.lake.garbage import Garbage, GarbageRules
from resources.lake.sqlite_database import SQLiteDatabase
from resources.lake.tree import Trees

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
