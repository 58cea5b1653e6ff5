"""Names and history in SQLite: branches, tags, commits, staged changes, and the ranges of trees; merges of them.

Belongs here: the file of a local repository with its connection, transactions and locks; the tables and the statements
on them; the common ancestor of two commits, the three-way merge by path. Does not: rules of the lake (`local.py`). The
caller of each function on tables has opened a transaction.

In WAL mode readers never wait, one process writes at a time, and a killed process leaves nothing to clean up.
`BEGIN IMMEDIATE` takes the write lock before the first read, so no other process changes the rows that a writer has
read before it commits.
"""

import contextlib
import hashlib
import heapq
import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from resources.disk import disk_of
from resources.files import file_at
from resources.lake import Commit, LakeBusy, LakeError, ObjectStat
from resources.lake.tree import Changes, Tree, Trees
from resources.retry import patiently

_FORMAT = 2
"""Format of the file. In format 2 a tree's list of ranges is cut into pages."""
_WAITS = 10
"""Waits of SQLite itself within the patience of a writer. Between them other writers get a chance."""


class SQLiteDatabase:
    """Transactions on one SQLite file. Safe for any number of threads and processes on one machine.

    The file has to be on a local disk: SQLite's locks do not hold over NFS.
    """

    def __init__(self, path: Path, schema: str, patience: float) -> None:
        """Open or create `path`; `schema` is a script of `CREATE … IF NOT EXISTS`.

        A writer waits up to `patience` seconds for others, then raises `LakeBusy`.
        """
        self._path = path
        self._schema = schema
        self._patience = patience
        self._lock = threading.Lock()
        with disk_of(path.parent):
            self._connection = self._open()

    @contextlib.contextmanager
    def reading(self) -> Generator[sqlite3.Connection, None, None]:
        """Open a read transaction: a consistent view of the database at its begin. Waits for no writer."""
        with self._lock, self._transaction("BEGIN") as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self, *, durable: bool = True) -> Generator[sqlite3.Connection, None, None]:
        """Open an exclusive write transaction, all or nothing. Raise `LakeBusy` if others hold the lock too long,
        `DiskFull`.

        With `durable=False` the write survives a kill of this process at once, but a power cut only after the next
        durable write.
        """
        with self._lock:
            connection = self._current()
            connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            with self._transaction("BEGIN IMMEDIATE"):
                yield connection

    @property
    def connection(self) -> sqlite3.Connection:
        """Connection of the transaction in progress."""
        return self._connection

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Generator[sqlite3.Connection, None, None]:
        with disk_of(self._path.parent):
            connection = self._current()
            try:
                self._patiently(connection, begin)
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                # After a full disk SQLite has already rolled the transaction back.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _current(self) -> sqlite3.Connection:
        # SQLite forbids the use of a connection after a fork. A connection outlives its file: another one at the path
        # is that of a folder which was moved away and made anew, or restored.
        if self._owner != os.getpid() or file_at(self._path) not in (None, self._file):
            self._connection = self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path,
            timeout=self._patience / _WAITS,
            isolation_level=None,
            check_same_thread=False,
        )
        self._owner = os.getpid()
        weakref.finalize(self, _close, connection, self._owner)
        # The change to WAL needs an exclusive lock, and SQLite's own timeout does not apply to it.
        self._patiently(connection, "PRAGMA journal_mode=WAL")
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, _FORMAT):
            connection.close()
            raise LakeError(
                f"{self._path} was written in format {found}, this version reads format {_FORMAT}: use the version "
                "that wrote it, or move the folder away and materialize its tables again."
            )
        if found == 0:
            self._patiently(connection, "BEGIN IMMEDIATE")
            for statement in self._schema.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={_FORMAT}")
            connection.execute("COMMIT")
        self._file = file_at(self._path)
        return connection

    def _patiently(self, connection: sqlite3.Connection, statement: str) -> None:
        try:
            patiently(
                lambda: connection.execute(statement),
                _is_busy,
                lambda _: self._patience,
                first_pause=0.01,
                longest_pause=0.1,
            )
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise
            raise LakeBusy(
                f"{self._path} was locked by other writers for {self._patience:g} s. Repeat the operation; if this "
                "continues, look for a stopped process that holds the file open (lsof)."
            ) from error


def _is_busy(error: BaseException) -> bool:
    busy = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF in busy


def _close(connection: sqlite3.Connection, owner: int) -> None:
    # A forked child must not close the connection of its parent.
    if os.getpid() == owner:
        connection.close()


