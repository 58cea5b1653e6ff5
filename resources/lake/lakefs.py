"""`LakeFSStore`: the lake on a lakeFS server.

Belongs here: the methods of the protocol with the server's operations, and its refusals as our errors. Does not: calls
and retries (`lakefs_api.py`), bytes (`lakefs_content.py`), creating and protecting a repository (`lakefs_setup.py`).

The server or this process may be killed between any two steps of an operation. Repeating the operation continues it.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from resources.lake import (
    SERVERS_OWN,
    AuditHookMissing,
    AuditHookRefused,
    BranchDirty,
    BranchProtected,
    Commit,
    LakeError,
    MergeConflict,
    ObjectChange,
    ObjectNotFound,
    ObjectStat,
    RefExists,
    RefNotFound,
    check_name,
    check_path,
)
from resources.lake.lakefs_api import LakeFSApi, Refusal
from resources.lake.lakefs_content import PRESIGN_FROM, Content, ContentCache
from resources.lake.lakefs_listing import BRANCH, PAGE, PATH, Listing, MigratedIds
from resources.words import name_some


class LakeFSReader:
    """One repository of a lakeFS server, for any number of threads and processes."""

    def __init__(self, api: LakeFSApi, cache: Path, *, presign_from: int | None = PRESIGN_FROM) -> None:
        """Use `cache` for local copies, which all repositories and processes may share. Sends no request yet.

        Content of `presign_from` bytes and more goes straight to the server's storage if the storage can presign.
        None sends all content through the server.
        """
        self.api = api
        self.listing = Listing(api)
        self.content = Content(api, ContentCache(cache), presign_from=presign_from)
        self._migrated = MigratedIds(self._read_migrated_ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.api.address)!r}, {self.api.repository!r})"

    def resolve(self, ref: str) -> str:
        """Return the commit id of a branch's head, of a tag or of a full commit id. Else raise `RefNotFound`.

        A commit of the embedded lake that was migrated here has its id of today.
        """
        ref = self._migrated.current(ref)
        for section, operation, field in (
            ("branches_api", "get_branch", "commit_id"),
            ("tags_api", "get_tag", "commit_id"),
            ("commits_api", "get_commit", "id"),
        ):
            found = self.find(section, operation, ref)
            # lakeFS also accepts the beginning of a commit id, and expressions such as main~1.
            if found is not None and (operation != "get_commit" or found.id == ref):
                return str(getattr(found, field))
        raise RefNotFound(
            f"No branch, tag or commit {ref!r}. `ml-assets data log` shows the commits of main; in code, branches() "
            "and tags() list the names, and ids have 64 hex digits."
        )

    def branches(self, prefix: str = "") -> dict[str, str]:
        """Branch name → commit id, sorted by name."""
        return self._names("branches_api", "list_branches", prefix)

    def tags(self) -> dict[str, str]:
        """Tag name → commit id, sorted by name."""
        return self._names("tags_api", "list_tags", "")

    def list(self, ref: str, prefix: str = "") -> list[ObjectStat]:
        """Objects whose path starts with `prefix`, sorted by path."""
        ref = self._migrated.current(ref)
        try:
            entries = {entry.path: entry for entry in self.listing.entries(ref, prefix)}
            digests = self.content.digests(ref, entries)
        except Refusal as refusal:
            self._not_found(ref, refusal)
        return [ObjectStat(path, digests[path], entry.size) for path, entry in entries.items()]

    def compare(self, before: str, after: str) -> Sequence[ObjectChange]:
        """Paths whose content differs between two refs, sorted. For a branch, its head counts, without uncommitted
        changes."""
        commits = [self.resolve(ref) for ref in (before, after)]
        try:
            paths = self._differing(*commits)
            old, new = (self._stats(commit, paths) for commit in commits)
        except Refusal as refusal:
            self._not_found(before, refusal)
        # lakeFS also names a path whose content was uploaded again in another way.
        return [ObjectChange(path, old[path], new[path]) for path in paths if old[path] != new[path]]

    def stat(self, ref: str, path: str) -> ObjectStat:
        """Return one object. Raise `ObjectNotFound` if it is missing."""
        ref = self._migrated.current(ref)
        try:
            entries = self.listing.find(ref, [path])
            digests = self.content.digests(ref, entries)
        except Refusal as refusal:
            self._not_found(ref, refusal)
        self._require(ref, entries, [path])
        return ObjectStat(path, digests[path], entries[path].size)

    def fetch(self, ref: str, paths: Sequence[str]) -> dict[str, Path]:
        """Return read-only files of the local cache. Download those that the cache lacks."""
        if not paths:
            return {}
        ref = self._migrated.current(ref)
        try:
            entries = self.listing.find(ref, paths)
            self._require(ref, entries, paths)
            return self.content.files(ref, {path: entries[path] for path in paths})
        except Refusal as refusal:
            self._not_found(ref, refusal)

    def log(self, ref: str, limit: int = 100) -> Iterator[Commit]:
        """Commits from `ref` backwards along first parents, newest first."""
        ref = self._migrated.current(ref)
        after = ""
        while limit > 0:
            try:
                amount = min(limit, PAGE)
                page = self.api.ask(
                    "refs_api", "log_commits", ref, after=after, amount=amount, first_parent=True
                )
            except Refusal as refusal:
                self._not_found(ref, refusal)
            for found in page.results:
                yield _commit(found)
            limit -= len(page.results)
            if not page.pagination.has_more:
                return
            after = page.results[-1].id

    def read_commit(self, commit_id: str) -> Commit:
        """Return one commit by its full id. Raise `RefNotFound` if it does not exist."""
        commit_id = self._migrated.current(commit_id)
        found = self.find("commits_api", "get_commit", commit_id)
        if found is None or found.id != commit_id:
            raise RefNotFound(
                f'No commit {commit_id!r} in {self.api.repository}. Ids are 64 hex digits; see log("main").'
            )
        return _commit(found)

    def commit_url(self, commit_id: str) -> str:
        """Return the address of the commit's page in lakeFS."""
        return f"{self.api.address}/repositories/{self.api.repository}/commits/{self._migrated.current(commit_id)}"

    # Shared by reading and writing

    def find(self, section: str, operation: str, name: str) -> Any:
        """Return the branch, tag or commit with this name, or None if it does not exist."""
        try:
            return self.api.ask(section, operation, name)
        except Refusal as refusal:
            # 400: lakeFS does not accept the name.
            if refusal.status in (400, 404):
                return None
            raise

    def head(self, branch: str) -> str:
        """Return the commit id of a branch's head. Raise `RefNotFound` if the branch does not exist."""
        found = self.find("branches_api", "get_branch", branch)
        if found is None:
            raise RefNotFound(f"No branch {branch!r}. branches() lists them; create_branch makes one.")
        return str(found.commit_id)

    def _read_migrated_ids(self) -> Path | None:
        found = self.find("branches_api", "get_branch", BRANCH)
        if found is None:
            return None
        commit = str(found.commit_id)
        return self.content.files(commit, self.listing.find(commit, [PATH])).get(PATH)

    def _differing(self, before: str, after: str) -> Sequence[str]:
        found: dict[str, None] = {}
        last = ""
        while True:
            page = self.api.ask_plainly(
                "refs_api", "diff_refs", before, after, type="two_dot", after=last, amount=PAGE
            )
            found |= dict.fromkeys(one["path"] for one in page["results"])
            if not page["pagination"]["has_more"]:
                return [path for path in found if not path.startswith(SERVERS_OWN)]
            last = page["pagination"]["next_offset"]

    def _stats(self, commit: str, paths: Sequence[str]) -> Mapping[str, ObjectStat | None]:
        entries = self.listing.find(commit, paths)
        digests = self.content.digests(commit, entries)
        return {
            path: ObjectStat(path, digests[path], entries[path].size) if path in entries else None
            for path in paths
        }

    def _names(self, section: str, operation: str, prefix: str) -> dict[str, str]:
        found: dict[str, str] = {}
        after = ""
        while True:
            page = self.api.ask(section, operation, prefix=prefix, after=after, amount=PAGE)
            found |= {str(ref.id): str(ref.commit_id) for ref in page.results}
            if not page.pagination.has_more:
                return found
            after = page.results[-1].id

    def _require(self, ref: str, found: Mapping[str, object], paths: Sequence[str]) -> None:
        missing = sorted(set(paths) - found.keys())
        if missing:
            raise ObjectNotFound(
                f"Not at {ref!r}: {name_some(missing)}. list({ref!r}, prefix) shows what is there."
            )

    def _not_found(self, ref: str, refusal: Refusal) -> NoReturn:
        """Raise the error for a refused read. After 404, or 400 for an invalid name, `resolve` names a missing ref."""
        if refusal.status in (400, 404):
            self.resolve(ref)
        raise LakeError(f"{ref!r} in {self.api.repository}: {refusal}") from refusal


