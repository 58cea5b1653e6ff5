"""The protocol every lake keeps, in lakeFS's words, and the values it hands out."""

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
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One immutable version of the whole repository."""

    id: str
    parents: tuple[str, ...]
    message: str
    metadata: Mapping[str, str]
    created_at: datetime
    """UTC."""


class VersionedStore(Protocol):
    """Git-like versions of a repository of files.

    A `ref` is a branch, a tag or a commit id. Reading a branch sees its uncommitted changes; reading by
    commit id is immutable, which is why everything that trains reads by commit id. Identity of an object
    is its path and content: nothing about a run belongs to it. Every method may raise `LakeError`.
    """

    def resolve(self, ref: str) -> str:
        """Commit id of `ref` (of a branch: its head, uncommitted changes not included)."""
        ...

    def create_branch(self, name: str, source: str) -> str:
        """Make branch `name` at `source`, return its commit id. `RefExists` if it exists elsewhere;
        no-op if it exists, clean, at that very commit."""
        ...

    def delete_branch(self, name: str) -> None:
        """Delete a branch and its uncommitted changes. `BranchProtected` for a protected one."""
        ...

    def branches(self, prefix: str = "") -> dict[str, str]:
        """Branch name → commit id, sorted by name."""
        ...

    def put(self, branch: str, path: str, source: Path | bytes) -> ObjectStat:
        """Write one object, uncommitted. `BranchProtected` on a protected branch."""
        ...

    def remove(self, branch: str, path: str) -> None:
        """Remove one object, uncommitted."""
        ...

    def list(self, ref: str, prefix: str = "") -> list[ObjectStat]:
        """Objects whose path starts with `prefix`, sorted by path."""
        ...

    def stat(self, ref: str, path: str) -> ObjectStat:
        """One object, or `ObjectNotFound`."""
        ...

    def fetch(self, ref: str, paths: Sequence[str]) -> dict[str, Path]:
        """Local read-only files with the content of `paths` at `ref`, for polars to scan in place."""
        ...

    def commit(self, branch: str, message: str, metadata: Mapping[str, str]) -> str:
        """Commit what was written to `branch`; without changes, return the head as it is."""
        ...

    def merge(self, source: str, into: str, message: str, metadata: Mapping[str, str]) -> str:
        """Three-way merge by path; return the head of `into` afterwards (unchanged when there is nothing
        to merge). `MergeConflict` names the paths; `BranchDirty` if `into` has uncommitted changes."""
        ...

    def log(self, ref: str, limit: int = 100) -> Iterator[Commit]:
        """Commits from `ref` backwards along first parents, newest first."""
        ...

    def read_commit(self, commit_id: str) -> Commit:
        """One commit by id."""
        ...

    def tag(self, name: str, ref: str) -> str:
        """Name a commit for people. `RefExists` if the tag names another commit."""
        ...

    def tags(self) -> dict[str, str]:
        """Tag name → commit id, sorted by name."""
        ...

    def keep(self, name: str, ref: str) -> str:
        """Make branch `name` (by convention `keep-…`) at `ref`: a root for garbage collection, which a
        tag is not. Returns the commit id. Idempotent."""
        ...

    def release(self, name: str) -> None:
        """Delete a kept branch; no error if it is gone already."""
        ...

    def commit_url(self, commit_id: str) -> str | None:
        """The page that shows a commit to people; None where the lake has no pages."""
        ...
