"""Versioned storage of tables: the protocol that every lake implements, in lakeFS's words, and its values.

Here too: the rules for names, which are lakeFS's, so a name that works locally works on a server; and the errors, each
of which names the request, the state of the lake and the remedy. `resources.lake.local.LocalStore` is embedded,
`resources.lake.lakefs.LakeFSStore` uses a server.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol


class LakeError(Exception):
    """Base of all errors that a lake raises."""


class NameRefused(LakeError):
    """A branch or tag name does not match `^\\w[-\\w]*$` (lakeFS's rule: no `/`, no `.`), or a path is
    empty or absolute."""


class RefNotFound(LakeError):
    """No branch, tag or commit has this name."""


class RefExists(LakeError):
    """A branch or tag of this name exists and points elsewhere."""


class ObjectNotFound(LakeError):
    """The path does not exist at this ref."""


class BranchProtected(LakeError):
    """The branch takes merges only (lakeFS answers 403)."""


class BranchDirty(LakeError):
    """The target branch of a merge has uncommitted changes (lakeFS answers 400)."""


class MergeConflict(LakeError):
    """Both sides changed the same path to different content (lakeFS answers 409)."""

    def __init__(self, message: str, paths: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.paths = paths
        """Paths in conflict, sorted."""


class AuditHookRefused(LakeError):
    """The server's audit hook refused a merge: the merge's metadata does not record a passed audit or an acceptance
    (lakeFS answers 412)."""


class AuditHookMissing(LakeError):
    """The source of a merge lacks the audit hook of the target branch. lakeFS reads the hook from the source, so it
    would merge without an audit."""


class LakeBusy(LakeError):
    """Other writers moved the branch more often than the operation retries (lakeFS answers 429, or 503 when its
    database throttles). Try again later."""


class LakeUnavailable(LakeError):
    """The server cannot be reached, does not answer in time or fails inside. Try again later."""


class LakeRefused(LakeError):
    """The server rejects the credentials, or they do not permit the operation."""


class RepositoryMissing(LakeError):
    """The server has no repository of this name. `ml-assets lake init` creates it."""


SERVERS_OWN = "_lakefs_actions/"
"""Prefix of the objects from which lakeFS reads its hooks. Only `ml-assets lake init` writes there."""
_NAME = re.compile(r"\w[-\w]*", re.ASCII)


def check_name(kind: str, name: str) -> None:
    """Raise `NameRefused` unless `name` may name a branch or a tag. The message contains `kind`, the word for it."""
    if not _NAME.fullmatch(name):
        raise NameRefused(
            f"{name!r} cannot name a {kind}: letters, digits, _ and - only, and no - in front, as in lakeFS. "
            "Write - where you would write / or a dot."
        )


def check_path(path: str) -> None:
    """Raise `NameRefused` unless `path` may be the path of an object."""
    if not path or path.startswith("/") or "\0" in path:
        raise NameRefused(
            f"{path!r} cannot be a path: it has to be relative to the repository and not empty."
        )
    if path.startswith(SERVERS_OWN):
        raise NameRefused(
            f"{path!r} cannot be a path: lakeFS reads its hooks from {SERVERS_OWN}, which ml-assets lake init "
            "writes. Choose another folder."
        )


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """One object at one ref."""

    path: str
    """Path inside the repository, `/`-separated, without a leading slash."""
    sha256: str
    """SHA-256 of the content, 64 hex digits."""
    size: int
    """Size in bytes."""


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """One path whose content differs between two commits."""

    path: str
    before: ObjectStat | None
    """None: the path is new."""
    after: ObjectStat | None
    """None: the path was removed."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One immutable version of the whole repository."""

    id: str
    parents: tuple[str, ...]
    message: str
    metadata: Mapping[str, str]
    created_at: datetime
    """Time of the commit, UTC."""


class VersionedStore(Protocol):
    """Git-like versions of a repository of files.

    A `ref` is a branch, a tag or a commit id. Reading a branch sees its uncommitted changes. Reading by
    commit id always returns the same content, so trainings read by commit id. An object is identified by its
    path and content, never by the run that wrote it. Every method may raise `LakeError`.
    """

    def resolve(self, ref: str) -> str:
        """Return the commit id of `ref`. For a branch, return its head, without uncommitted changes."""
        ...

    def create_branch(self, name: str, source: str) -> str:
        """Create branch `name` at `source`; return its commit id. Do nothing if the branch already stands at that
        commit without uncommitted changes. Raise `RefExists` if it stands elsewhere or has such changes."""
        ...

    def delete_branch(self, name: str) -> None:
        """Delete a branch and its uncommitted changes. Raise `BranchProtected` for a protected branch."""
        ...

    def branches(self, prefix: str = "") -> dict[str, str]:
        """Branch name → commit id, sorted by name."""
        ...

    def put(self, branch: str, path: str, source: Path | bytes) -> ObjectStat:
        """Write one object without committing it. Raise `BranchProtected` for a protected branch."""
        ...

    def remove(self, branch: str, path: str) -> None:
        """Remove one object without committing the removal."""
        ...

    def list(self, ref: str, prefix: str = "") -> list[ObjectStat]:
        """Objects whose path starts with `prefix`, sorted by path."""
        ...

    def compare(self, before: str, after: str) -> Sequence[ObjectChange]:
        """Paths whose content differs between two refs, sorted. For a branch, its head counts, without uncommitted
        changes. The cost follows the number of changes, not the size of the lake."""
        ...

    def stat(self, ref: str, path: str) -> ObjectStat:
        """Return one object. Raise `ObjectNotFound` if it is missing."""
        ...

    def fetch(self, ref: str, paths: Sequence[str]) -> dict[str, Path]:
        """Return local read-only files with the content of `paths` at `ref`. polars scans them in place."""
        ...

    def commit(self, branch: str, message: str, metadata: Mapping[str, str]) -> str:
        """Commit the uncommitted changes of `branch`; return the new head. Without changes, return the current head."""
        ...

    def merge(self, source: str, into: str, message: str, metadata: Mapping[str, str]) -> str:
        """Merge three ways by path; return the new head of `into`, or its current head if there is nothing to merge.
        Raise `MergeConflict`, which names the paths, or `BranchDirty` if `into` has uncommitted changes."""
        ...

    def log(self, ref: str, limit: int = 100) -> Iterator[Commit]:
        """Commits from `ref` backwards along first parents, newest first."""
        ...

    def read_commit(self, commit_id: str) -> Commit:
        """Return one commit by id."""
        ...

    def tag(self, name: str, ref: str) -> str:
        """Name a commit for people; return its id. Raise `RefExists` if the tag names another commit."""
        ...

    def tags(self) -> dict[str, str]:
        """Tag name → commit id, sorted by name."""
        ...

    def keep(self, name: str, ref: str) -> str:
        """Create branch `name` (by convention `keep-…`) at `ref`; return the commit id. Idempotent.

        A branch protects its commits from garbage collection. A tag does not.
        """
        ...

    def release(self, name: str) -> None:
        """Delete a kept branch. Do nothing if the branch does not exist."""
        ...

    def commit_url(self, commit_id: str) -> str | None:
        """Return the address of the page that shows a commit, or None if the lake has no pages."""
        ...
