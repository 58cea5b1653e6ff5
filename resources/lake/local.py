"""`LocalStore`: the embedded lake. Content-addressed files, names and history in SQLite, no server.

Belongs here: the rules of the protocol, which are lakeFS's: refused operations, dirty branches, merges. Does not:
bytes on disk (`objects.py`), tables (`refs.py`), trees (`tree.py`), the rules of names (`__init__.py`).

If a process is killed, its finished puts, commits and merges stay and the unfinished operation leaves no trace. A
power cut can lose uncommitted changes, never a commit.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from resources.lake import (
    BranchDirty,
    BranchProtected,
    Commit,
    MergeConflict,
    ObjectChange,
    ObjectNotFound,
    ObjectStat,
    RefExists,
    RefNotFound,
    check_name,
    check_path,
    refs,
)
from resources.lake.objects import ObjectFiles
from resources.lake.refs import SQLiteDatabase, merge_base, merge_trees
from resources.lake.tree import Tree, Trees
from resources.words import name_some


class LocalStore:
    """A `VersionedStore` in one folder of a local disk, for any number of threads and processes."""

    def __init__(self, root: Path, *, patience: float = 15.0) -> None:
        """Open the repository at `root`. The first use creates it, with an empty root commit and branch `main`.

        `main` takes merges only. A write waits up to `patience` seconds for the writes of other
        processes, then raises `LakeBusy`.
        """
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
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
        """Return the commit id of a branch's head, of a tag or of a full commit id. Else raise `RefNotFound`."""
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

    def compare(self, before: str, after: str) -> Sequence[ObjectChange]:
        """Paths whose content differs between two refs, sorted. Reads only the ranges that the two do not share."""
        with self._database.reading() as db:
            old, new = self._tree(db, before), self._tree(db, after)
            changes = self._trees.difference(old, new)
            known = self._trees.find(old, changes)
        return [ObjectChange(path, known.get(path), changes[path]) for path in sorted(changes)]

    def stat(self, ref: str, path: str) -> ObjectStat:
        """Return one object. Raise `ObjectNotFound` if it is missing."""
        return self._find(ref, (path,))[path]

    def fetch(self, ref: str, paths: Sequence[str]) -> dict[str, Path]:
        """Return the stored files themselves, without a copy. They never change."""
        return {
            path: self._objects.existing(entry.sha256, entry.size, path)
            for path, entry in self._find(ref, paths).items()
        }

    def holds(self, entry: ObjectStat) -> bool:
        """True if the content of an object is still stored. Garbage collection deletes contents, never commits."""
        return self._objects.holds(entry.sha256, entry.size)

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
        """Return one commit by its full id. Raise `RefNotFound` if it does not exist."""
        with self._database.reading() as db:
            found = refs.find_commit(db, commit_id)
        if found is None:
            raise RefNotFound(
                f'No commit {commit_id!r} in {self.root}. Ids are 64 hex digits; see log("main").'
            )
        return found.commit

    # Writing

    def put(self, branch: str, path: str, source: Path | bytes) -> ObjectStat:
        """Write one object without committing it. Raise `BranchProtected` for a protected branch."""
        self._refuse_protected(branch, "put objects on")
        check_path(path)
        with self._database.reading() as db:
            _head(db, branch)
        while True:
            sha256, size = self._objects.write(source)
            entry = ObjectStat(path, sha256, size)
            with self._database.writing(durable=False) as db:
                _head(db, branch)
                refs.stage(db, branch, path, entry)
                # Garbage collection may have deleted an equal content that was stored before. It spares staged ones.
                if self._objects.holds(sha256, size):
                    return entry

    def remove(self, branch: str, path: str) -> None:
        """Remove one object without committing the removal. Do nothing if it is missing."""
        self._refuse_protected(branch, "remove objects from")
        with self._database.writing(durable=False) as db:
            _head(db, branch)
            refs.stage(db, branch, path, None)

    def commit(self, branch: str, message: str, metadata: Mapping[str, str]) -> str:
        """Commit the uncommitted changes of `branch`; return the new head. Without changes, return the current head.

        On return, content and commit are on the disk.
        """
        self._refuse_protected(branch, "commit to")
        with self._database.reading() as db:
            contents = _contents(refs.staged_changes(db, branch))
        # Sync the files before the transaction: other writers wait for as long as it is open.
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
        """Merge three ways by path; return the new head of `into`, or its current head if `source` adds nothing.

        Uncommitted changes of `source` are left out. Raise `MergeConflict` with the paths that both changed to
        different content, or `BranchDirty` if `into` has uncommitted changes.
        """
        with self._database.writing() as db:
            theirs = _resolve(db, source)
            ours = _head(db, into)
            if refs.is_dirty(db, into):
                raise BranchDirty(
                    f"Branch {into!r} has uncommitted changes and cannot take a merge. Commit them, or "
                    "write them to another branch."
                )
            base = merge_base(ours, theirs, lambda commit: refs.graph_node(db, commit))
            before, their_tree, base_tree = (
                self._trees.read(refs.commit_at(db, commit).tree) for commit in (ours, theirs, base)
            )
            after, conflicts = merge_trees(self._trees, base_tree, before, their_tree)
            if conflicts:
                raise MergeConflict(
                    f"{source!r} and {into!r} both changed {name_some(conflicts)} since {base}. "
                    f"Create a new branch from {into!r}, write the final content there, and merge it.",
                    conflicts,
                )
            return self._advance(db, into, (ours, theirs), before, after, message, metadata)

    # Names

    def create_branch(self, name: str, source: str) -> str:
        """Create branch `name` at the commit of `source`; return the commit id.

        Uncommitted changes of `source` are left out. Do nothing if `name` stands at that commit without uncommitted
        changes. Raise `RefExists` if it stands elsewhere or has such changes.
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
        """Delete a branch and its uncommitted changes. Raise `BranchProtected` or `RefNotFound`."""
        self._refuse_protected(name, "delete")
        with self._database.writing() as db:
            _head(db, name)
            refs.drop_branch(db, name)

    def tag(self, name: str, ref: str) -> str:
        """Name a commit for people; return its id. Raise `RefExists` if the tag names another commit."""
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
        """Create branch `name` at `ref` to protect the commit from garbage collection. Idempotent.

        Raise `RefExists` if the branch stands elsewhere.
        """
        return self.create_branch(name, ref)

    def release(self, name: str) -> None:
        """Delete a kept branch. Do nothing if the branch does not exist."""
        self._refuse_protected(name, "release")
        with self._database.writing() as db:
            refs.drop_branch(db, name)

    def commit_url(self, commit_id: str) -> str | None:
        """Return None: a folder has no pages."""
        return None

    # Shared helpers

    def _create(self) -> None:
        with self._database.writing() as db:
            # Another process may have created the repository meanwhile.
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
        """Commit the tree `after` on top of the first parent, whose tree is `before`; return the new head.

        Equal trees make no commit: return the first parent.
        """
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
        if branch == "main":
            raise BranchProtected(
                f"Cannot {what} {branch!r}: it takes merges only. Write to a branch made from it, then merge."
            )


def _resolve(db: sqlite3.Connection, ref: str) -> str:
    commit_id = refs.branch_head(db, ref) or refs.tagged(db, ref)
    if commit_id is not None:
        return commit_id
    if refs.find_commit(db, ref) is None:
        raise RefNotFound(
            f"No branch, tag or commit {ref!r}. `ml-assets data log` shows the commits of main; in code, branches() "
            "and tags() list the names, and ids have 64 hex digits."
        )
    return ref


def _head(db: sqlite3.Connection, branch: str) -> str:
    head = refs.branch_head(db, branch)
    if head is None:
        raise RefNotFound(f"No branch {branch!r}. branches() lists them; create_branch makes one.")
    return head


def _contents(changes: Mapping[str, ObjectStat | None]) -> set[tuple[str, int]]:
    return {(entry.sha256, entry.size) for entry in changes.values() if entry is not None}
