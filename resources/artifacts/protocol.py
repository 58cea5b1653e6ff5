"""Protocol of the artifacts' home, its errors, and the names that it takes. Standard library only."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Protocol


class ArtifactsError(Exception):
    """Base of every failure of the artifacts' home."""


class ArtifactMissing(ArtifactsError):
    """Nothing was pushed under this name, or not this file."""


class ArtifactsUnavailable(ArtifactsError):
    """The server is away, slow, overloaded or full; the same call may succeed later."""


class ArtifactsRefused(ArtifactsError):
    """The server answered that it will not: wrong credentials, no such bucket, a name it does not take."""


class Artifacts(Protocol):
    """Named folders. A name and a file are relative paths with `/`; both may not leave their folder.

    A file named in `files` may also be a folder: then everything below it is meant.
    Every method may raise one of `ArtifactsError`.
    """

    def folder(self, name: str) -> Path:
        """The local place of `name`, to fill or to read; made if it is not there."""
        ...

    def push(self, name: str, files: Sequence[str] | None = None, *, last: str | None = None) -> str:
        """Make a durable copy of `files` (None: all in the folder) and answer `address(name)`.

        What the durable copy already holds with equal content is not sent again. `last` is sent when all
        others have arrived: the marker that makes the whole valid for readers. Nothing is deleted there.
        """
        ...

    def pull(self, name: str, files: Sequence[str] | None = None, *, last: str | None = None) -> Path:
        """The local folder, holding `files` (None: all) as they were pushed; `last` appears last.

        A local file that differs is replaced as a whole; others in the folder stay. Raises
        `ArtifactMissing` if nothing was pushed under the name, or if one of `files` was not.
        """
        ...

    def fetch(self, name: str, file: str, target: Path) -> None:
        """Copy one file that was pushed to `target`, whole or not at all, without looking at what lies here.

        Raises `ArtifactMissing` where it was not pushed.
        """
        ...

    def address(self, name: str) -> str:
        """`file:///…` or `s3://…`: for people, MLflow and pods."""
        ...

    def exists(self, name: str, file: str | None = None) -> bool:
        """True if anything, or this very file, was pushed under `name`."""
        ...

    def files(self, name: str) -> dict[str, int]:
        """Path inside the folder → bytes, of everything pushed; empty if nothing was."""
        ...

    def remove(self, name: str, files: Sequence[str] | None = None) -> None:
        """Delete `files` (None: all) from the durable copy and from the local folder. Absent ones are fine."""
        ...

    def create(self, name: str, file: str) -> AbstractContextManager[IO[bytes]]:
        """A file of the durable copy, written in order without a local one: there when the block ends, as before
        where it raises."""
        ...

    def abort_uploads(self, name: str) -> None:
        """Forget what killed processes began to `create` under `name`."""
        ...


def relative(name: str) -> str:
    """`name`, if it is a clean relative path. Raises `ArtifactsRefused`."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts):
        raise ArtifactsRefused(f"{name!r} is no name of an artifact: use relative paths such as bundles/1f2e")
    return name


def missing(name: str, address: str) -> ArtifactMissing:
    """Return the error for a name under which nothing was pushed."""
    return ArtifactMissing(
        f"nothing lies at {address}: run the step that makes {name} again, it pushes the files"
    )
