"""`LakeFSStore`: the lake on a lakeFS server.

Belongs here: writing, merging and naming with the server's operations, and its refusals as our errors. Does not:
reading (`lakefs_reading.py`), calls and retries (`lakefs_api.py`), bytes (`lakefs_content.py`), creating and
protecting a repository (`lakefs_setup.py`).

The server or this process may be killed between any two steps of an operation. Repeating the operation continues it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from resources.lake.errors import (
    AuditHookMissing,
    AuditHookRefused,
    BranchDirty,
    BranchProtected,
    LakeError,
    MergeConflict,
    RefExists,
)
from resources.lake.lakefs_api import Refusal
from resources.lake.lakefs_listing import PAGE
from resources.lake.lakefs_reading import LakeFSReader
from resources.lake.names import check_name, check_path
from resources.lake.store import ObjectStat
from resources.words import name_some

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
