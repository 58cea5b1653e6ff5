"""Names and history in SQLite: branches, tags, commits, staged changes, and the ranges of trees; merges of them.

Belongs here: the tables and the statements on them, the common ancestor of two commits, the three-way merge by path.
Does not: rules of the lake (`local.py`). The caller of each function on tables has opened a transaction of
`sqlite_database.py`.
"""

import hashlib
import heapq
import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from resources.lake.store import Commit, LakeError, ObjectStat
from resources.lake.tree import Changes, Tree, Trees


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
