"""Folders of files that outlive a process: training folders, snapshots, bundles, reports.

Here: the protocol, its errors, and the embedded default, a folder on this machine. The other home, S3, is
`artifacts_remote`, imported when an address asks for it: pods and the platform share this module, so it
imports the standard library only. Not here: what the files mean.

A folder has a name such as `bundles/<digest>`. Code always works on the local folder and says `push` when
others shall see it, `pull` when it needs what others pushed. On the embedded default both have nothing to do.
"""

import shutil
import uuid
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Protocol

_WRITING = ".writing"


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


class FolderArtifacts:
    """The embedded default: the local folder is the durable copy."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, name: str) -> Path:
        """See `Artifacts`."""
        place = self.root / relative(name)
        place.mkdir(parents=True, exist_ok=True)
        return place

    def push(self, name: str, files: Sequence[str] | None = None, *, last: str | None = None) -> str:
        """See `Artifacts`; nothing to do, except that what is named must be there."""
        chosen_files(self.root / relative(name), files, last)
        return self.address(name)

    def pull(self, name: str, files: Sequence[str] | None = None, *, last: str | None = None) -> Path:
        """See `Artifacts`; nothing to do, except that what is named must be there."""
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
        place = self.root / relative(name)
        return {str(path.relative_to(place)): path.stat().st_size for path in local_files(place)}

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
        for writing in self.folder(name).rglob(f".*{_WRITING}"):
            writing.unlink(missing_ok=True)


@contextmanager
def whole_file(target: Path) -> Generator[Path]:
    """A file of this writer alone, which becomes `target` when the block ends, and disappears where it raises.

    Nobody ever sees half of `target`, and of two that write it at once the later one stands, whole.
    """
    writing = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}{_WRITING}")
    try:
        yield writing
        writing.replace(target)
    finally:
        writing.unlink(missing_ok=True)


def artifacts_of(
    url: str | None, cache: Path, endpoint_url: str | None = None, patience_seconds: float = 60.0
) -> Artifacts:
    """The home at `url`: None is `cache` itself, `file:///…` a folder, `s3://bucket/prefix` a bucket.

    `cache` holds the local folders of a remote home. `endpoint_url` is the address of an S3 server that is
    not AWS; `patience_seconds` is how long a server that does not answer is asked again. Credentials are
    botocore's business (`AWS_*`, profiles, instance roles) and never pass through here.
    """
    if url is None:
        return FolderArtifacts(cache)
    if url.startswith("file://"):
        return FolderArtifacts(Path(url.removeprefix("file://")))
    if url.startswith("s3://") and url.removeprefix("s3://").strip("/"):
        from resources.artifacts_remote import RemoteArtifacts

        return RemoteArtifacts(url, cache, endpoint_url, patience_seconds)
    raise ArtifactsRefused(
        f"artifacts cannot be kept at {url!r}: ML_ASSETS_ARTIFACTS_URL takes s3://bucket/prefix or file:///folder"
    )


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


def local_files(place: Path) -> list[Path]:
    """All files below `place`, sorted."""
    return sorted(path for path in place.rglob("*") if path.is_file())


def chosen_files(place: Path, files: Sequence[str] | None, last: str | None) -> list[str]:
    """Paths inside `place` of `files` (None: all), folders expanded, without `last`, which must be there too.

    `last` comes at the end of the list. Raises `ArtifactMissing` where a named file is not there.
    """
    names: dict[str, None] = {}
    for file in [None] if files is None else [relative(file) for file in files]:
        path = place if file is None else place / file
        if file is not None and path.is_file():
            names[file] = None
        elif file is None or path.is_dir():
            names.update(dict.fromkeys(str(one.relative_to(place)) for one in local_files(path)))
        else:
            raise ArtifactMissing(f"{path} is not there: it must be written before it can be pushed or read")
    if last is not None:
        if not (place / relative(last)).is_file():
            raise ArtifactMissing(f"{place / last} is not there: it marks the folder as whole, write it last")
        names.pop(last, None)
        names[last] = None
    return list(names)


def remove_local(place: Path, files: Sequence[str] | None) -> None:
    """Delete `files` (None: all) below `place`, and folders left empty."""
    for file in [None] if files is None else [relative(file) for file in files]:
        path = place if file is None else place / file
        for one in [path] if path.is_file() else local_files(path):
            one.unlink(missing_ok=True)
    for folder in sorted((path for path in place.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
