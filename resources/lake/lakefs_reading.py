"""Reader of a lakeFS repository: refs, history, objects.

Belongs here: the methods of the protocol that change nothing. Does not: the others (`lakefs.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from resources.lake.cache import ContentCache
from resources.lake.errors import LakeError, ObjectNotFound, RefNotFound
from resources.lake.lakefs_api import LakeFSApi, Refusal
from resources.lake.lakefs_content import PRESIGN_FROM, Content
from resources.lake.lakefs_listing import PAGE, Listing
from resources.lake.migrated_ids import BRANCH, PATH, MigratedIds
from resources.lake.names import SERVERS_OWN
from resources.lake.store import Commit, ObjectChange, ObjectStat
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
