"""Artifacts in a folder of this machine, and functions on local files for every storage. Standard library only."""

import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from resources.artifacts.protocol import ArtifactMissing, missing, relative
from resources.files import WRITING, whole_file


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
        place = self.root / relative(name)
        found: dict[str, int] = {}
        for path in local_files(place):
            with suppress(FileNotFoundError):  # another process deleted it since it was listed
                found[str(path.relative_to(place))] = path.stat().st_size
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
        for writing in self.folder(name).rglob(f".*{WRITING}"):
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
    """Delete `files` (None: all) below `place`, then empty folders."""
    for file in [None] if files is None else [relative(file) for file in files]:
        path = place if file is None else place / file
        for one in [path] if path.is_file() else local_files(path):
            one.unlink(missing_ok=True)
    for folder in sorted((path for path in place.rglob("*") if path.is_dir()), reverse=True):
        with suppress(OSError):  # it is not empty, or another process writes to it
            folder.rmdir()
