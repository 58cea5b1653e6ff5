"""`LakeFSStore`: the lake on a lakeFS server.

Belongs here: the protocol in the server's operations, and its refusals in our words. Does not: how a call is
made and repeated (`lakefs_api.py`), listing (`lakefs_listing.py`), bytes (`lakefs_content.py`), making and
protecting a repository (`lakefs_setup.py`).

Several steps of one operation are ordered so that a server, or this process, may end between any two: repeating the
operation continues it.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from resources.lake.cache import ContentCache
from resources.lake.errors import (
    BranchDirty,
    GateMissing,
    GateRefused,
    LakeError,
    MergeConflict,
    ObjectNotFound,
    RefExists,
    RefNotFound,
)
from resources.lake.lakefs_api import LakeFSApi, Refusal
from resources.lake.lakefs_content import PRESIGN_FROM, Content
from resources.lake.lakefs_listing import PAGE, Listing
from resources.lake.names import check_name, check_path
from resources.lake.store import Commit, ObjectStat

_NAMED = 5
"""Paths an error message spells out."""
GATED = "main"
"""The branch whose gate a source has to carry."""


class LakeFSStore:
    """A `VersionedStore` in one repository of a lakeFS server, for any number of threads and processes."""

    def __init__(self, api: LakeFSApi, cache: Path, *, presign_from: int | None = PRESIGN_FROM) -> None:
        """Use `cache` for local copies, which all repositories and processes may share. Asks nothing yet.

        Content of `presign_from` bytes and more goes straight to the server's storage where that can presign;
        None sends everything through the server.
        """
        self._api = api
        self._listing = Listing(api)
        self._content = Content(api, ContentCache(cache), presign_from=presign_from)

    def __repr__(self) -> str:
        return f"LakeFSStore({self._api.url!r}, {self._api.repository!r})"

    # Reading

    def resolve(self, ref: str) -> str:
        """Commit id of a branch's head, a tag, or a full commit id. `RefNotFound` otherwise."""
        for section, operation, field in (
            ("branches_api", "get_branch", "commit_id"),
            ("tags_api", "get_tag", "commit_id"),
            ("commits_api", "get_commit", "id"),
        ):
            found = self._get(section, operation, ref)
            # lakeFS also takes the beginning of a commit's id, and expressions such as main~1.
            if found is not None and (operation != "get_commit" or found.id == ref):
                return str(getattr(found, field))
        raise RefNotFound(
            f"No branch, tag or commit {ref!r}. branches() and tags() list the names; commit ids are 64 hex "
            "digits."
        )

    def branches(self, prefix: str = "") -> dict[str, str]:
        """Branch name → commit id, sorted by name."""
        return self._names("branches_api", "list_branches", prefix)

    def tags(self) -> dict[str, str]:
        """Tag name → commit id, sorted by name."""
        return self._names("tags_api", "list_tags", "")

    def list(self, ref: str, prefix: str = "") -> list[ObjectStat]:
        """Objects whose path starts with `prefix`, sorted by path."""
        try:
            entries = {entry.path: entry for entry in self._listing.entries(ref, prefix)}
            digests = self._content.digests(ref, entries)
        except Refusal as refusal:
            self._not_found(ref, refusal)
        return [ObjectStat(path, digests[path], entry.size) for path, entry in entries.items()]

    def stat(self, ref: str, path: str) -> ObjectStat:
        """One object, or `ObjectNotFound`."""
        try:
            entries = self._listing.find(ref, [path])
            digests = self._content.digests(ref, entries)
        except Refusal as refusal:
            self._not_found(ref, refusal)
        self._require(ref, entries, [path])
        return ObjectStat(path, digests[path], entries[path].size)

    def fetch(self, ref: str, paths: Sequence[str]) -> dict[str, Path]:
        """Read-only files of the local cache, fetched from the server where they are not there yet."""
        if not paths:
            return {}
        try:
            entries = self._listing.find(ref, paths)
            self._require(ref, entries, paths)
            return self._content.files(ref, {path: entries[path] for path in paths})
        except Refusal as refusal:
            self._not_found(ref, refusal)

    def log(self, ref: str, limit: int = 100) -> Iterator[Commit]:
        """Commits from `ref` backwards along first parents, newest first."""
        after = ""
        while limit > 0:
            try:
                amount = min(limit, PAGE)
                page = self._api.ask(
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
        """One commit by its full id. `RefNotFound` otherwise."""
        found = self._get("commits_api", "get_commit", commit_id)
        if found is None or found.id != commit_id:
            raise RefNotFound(
                f'No commit {commit_id!r} in {self._api.repository}. Ids are 64 hex digits; see log("main").'
            )
        return _commit(found)

    # Writing

    def put(self, branch: str, path: str, source: Path | bytes) -> ObjectStat:
        """Write one object, uncommitted. `BranchProtected` on a protected branch."""
        check_path(path)
        try:
            return self._content.upload(branch, path, source)
        except Refusal as refusal:
            self._no_branch(branch, refusal)

    def remove(self, branch: str, path: str) -> None:
        """Remove one object, uncommitted; no error if it is not there."""
        try:
            self._api.ask("objects_api", "delete_object", branch, path)
        except Refusal as refusal:
            self._no_branch(branch, refusal)

    def commit(self, branch: str, message: str, metadata: Mapping[str, str]) -> str:
        """Commit what was written to `branch`; without changes, return the head as it is."""
        creation = self._api.model("CommitCreation", message=message, metadata=dict(metadata))
        try:
            return str(self._api.ask("commits_api", "commit", branch, creation).id)
        except Refusal as refusal:
            if refusal.changes_nothing:
                return self._head(branch)
            self._no_branch(branch, refusal)

    def merge(self, source: str, into: str, message: str, metadata: Mapping[str, str]) -> str:
        """Three-way merge by path; return the head of `into` afterwards.

        Unchanged where `source` brings nothing. Uncommitted changes of `source` are left out. `MergeConflict`
        names the paths both changed to different content; `BranchDirty` if `into` has uncommitted changes;
        `GateMissing` and `GateRefused` for a merge into main that its gate would not or did not let pass.
        """
        theirs = self.resolve(source)
        if into == GATED:
            self._require_gate(source, theirs, into)
        merge = self._api.model("Merge", message=message, metadata=dict(metadata))
        try:
            return str(self._api.ask("refs_api", "merge_into_branch", theirs, into, merge).reference)
        except Refusal as refusal:
            if refusal.changes_nothing:
                return self._head(into)
            if refusal.status == 409:
                conflicts = self._conflicts(theirs, into)
                raise MergeConflict(
                    f"{source!r} and {into!r} both changed {_some(conflicts)}. "
                    f"Branch again from {into!r}, write there what should stand, and merge that.",
                    conflicts,
                ) from None
            if refusal.status == 412:
                raise GateRefused(
                    f"The gate of {into!r} refused {source!r}: {refusal.message}. Publish through tables.publish, "
                    "which audits first, or let a person accept: ml-assets accept TABLE PARTITION --reason '…'."
                ) from None
            if "dirty branch" in refusal.message:
                raise BranchDirty(
                    f"Branch {into!r} has uncommitted changes and cannot take a merge. Commit them, or put "
                    "them on a branch of their own."
                ) from None
            self._no_branch(into, refusal)

    # Names

    def create_branch(self, name: str, source: str) -> str:
        """Make branch `name` at the commit of `source`, return its id.

        Uncommitted changes of `source` stay there. No-op if `name` exists, clean, at that very commit;
        `RefExists` if it exists otherwise.
        """
        check_name("branch", name)
        commit_id = self.resolve(source)
        creation = self._api.model("BranchCreation", name=name, source=commit_id)
        try:
            self._api.ask("branches_api", "create_branch", creation)
        except Refusal as refusal:
            if refusal.status != 409:
                raise
            self._require_clean_at(name, commit_id)
        return commit_id

    def delete_branch(self, name: str) -> None:
        """Delete a branch and its uncommitted changes. `BranchProtected`, `RefNotFound`."""
        self._head(name)
        self.release(name)

    def tag(self, name: str, ref: str) -> str:
        """Name a commit for people; return its id. `RefExists` if the tag names another commit."""
        check_name("tag", name)
        commit_id = self.resolve(ref)
        try:
            self._api.ask("tags_api", "create_tag", self._api.model("TagCreation", id=name, ref=commit_id))
        except Refusal as refusal:
            if refusal.status != 409:
                raise
            tagged = self._get("tags_api", "get_tag", name)
            if tagged is None or tagged.commit_id != commit_id:
                stands = (
                    "a branch or commit has this name" if tagged is None else f"it names {tagged.commit_id}"
                )
                raise RefExists(
                    f"Tag {name!r} cannot name {commit_id}: {stands}. Tags do not move: take another name."
                ) from None
        return commit_id

    def keep(self, name: str, ref: str) -> str:
        """Make branch `name` at `ref`, a root for garbage collection. Idempotent; `RefExists` elsewhere."""
        return self.create_branch(name, ref)

    def release(self, name: str) -> None:
        """Delete a kept branch; no error if it is gone already."""
        try:
            self._api.ask("branches_api", "delete_branch", name)
        except Refusal as refusal:
            if refusal.status != 404:
                raise

    def commit_url(self, commit_id: str) -> str:
        """The commit on lakeFS's own pages."""
        return f"{self._api.url}/repositories/{self._api.repository}/commits/{commit_id}"

    # What the above share

    def _get(self, section: str, operation: str, name: str) -> Any:
        """What has this name, None if nothing has."""
        try:
            return self._api.ask(section, operation, name)
        except Refusal as refusal:
            # 400: the name is none that lakeFS takes.
            if refusal.status in (400, 404):
                return None
            raise

    def _head(self, branch: str) -> str:
        found = self._get("branches_api", "get_branch", branch)
        if found is None:
            raise RefNotFound(f"No branch {branch!r}. branches() lists them; create_branch makes one.")
        return str(found.commit_id)

    def _names(self, section: str, operation: str, prefix: str) -> dict[str, str]:
        found: dict[str, str] = {}
        after = ""
        while True:
            page = self._api.ask(section, operation, prefix=prefix, after=after, amount=PAGE)
            found |= {str(ref.id): str(ref.commit_id) for ref in page.results}
            if not page.pagination.has_more:
                return found
            after = page.results[-1].id

    def _require(self, ref: str, found: Mapping[str, object], paths: Sequence[str]) -> None:
        missing = sorted(set(paths) - found.keys())
        if missing:
            raise ObjectNotFound(
                f"Not at {ref!r}: {_some(missing)}. list({ref!r}, prefix) shows what is there."
            )

    def _require_clean_at(self, branch: str, commit_id: str) -> None:
        found = self._get("branches_api", "get_branch", branch)
        if found is None:
            raise RefExists(f"A tag or a commit is named {branch!r}. Take another name.")
        if found.commit_id != commit_id:
            state = f"at {found.commit_id}, not {commit_id}"
        elif self._api.ask("branches_api", "diff_branch", branch, amount=1).results:
            state = f"at {commit_id}, with uncommitted changes"
        else:
            return
        raise RefExists(f"Branch {branch!r} exists, {state}. Take another name, or delete_branch first.")

    def _require_gate(self, source: str, theirs: str, into: str) -> None:
        gate = self._listing.hooks(self._head(into))
        if gate and self._listing.hooks(theirs) != gate:
            raise GateMissing(
                f"{source!r} does not carry the gate of {into!r} ({_some(sorted(gate))}): it was branched before the "
                f"gate changed, or changed it itself. Branch again from {into!r}, write there, and merge that."
            )

    def _conflicts(self, theirs: str, into: str) -> tuple[str, ...]:
        found: list[str] = []
        after = ""
        while True:
            page = self._api.ask(
                "refs_api", "diff_refs", into, theirs, after=after, amount=PAGE, type="three_dot"
            )
            found += [str(change.path) for change in page.results if change.type == "conflict"]
            if not page.pagination.has_more:
                return tuple(found)
            after = page.results[-1].path

    def _not_found(self, ref: str, refusal: Refusal) -> NoReturn:
        """Say what is missing where the server said 404 (or 400, of a name it cannot take)."""
        if refusal.status in (400, 404):
            self.resolve(ref)
        raise LakeError(f"{ref!r} in {self._api.repository}: {refusal}") from refusal

    def _no_branch(self, branch: str, refusal: Refusal) -> NoReturn:
        if refusal.status in (400, 404):
            self._head(branch)
        raise LakeError(f"Branch {branch!r} in {self._api.repository}: {refusal}") from refusal


def _commit(found: Any) -> Commit:
    return Commit(
        id=str(found.id),
        parents=tuple(str(parent) for parent in found.parents),
        message=str(found.message),
        metadata=dict(getattr(found, "metadata", None) or {}),
        created_at=datetime.fromtimestamp(found.creation_date, UTC),
    )


def _some(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(paths[:_NAMED]) + more
