"""Protocol of the artifacts' storage, its errors and its rules for names. Standard library only."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Protocol


class ArtifactsError(Exception):
    """Base of all failures of the artifacts' storage."""


class ArtifactMissing(ArtifactsError):
    """No file was pushed under this name, or not the requested file."""


class ArtifactsUnavailable(ArtifactsError):
    """The server is away, slow, overloaded or full; the same call may succeed later."""


class ArtifactsRefused(ArtifactsError):
    """The server refused the request: wrong credentials, no such bucket, an invalid name."""


class Artifacts(Protocol):
    """Named folders with a durable copy. Names and files are relative paths with `/` that stay inside their folder.

    An entry of `files` may be a folder: it stands for everything below it. Every method may raise an `ArtifactsError`.
    """

    def folder(self, name: str) -> Path:
        """Return the local folder of `name`, to fill or to read. Create it if it is missing."""
        ...

    def push(self, name: str, files: Sequence[str] | None = None, *, last: str | None = None) -> str:
        """Copy `files` (None: all in the folder) to the durable copy; return `address(name)`.

        A file whose durable copy has equal content is not sent again. `last` is sent after all others have arrived: it
        is the marker that makes the folder complete for readers. Nothing is deleted.
        """
        ...

    def pull(self, name: str, files: Sequence[str] | None = None, *, last: str | None = None) -> Path:
        """Copy `files` (None: all) as they were pushed to the local folder, `last` after all others; return the folder.

        A local file that differs is replaced as a whole. Other local files stay. Raise `ArtifactMissing` if nothing
        was pushed under the name, or if one of `files` was not.
        """
        ...

    def fetch(self, name: str, file: str, target: Path) -> None:
        """Copy one pushed file to `target`, completely or not at all. Ignores the local folder.

        Raise `ArtifactMissing` if it was not pushed.
        """
        ...

    def address(self, name: str) -> str:
        """Return the address of the durable copy, `file:///…` or `s3://…`, for people, MLflow and pods."""
        ...

    def exists(self, name: str, file: str | None = None) -> bool:
        """True if `file`, or without it any file, was pushed under `name`."""
        ...

    def files(self, name: str) -> dict[str, int]:
        """Return path inside the folder → size in bytes of all pushed files; empty if there are none."""
        ...

    def remove(self, name: str, files: Sequence[str] | None = None) -> None:
        """Delete `files` (None: all) from the durable copy and from the local folder. Ignore missing files."""
        ...

    def create(self, name: str, file: str) -> AbstractContextManager[IO[bytes]]:
        """Open a file of the durable copy for sequential writing, without a local file.

        The file appears when the block ends. If the block raises, the durable copy does not change.
        """
        ...

    def abort_uploads(self, name: str) -> None:
        """Delete files under `name` that killed processes began to `create`."""
        ...


def relative(name: str) -> str:
    """Return `name` if it is a clean relative path. Else raise `ArtifactsRefused`."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts):
        raise ArtifactsRefused(
            f"{name!r} is not a valid artifact name: use relative paths such as bundles/1f2e"
        )
    return name


def missing(name: str, address: str) -> ArtifactMissing:
    """Return the error for a name under which nothing was pushed."""
    return ArtifactMissing(
        f"nothing is stored at {address}: run the step that creates {name} again, it pushes the files"
    )
