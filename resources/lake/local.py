"""`LocalStore`: the embedded lake. Content-addressed files, names and history in SQLite, no server.

Belongs here: the rules of the protocol, which are lakeFS's: what is refused, when a branch is dirty, what a
merge takes. Does not: bytes on disk (`objects.py`), tables (`refs.py`), trees
(`tree.py`, `merge.py`), the rules of names (`names.py`).

What a process had put, committed or merged when it was killed is there afterwards; what it was in the middle
of is not. A power cut can take uncommitted changes along, never a commit.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from resources.lake import refs
from resources.lake.errors import (
    BranchDirty,
    BranchProtected,
    MergeConflict,
    ObjectNotFound,
    RefExists,
    RefNotFound,
)
from resources.lake.merge import merge_base, merge_trees
from resources.lake.names import check_name, check_path
from resources.lake.objects import ObjectFiles
from resources.lake.sqlite_database import SQLiteDatabase
from resources.lake.store import Commit, ObjectStat
from resources.lake.tree import Tree, Trees
from resources.words import name_some


class LocalStore:
    """A `VersionedStore` in one folder of a local disk, for any number of threads and processes."""

    def __init__(self, root: Path, protected: tuple[str, ...] = ("main",), *, patience: float = 15.0) -> None:
        """Open the repository at `root`; a first use makes it, with an empty root commit and branch `main`.

        `protected` branches take merges only. A write waits up to `patience` seconds for other processes'
        writes, then raises `LakeBusy`.
        """
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.protected = protected
        self._objects = ObjectFiles(root)
        self._objects.purge()
        self._database = SQLiteDatabase(root / "refs.db", refs.SCHEMA, patience)
        self._trees = Trees(
            load=lambda id_: refs.load_range(self._database.connection, id_),
            save=lambda id_, body: refs.save_range(self._database.connection, id_, body),
        )
        with self._database.reading() as db:
            is_new = not refs.all_branches(db)
        if is_new:
            self._create()

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    # Reading

    def resolve(self, ref: str) -> str:
        """Commit id of a branch's head, a tag, or a full commit id. `RefNotFound` otherwise."""
        with self._database.reading() as db:
            return _resolve(db, ref)

    def branches(self, prefix: str = "") -> dict[str, str]:
        """Branch name → commit id, sorted by name."""
        with self._database.reading() as db:
            return {name: head for name, head in refs.all_branches(db).items() if name.startswith(prefix)}

    def tags(self) -> dict[str, str]:
        """Tag name → commit id, sorted by name."""
        with self._database.reading() as db:
            return refs.all_tags(db)

    def list(self, ref: str, prefix: str = "") -> list[ObjectStat]:
        """Objects whose path starts with `prefix`, sorted by path."""
        with self._database.reading() as db:
            entries = list(self._trees.entries(self._tree(db, ref), prefix))
            staged = refs.staged_changes(db, ref, prefix)
        if not staged:
            return entries
        merged = {entry.path: entry for entry in entries} | staged
        return [entry for _, entry in sorted(merged.items()) if entry is not None]

    def stat(self, ref: str, path: str) -> ObjectStat:
        """One object, or `ObjectNotFound`."""
        return self._find(ref, (path,))[path]

    def fetch(self, ref: str, paths: Sequence[str]) -> dict[str, Path]:
        """The stored files themselves: nothing is copied, nobody writes them again."""
        return {
            path: self._objects.existing(entry.sha256, entry.size, path)
            for path, entry in self._find(ref, paths).items()
        }

    def log(self, ref: str, limit: int = 100) -> Iterator[Commit]:
        """Commits from `ref` backwards along first parents, newest first."""
        with self._database.reading() as db:
            next_id = _resolve(db, ref)
        for _ in range(limit):
            commit = self.read_commit(next_id)
            yield commit
            if not commit.parents:
                return
            next_id = commit.parents[0]

    def read_commit(self, commit_id: str) -> Commit:
        """One commit by its full id. `RefNotFound` otherwise."""
        with self._database.reading() as db:
            found = refs.find_commit(db, commit_id)
        if found is None:
            raise RefNotFound(
                f'No commit {commit_id!r} in {self.root}. Ids are 64 hex digits; see log("main").'
            )
        return found.commit

    # Writing

    def put(self, branch: str, path: str, source: Path | bytes) -> ObjectStat:
        """Write one object, uncommitted. `BranchProtected` on a protected branch."""
        self._refuse_protected(branch, "put objects on")
        check_path(path)
        with self._database.reading() as db:
            _head(db, branch)
        sha256, size = self._objects.write(source)
        entry = ObjectStat(path, sha256, size)
        with self._database.writing(durable=False) as db:
            _head(db, branch)
            refs.stage(db, branch, path, entry)
        return entry

    def remove(self, branch: str, path: str) -> None:
        """Remove one object, uncommitted; no error if it is not there."""
        self._refuse_protected(branch, "remove objects from")
        with self._database.writing(durable=False) as db:
            _head(db, branch)
            refs.stage(db, branch, path, None)

    def commit(self, branch: str, message: str, metadata: Mapping[str, str]) -> str:
        """Commit what was written to `branch`; without changes, return the head as it is.

        When this returns, content and commit are on the disk.
        """
        self._refuse_protected(branch, "commit to")
        with self._database.reading() as db:
            contents = _contents(refs.staged_changes(db, branch))
        # Most of the waiting for the disk happens before others have to wait for us.
        self._objects.make_durable(contents)
        with self._database.writing() as db:
            head = _head(db, branch)
            staged = refs.staged_changes(db, branch)
            self._objects.make_durable(_contents(staged) - contents)
            refs.clear_staged(db, branch)
            before = self._tree(db, head)
            after = self._trees.apply(before, staged)
            return self._advance(db, branch, (head,), before, after, message, metadata)

    def merge(self, source: str, into: str, message: str, metadata: Mapping[str, str]) -> str:
        """Three-way merge by path; return the head of `into` afterwards.

        Unchanged where `source` brings nothing. Uncommitted changes of `source` are left out. `MergeConflict`
        names the paths both changed to different content; `BranchDirty` if `into` has uncommitted changes.
        """
        with self._database.writing() as db:
            theirs = _resolve(db, source)
            ours = _head(db, into)
            if refs.is_dirty(db, into):
                raise BranchDirty(
                    f"Branch {into!r} has uncommitted changes and cannot take a merge. Commit them, or put "
                    "them on a branch of their own."
                )
            base = merge_base(ours, theirs, lambda commit: refs.graph_node(db, commit))
            before, their_tree, base_tree = (
                self._trees.read(refs.commit_at(db, commit).tree) for commit in (ours, theirs, base)
            )
            after, conflicts = merge_trees(self._trees, base_tree, before, their_tree)
            if conflicts:
                raise MergeConflict(
                    f"{source!r} and {into!r} both changed {name_some(conflicts)} since {base}. "
                    f"Branch again from {into!r}, write there what should stand, and merge that.",
                    conflicts,
                )
            return self._advance(db, into, (ours, theirs), before, after, message, metadata)

    # Names

    def create_branch(self, name: str, source: str) -> str:
        """Make branch `name` at the commit of `source`, return its id.

        Uncommitted changes of `source` stay there. No-op if `name` exists, clean, at that very commit;
        `RefExists` if it exists otherwise.
        """
        check_name("branch", name)
        with self._database.writing() as db:
            commit_id = _resolve(db, source)
            head = refs.branch_head(db, name)
            if head is None:
                refs.set_branch(db, name, commit_id)
            elif head != commit_id or refs.is_dirty(db, name):
                state = "with uncommitted changes" if head == commit_id else f"not {commit_id}"
                raise RefExists(
                    f"Branch {name!r} exists, at {head}, {state}. Take another name, or delete_branch first."
                )
            return commit_id

    def delete_branch(self, name: str) -> None:
        """Delete a branch and its uncommitted changes. `BranchProtected`, `RefNotFound`."""
        self._refuse_protected(name, "delete")
        with self._database.writing() as db:
            _head(db, name)
            refs.drop_branch(db, name)

    def tag(self, name: str, ref: str) -> str:
        """Name a commit for people; return its id. `RefExists` if the tag names another commit."""
        check_name("tag", name)
        with self._database.writing() as db:
            commit_id = _resolve(db, ref)
            tagged = refs.tagged(db, name)
            if tagged is None:
                refs.add_tag(db, name, commit_id)
            elif tagged != commit_id:
                raise RefExists(
                    f"Tag {name!r} names {tagged}, not {commit_id}. Tags do not move: take another name."
                )
            return commit_id

    def keep(self, name: str, ref: str) -> str:
        """Make branch `name` at `ref`, a root for garbage collection. Idempotent; `RefExists` elsewhere."""
        return self.create_branch(name, ref)

    def release(self, name: str) -> None:
        """Delete a kept branch; no error if it is gone already."""
        self._refuse_protected(name, "release")
        with self._database.writing() as db:
            refs.drop_branch(db, name)

    def commit_url(self, commit_id: str) -> str | None:
        """None: a folder has no pages."""
        return None

    # What the above share

    def _create(self) -> None:
        with self._database.writing() as db:
            # Another process may have been first.
            if not refs.all_branches(db):
                root = refs.add_commit(db, self._trees.write(()), (), "Repository created", {})
                refs.set_branch(db, "main", root)

    def _advance(
        self,
        db: sqlite3.Connection,
        branch: str,
        parents: tuple[str, ...],
        before: Tree,
        after: Tree,
        message: str,
        metadata: Mapping[str, str],
    ) -> str:
        """Commit a tree on top of the first parent, whose tree is `before`; none if they are equal."""
        if after == before:
            return parents[0]
        commit_id = refs.add_commit(db, self._trees.write(after), parents, message, metadata)
        refs.set_branch(db, branch, commit_id)
        return commit_id

    def _tree(self, db: sqlite3.Connection, ref: str) -> Tree:
        return self._trees.read(refs.commit_at(db, _resolve(db, ref)).tree)

    def _find(self, ref: str, paths: Sequence[str]) -> dict[str, ObjectStat]:
        with self._database.reading() as db:
            found = self._trees.find(self._tree(db, ref), paths)
            staged = refs.staged_changes(db, ref, paths[0] if len(paths) == 1 else "")
        entries = {path: staged[path] if path in staged else found.get(path) for path in paths}
        missing = sorted(path for path, entry in entries.items() if entry is None)
        if missing:
            raise ObjectNotFound(
                f"Not at {ref!r}: {name_some(missing)}. list({ref!r}, prefix) shows what is there."
            )
        return {path: entry for path, entry in entries.items() if entry is not None}

    def _refuse_protected(self, branch: str, what: str) -> None:
        if branch in self.protected:
            raise BranchProtected(
                f"Cannot {what} {branch!r}: it takes merges only. Write to a branch made from it, then merge."
            )


def _resolve(db: sqlite3.Connection, ref: str) -> str:
    commit_id = refs.branch_head(db, ref) or refs.tagged(db, ref)
    if commit_id is not None:
        return commit_id
    if refs.find_commit(db, ref) is None:
        raise RefNotFound(
            f"No branch, tag or commit {ref!r}. branches() and tags() list the names; commit ids are 64 hex "
            "digits."
        )
    return ref


def _head(db: sqlite3.Connection, branch: str) -> str:
    head = refs.branch_head(db, branch)
    if head is None:
        raise RefNotFound(f"No branch {branch!r}. branches() lists them; create_branch makes one.")
    return head


def _contents(changes: Mapping[str, ObjectStat | None]) -> set[tuple[str, int]]:
    return {(entry.sha256, entry.size) for entry in changes.values() if entry is not None}