@dataclass(frozen=True, slots=True)
class Combined:
    """Result of a three-way merge."""

    changes: dict[str, ObjectStat | None]
    """Changes to apply to our side. Afterwards it holds the changes of both sides."""
    conflicts: tuple[str, ...]
    """Paths that both sides changed to different content, sorted."""


def combine(ours: Changes, theirs: Changes) -> Combined:
    """Combine the changes of two sides since their common ancestor.

    A path that only one side changed takes that change. A path that both sides changed to the same content, or both
    removed, stays as our side has it. Every other path is a conflict, also a removal against a change.
    """
    changes: dict[str, ObjectStat | None] = {}
    conflicts: list[str] = []
    for path, entry in theirs.items():
        if path not in ours:
            changes[path] = entry
        elif ours[path] != entry:
            conflicts.append(path)
    return Combined(changes, tuple(sorted(conflicts)))


def merge_trees(trees: Trees, base: Tree, ours: Tree, theirs: Tree) -> tuple[Tree, tuple[str, ...]]:
    """Return our tree with their changes since `base`, and the conflicts. With conflicts, our tree is unchanged."""
    if theirs in (base, ours):
        return ours, ()
    if ours == base:
        return theirs, ()
    combined = combine(trees.difference(base, ours), trees.difference(base, theirs))
    if combined.conflicts:
        return ours, combined.conflicts
    return trees.apply(ours, combined.changes), ()


@dataclass(frozen=True, slots=True)
class CommitNode:
    """Node of the commit graph."""

    parents: tuple[str, ...]
    generation: int
    """1 + the greatest generation of the parents; 0 at the root. An ancestor always has a smaller generation."""


def merge_base(left: str, right: str, read: Callable[[str], CommitNode]) -> str:
    """Return the common ancestor with the greatest generation; on a tie, the one with the smallest id.

    Walks both histories at once, greatest generation first, and stops at the first commit reached from both
    sides. So it reads each commit above the ancestor once. All histories of one repository share the root commit.
    Raise `ValueError` for commits of different repositories.
    """
    nodes = {left: read(left), right: read(right)}
    reached = {left: 1}
    reached[right] = reached.get(right, 0) | 2
    queue = [(-node.generation, commit) for commit, node in nodes.items()]
    heapq.heapify(queue)
    while queue:
        _, commit = heapq.heappop(queue)
        sides = reached[commit]
        if sides == 3:
            return commit
        for parent in nodes[commit].parents:
            if parent not in nodes:
                nodes[parent] = read(parent)
                heapq.heappush(queue, (-nodes[parent].generation, parent))
            reached[parent] = reached.get(parent, 0) | sides
    raise ValueError(f"Commits {left} and {right} share no ancestor: they are from different repositories.")


_LAST_CHARACTER = "\U0010ffff"
_MICROSECOND = timedelta(microseconds=1)

SCHEMA = """
CREATE TABLE IF NOT EXISTS branches (name TEXT PRIMARY KEY, head TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tags (name TEXT PRIMARY KEY, commit_id TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS commits (id TEXT PRIMARY KEY, generation INTEGER NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS ranges (id TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS staged (
  branch TEXT NOT NULL, path TEXT NOT NULL, sha256 TEXT, size INTEGER, PRIMARY KEY (branch, path)
) WITHOUT ROWID
"""
"""`commits.body` is the canonical JSON whose SHA-256 is the id. A `staged` row without sha256 is a removal.
`ranges` also holds the pages that list ranges. The id of the top page is the id of the tree."""


@dataclass(frozen=True, slots=True)
class StoredCommit:
    """A commit, with its tree and its generation, which only the store needs."""

    commit: Commit
    tree: str
    """Id of its tree."""
    generation: int


