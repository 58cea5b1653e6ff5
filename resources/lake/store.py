"""Protocol that every lake implements, in lakeFS's words, and the values that its methods return."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol


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