def _commit(found: Any) -> Commit:
    return Commit(
        id=str(found.id),
        parents=tuple(str(parent) for parent in found.parents),
        message=str(found.message),
        metadata=dict(getattr(found, "metadata", None) or {}),  # the server may leave it out
        created_at=datetime.fromtimestamp(found.creation_date, UTC),
    )


AUDITED = "main"
"""Branch whose audit hook the source of a merge must carry."""


class LakeFSStore(LakeFSReader):
    """A `VersionedStore` in one repository of a lakeFS server, for any number of threads and processes."""

    # Writing

    def put(self, branch: str, path: str, source: Path | bytes) -> ObjectStat:
        """Write one object without committing it. Raise `BranchProtected` for a protected branch."""
        check_path(path)
        try:
            return self.content.upload(branch, path, source)
        except Refusal as refusal:
            self._not_on(branch, refusal)

    def remove(self, branch: str, path: str) -> None:
        """Remove one object without committing the removal. Do nothing if it is missing."""
        try:
            self.api.ask("objects_api", "delete_object", branch, path)
        except Refusal as refusal:
            self._not_on(branch, refusal)

    def commit(self, branch: str, message: str, metadata: Mapping[str, str]) -> str:
        """Commit the uncommitted changes of `branch`; return the new head. Without changes, return the current head."""
        creation = self.api.model("CommitCreation", message=message, metadata=dict(metadata))
        try:
            return str(self.api.ask("commits_api", "commit", branch, creation).id)
        except Refusal as refusal:
            if refusal.changes_nothing:
                return self.head(branch)
            self._not_on(branch, refusal)

    def merge(self, source: str, into: str, message: str, metadata: Mapping[str, str]) -> str:
        """Merge three ways by path; return the new head of `into`, or its current head if `source` adds nothing.

        Uncommitted changes of `source` are left out. Raise `MergeConflict` with the paths that both changed to
        different content, or `BranchDirty` if `into` has uncommitted changes. A merge into main raises
        `AuditHookMissing` if the source lacks the audit hook, and `AuditHookRefused` if the hook refuses the merge.
        """
        theirs = self.resolve(source)
        if into == AUDITED:
            self._require_audit_hook(source, theirs, into)
        merge = self.api.model("Merge", message=message, metadata=dict(metadata))
        try:
            # If both sides hold the same change, lakeFS would make a commit that changes nothing.
            if not self._changes(theirs, into, amount=1).results:
                return self.head(into)
            return str(self.api.ask("refs_api", "merge_into_branch", theirs, into, merge=merge).reference)
        except Refusal as refusal:
            if refusal.changes_nothing:
                return self.head(into)
            if refusal.status == 409:
                conflicts = self._conflicts(theirs, into)
                raise MergeConflict(
                    f"{source!r} and {into!r} both changed {name_some(conflicts)}. "
                    f"Create a new branch from {into!r}, write the final content there, and merge it.",
                    conflicts,
                ) from None
            if refusal.status == 412:
                raise AuditHookRefused(
                    f"The audit hook of {into!r} refused {source!r}: {refusal.message}. Publish with ml-assets launch, "
                    "which audits first, or accept by hand: ml-assets accept TABLE PARTITION --reason '…'."
                ) from None
            if "dirty branch" in refusal.message:
                raise BranchDirty(
                    f"Branch {into!r} has uncommitted changes and cannot take a merge. Commit them, or "
                    "write them to another branch."
                ) from None
            self._not_on(into, refusal)

    # Names

    def create_branch(self, name: str, source: str) -> str:
        """Create branch `name` at the commit of `source`; return the commit id.

        Uncommitted changes of `source` are left out. Do nothing if `name` stands at that commit without uncommitted
        changes. Raise `RefExists` if it stands elsewhere or has such changes.
        """
        check_name("branch", name)
        commit_id = self.resolve(source)
        creation = self.api.model("BranchCreation", name=name, source=commit_id)
        try:
            self.api.ask("branches_api", "create_branch", creation)
        except Refusal as refusal:
            if refusal.status != 409:
                raise
            self._require_clean_at(name, commit_id)
        return commit_id

    def delete_branch(self, name: str) -> None:
        """Delete a branch and its uncommitted changes. Raise `BranchProtected` or `RefNotFound`."""
        self.head(name)
        self.release(name)

    def tag(self, name: str, ref: str) -> str:
        """Name a commit for people; return its id. Raise `RefExists` if the tag names another commit."""
        check_name("tag", name)
        commit_id = self.resolve(ref)
        try:
            self.api.ask("tags_api", "create_tag", self.api.model("TagCreation", id=name, ref=commit_id))
        except Refusal as refusal:
            if refusal.status != 409:
                raise
            tagged = self.find("tags_api", "get_tag", name)
            if tagged is None or tagged.commit_id != commit_id:
                stands = (
                    "a branch or commit has this name" if tagged is None else f"it names {tagged.commit_id}"
                )
                raise RefExists(
                    f"Tag {name!r} cannot name {commit_id}: {stands}. Tags do not move: take another name."
                ) from None
        return commit_id

    def keep(self, name: str, ref: str) -> str:
        """Create branch `name` at `ref` to protect the commit from garbage collection. Idempotent.

        Raise `RefExists` if the branch stands elsewhere.
        """
        return self.create_branch(name, ref)

    def release(self, name: str) -> None:
        """Delete a kept branch. Do nothing if the branch does not exist."""
        try:
            self.api.ask("branches_api", "delete_branch", name)
        except Refusal as refusal:
            if refusal.status != 404:
                self._not_on(name, refusal)

    # Shared helpers

    def _require_clean_at(self, branch: str, commit_id: str) -> None:
        found = self.find("branches_api", "get_branch", branch)
        if found is None:
            raise RefExists(f"A tag or a commit is named {branch!r}. Take another name.")
        if found.commit_id != commit_id:
            state = f"at {found.commit_id}, not {commit_id}"
        elif self.api.ask("branches_api", "diff_branch", branch, amount=1).results:
            state = f"at {commit_id}, with uncommitted changes"
        else:
            return
        raise RefExists(f"Branch {branch!r} exists, {state}. Take another name, or delete_branch first.")

    def _require_audit_hook(self, source: str, theirs: str, into: str) -> None:
        hooks = self.listing.hooks(self.head(into))
        if hooks and self.listing.hooks(theirs) != hooks:
            raise AuditHookMissing(
                f"{source!r} does not carry the audit hook of {into!r} ({name_some(sorted(hooks))}): it is older "
                f"than the hook, or changed it. Create a new branch from {into!r}, write there, and merge it."
            )

    def _conflicts(self, theirs: str, into: str) -> tuple[str, ...]:
        found: list[str] = []
        after = ""
        while True:
            page = self._changes(theirs, into, after=after, amount=PAGE)
            found += [str(change.path) for change in page.results if change.type == "conflict"]
            if not page.pagination.has_more:
                return tuple(found)
            after = page.results[-1].path

    def _changes(self, theirs: str, into: str, **page: object) -> Any:
        """Return the changes of `theirs` since the common ancestor, without those that `into` holds too."""
        return self.api.ask("refs_api", "diff_refs", into, theirs, type="three_dot", **page)

    def _not_on(self, branch: str, refusal: Refusal) -> NoReturn:
        """Raise the error for a refused write to a branch."""
        if refusal.protects:
            raise BranchProtected(
                f"Cannot write to {branch!r}: it takes merges only. Write to a branch made from it, then merge."
            ) from None
        if refusal.status in (400, 404):
            self.head(branch)
        raise LakeError(f"Branch {branch!r} in {self.api.repository}: {refusal}") from refusal
