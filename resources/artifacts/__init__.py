"""Folders of files that outlive a process: training folders, snapshots, bundles, reports.

Here: the protocol of their storage, its errors and rules for names; the choice of the storage; the embedded default, a
folder of this machine; functions on local files for every storage. S3 (s3) is imported only if an address names it:
pods and the platform share this package, which imports the standard library only. Not here: the meaning of the files.

A folder has a name such as `bundles/<digest>`. Code works on the local folder. It calls `push` to let others see its
files, and `pull` to get the files of others. With the embedded default both have nothing to copy.
"""

import os
import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Protocol

from resources.files import WRITING, whole_file


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

    def states(self, name: str) -> dict[str, str]:
        """Return path inside the folder → text that changes with the content, of all pushed files."""
        ...

    def changed(self, name: str) -> dict[str, datetime]:
        """Return path inside the folder → moment (UTC) of the last change, of all pushed files."""
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


def read_artifact(artifacts: Artifacts, name: str, file: str) -> bytes:
    """Return the content of a pushed file of the folder `name`. Raises `ArtifactMissing`."""
    with tempfile.TemporaryDirectory(prefix="ml-assets-") as fetched:
        target = Path(fetched) / file
        artifacts.fetch(name, file, target)
        return target.read_bytes()


class FolderArtifacts:
    """Embedded default of `Artifacts`: the local folder is the durable copy."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, name: str) -> Path:
        """See `Artifacts`."""
        place = self.root / relative(name)
        place.mkdir(parents=True, exist_ok=True)
        return place

    def push(self, name: str, files: Sequence[str] | None = None, *, last: str | None = None) -> str:
        """See `Artifacts`. Copies nothing, but checks that the named files exist."""
        chosen_files(self.root / relative(name), files, last)
        return self.address(name)

    def pull(self, name: str, files: Sequence[str] | None = None, *, last: str | None = None) -> Path:
        """See `Artifacts`. Copies nothing, but checks that the named files exist."""
        place = self.root / relative(name)
        if not chosen_files(place, files, last):
            raise missing(name, self.address(name))
        return place

    def fetch(self, name: str, file: str, target: Path) -> None:
        """See `Artifacts`."""
        path = self.root / relative(name) / relative(file)
        if not path.is_file():
            raise missing(name, f"{self.address(name)}/{file}")
        with whole_file(target) as part:
            shutil.copyfile(path, part)

    def address(self, name: str) -> str:
        """See `Artifacts`."""
        return (self.root / relative(name)).resolve().as_uri()

    def exists(self, name: str, file: str | None = None) -> bool:
        """See `Artifacts`."""
        place = self.root / relative(name)
        return (place / relative(file)).is_file() if file is not None else bool(self.files(name))

    def files(self, name: str) -> dict[str, int]:
        """See `Artifacts`."""
        return {file: facts.st_size for file, facts in self._facts(name).items()}

    def states(self, name: str) -> dict[str, str]:
        """See `Artifacts`."""
        return {
            file: f"{facts.st_ino} {facts.st_mtime_ns} {facts.st_size}"
            for file, facts in self._facts(name).items()
        }

    def changed(self, name: str) -> dict[str, datetime]:
        """See `Artifacts`."""
        return {
            file: datetime.fromtimestamp(facts.st_mtime, UTC) for file, facts in self._facts(name).items()
        }

    def _facts(self, name: str) -> dict[str, os.stat_result]:
        place = self.root / relative(name)
        found: dict[str, os.stat_result] = {}
        for path in local_files(place):
            with suppress(FileNotFoundError):  # another process deleted it since it was listed
                found[str(path.relative_to(place))] = path.stat()
        return found

    def remove(self, name: str, files: Sequence[str] | None = None) -> None:
        """See `Artifacts`."""
        remove_local(self.root / relative(name), files)

    @contextmanager
    def create(self, name: str, file: str) -> Generator[IO[bytes]]:
        """See `Artifacts`."""
        path = self.folder(name) / relative(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as writing, writing.open("wb") as stream:
            yield stream

    def abort_uploads(self, name: str) -> None:
        """See `Artifacts`."""
        for writing in (self.root / relative(name)).rglob(f".*{WRITING}"):
            writing.unlink(missing_ok=True)


def local_files(place: Path) -> list[Path]:
    """Return all files below `place`, sorted."""
    return sorted(path for path in place.rglob("*") if path.is_file())


def chosen_files(place: Path, files: Sequence[str] | None, last: str | None) -> list[str]:
    """Return the paths inside `place` of `files` (None: all), with folders expanded and `last` at the end.

    Raise `ArtifactMissing` if a named file or `last` does not exist.
    """
    names: dict[str, None] = {}
    for file in [None] if files is None else [relative(file) for file in files]:
        path = place if file is None else place / file
        if file is not None and path.is_file():
            names[file] = None
        elif file is None or path.is_dir():
            names.update(dict.fromkeys(str(one.relative_to(place)) for one in local_files(path)))
        else:
            raise ArtifactMissing(f"{path} does not exist: write it before it is pushed or read")
    if last is not None:
        if not (place / relative(last)).is_file():
            raise ArtifactMissing(
                f"{place / last} does not exist: write it last, it marks the folder as complete"
            )
        names.pop(last, None)
        names[last] = None
    return list(names)


def remove_local(place: Path, files: Sequence[str] | None) -> None:
    """Delete `files` (None: all, and `place` itself), then empty folders."""
    for file in [None] if files is None else [relative(file) for file in files]:
        path = place if file is None else place / file
        for one in [path] if path.is_file() else local_files(path):
            one.unlink(missing_ok=True)
    folders = sorted((path for path in place.rglob("*") if path.is_dir()), reverse=True)
    for folder in folders if files is not None else [*folders, place]:
        with suppress(OSError):  # it is not empty, or another process writes to it
            folder.rmdir()


def artifacts_of(
    url: str | None, cache: Path, endpoint_url: str | None = None, patience_seconds: float = 60.0
) -> Artifacts:
    """Return the artifacts at `url`: None is `cache` itself, `file:///…` a folder, `s3://bucket/prefix` a bucket.

    `cache` holds the local folders of a bucket. `endpoint_url` is the address of an S3 server other than AWS. Requests
    to a server that does not answer are retried for `patience_seconds`. botocore finds the credentials itself
    (`AWS_*`, profiles, instance roles); they never pass through here. Raise `ArtifactsRefused` for another address.
    """
    if url is None:
        return FolderArtifacts(cache)
    if url.startswith("file://"):
        return FolderArtifacts(Path(url.removeprefix("file://")))
    if url.startswith("s3://") and url.removeprefix("s3://").strip("/"):
        from resources.artifacts.s3 import RemoteArtifacts

        return RemoteArtifacts(url, cache, endpoint_url, patience_seconds)
    raise ArtifactsRefused(
        f"artifacts cannot be kept at {url!r}: ML_ASSETS_ARTIFACTS_URL takes s3://bucket/prefix or file:///folder"
    )