def branch_head(db: sqlite3.Connection, name: str) -> str | None:
    """Return the commit id of a branch's head, or None if the branch does not exist."""
    row = db.execute("SELECT head FROM branches WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def set_branch(db: sqlite3.Connection, name: str, head: str) -> None:
    """Create a branch or move its head."""
    db.execute(
        "INSERT INTO branches VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET head = excluded.head",
        (name, head),
    )


def drop_branch(db: sqlite3.Connection, name: str) -> None:
    """Delete a branch and its uncommitted changes."""
    clear_staged(db, name)
    db.execute("DELETE FROM branches WHERE name = ?", (name,))


def all_branches(db: sqlite3.Connection) -> dict[str, str]:
    """Branch name → commit id, sorted by name."""
    return dict(db.execute("SELECT name, head FROM branches ORDER BY name"))


def tagged(db: sqlite3.Connection, name: str) -> str | None:
    """Return the commit id that a tag names, or None if the tag does not exist."""
    row = db.execute("SELECT commit_id FROM tags WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def add_tag(db: sqlite3.Connection, name: str, commit_id: str) -> None:
    """Create a tag."""
    db.execute("INSERT INTO tags VALUES (?, ?)", (name, commit_id))


def all_tags(db: sqlite3.Connection) -> dict[str, str]:
    """Tag name → commit id, sorted by name."""
    return dict(db.execute("SELECT name, commit_id FROM tags ORDER BY name"))


def stage(db: sqlite3.Connection, branch: str, path: str, entry: ObjectStat | None) -> None:
    """Record an uncommitted change of one path. An `entry` of None records its removal."""
    db.execute(
        "INSERT OR REPLACE INTO staged VALUES (?, ?, ?, ?)",
        (branch, path, entry.sha256 if entry else None, entry.size if entry else None),
    )


def staged_changes(db: sqlite3.Connection, branch: str, prefix: str = "") -> dict[str, ObjectStat | None]:
    """Return the uncommitted changes of a branch to paths that start with `prefix`."""
    rows = db.execute(
        "SELECT path, sha256, size FROM staged WHERE branch = ? AND path >= ? AND path < ?",
        (branch, prefix, prefix + _LAST_CHARACTER),
    )
    return {path: None if sha256 is None else ObjectStat(path, sha256, size) for path, sha256, size in rows}


def is_dirty(db: sqlite3.Connection, branch: str) -> bool:
    """True if a branch has uncommitted changes."""
    return db.execute("SELECT 1 FROM staged WHERE branch = ? LIMIT 1", (branch,)).fetchone() is not None


def clear_staged(db: sqlite3.Connection, branch: str) -> None:
    """Discard the uncommitted changes of a branch."""
    db.execute("DELETE FROM staged WHERE branch = ?", (branch,))


def find_commit(db: sqlite3.Connection, commit_id: str) -> StoredCommit | None:
    """Return a commit by its full id, or None if it does not exist."""
    row = db.execute("SELECT generation, body FROM commits WHERE id = ?", (commit_id,)).fetchone()
    if row is None:
        return None
    body = json.loads(row[1])
    commit = Commit(
        id=commit_id,
        parents=tuple(body["parents"]),
        message=body["message"],
        metadata=body["metadata"],
        created_at=datetime.fromisoformat(body["created_at"]),
    )
    return StoredCommit(commit, body["tree"], row[0])


def commit_at(db: sqlite3.Connection, commit_id: str) -> StoredCommit:
    """Return a commit that another row names. Raise `LakeError` if it is missing."""
    found = find_commit(db, commit_id)
    if found is None:
        raise LakeError(
            f"Commit {commit_id} is named but not in refs.db, which was changed by hand: restore it."
        )
    return found


def graph_node(db: sqlite3.Connection, commit_id: str) -> CommitNode:
    """Return a commit in the form that `merge.merge_base` reads."""
    stored = commit_at(db, commit_id)
    return CommitNode(stored.commit.parents, stored.generation)


def add_commit(
    db: sqlite3.Connection, tree: str, parents: tuple[str, ...], message: str, metadata: Mapping[str, str]
) -> str:
    """Write a commit with the current time; return its id, the SHA-256 of its canonical JSON.

    If the clock was set back, its time is just after that of its parents: readers take the later time for the later
    commit.
    """
    before = [commit_at(db, parent) for parent in parents]
    created_at = max([datetime.now(UTC), *(one.commit.created_at + _MICROSECOND for one in before)])
    body = json.dumps(
        {
            "tree": tree,
            "parents": parents,
            "message": message,
            "metadata": dict(metadata),
            "created_at": created_at.isoformat(timespec="microseconds"),
        },
        ensure_ascii=False,
        separators=(",", ":"),
        sort_keys=True,
    )
    id_ = hashlib.sha256(body.encode()).hexdigest()
    generation = 1 + max((one.generation for one in before), default=-1)
    db.execute("INSERT OR IGNORE INTO commits VALUES (?, ?, ?)", (id_, generation, body))
    return id_


def load_range(db: sqlite3.Connection, id_: str) -> bytes:
    """Return the encoded range or page with this id. Raise `LakeError` if it is missing."""
    row = db.execute("SELECT body FROM ranges WHERE id = ?", (id_,)).fetchone()
    if row is None:
        raise LakeError(f"Range {id_} is named by a tree but not in the store: refs.db was changed by hand.")
    return bytes(row[0])


def save_range(db: sqlite3.Connection, id_: str, body: bytes) -> None:
    """Store an encoded range or page."""
    db.execute("INSERT OR IGNORE INTO ranges VALUES (?, ?)", (id_, body))
