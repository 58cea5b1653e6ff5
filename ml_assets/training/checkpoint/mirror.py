"""The job's folder in an object store: what has to outlive a pod is pushed there, a new pod pulls it.

The local folder of a pod ends with it. Nothing here on one machine, where the folder itself is durable. Not
here: what a checkpoint needs to count there (stored_checkpoints), S3 (resources.artifacts).
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ml_assets.training.process.artifacts import open_artifacts
from resources.artifacts import ArtifactsError, ArtifactsUnavailable
from resources.job.errors import StorageFailed


class Mirror:
    """The folder at `url`, worked on in `folder`, whose name must be the last part of the address.

    A server that is away is asked again for `patience_seconds`: less than other ranks wait.
    """

    def __init__(self, url: str, folder: Path, patience_seconds: float = 60.0) -> None:
        self.url = url.rstrip("/")
        self.folder = folder
        self._name = folder.name
        self._artifacts = open_artifacts(self.url.rpartition("/")[0], folder.parent, patience_seconds)

    def push(self, files: Sequence[str], last: str | None = None) -> None:
        """Store `files` of the folder, then `last`. Raises `StorageFailed`."""
        try:
            self._artifacts.push(self._name, files, last=last)
        except ArtifactsError as error:
            raise _not_stored(", ".join([*files, last or ""]).rstrip(", "), error) from error

    @contextmanager
    def create(self, file: str) -> Generator[IO[bytes]]:
        """A file of the store, written in order, without one here. Raises `StorageFailed`."""
        try:
            with self._artifacts.create(self._name, file) as stream:
                yield stream
        except ArtifactsError as error:
            raise _not_stored(file, error) from error

    def abort_uploads(self) -> None:
        """Give up files that killed processes began to `create`. Raises `StorageFailed`."""
        try:
            self._artifacts.abort_uploads(self._name)
        except ArtifactsError as error:
            raise StorageFailed(f"half files could not be removed from {self.url}. {error}") from error

    def pull(self, files: Sequence[str]) -> None:
        """Bring `files` here. Raises `ArtifactMissing`, `ArtifactsRefused` (also where the server itself finds a
        file damaged), `StorageFailed`."""
        try:
            self._artifacts.pull(self._name, files)
        except ArtifactsUnavailable as error:
            raise StorageFailed(f"{', '.join(files)} could not be read from the store. {error}") from error

    def files(self) -> set[str]:
        """Paths of everything stored. Raises `StorageFailed`."""
        try:
            return set(self._artifacts.files(self._name))
        except ArtifactsError as error:
            raise StorageFailed(f"{self.url} could not be listed. {error}") from error

    def remove(self, files: Sequence[str]) -> None:
        """Delete `files`, here too. Raises `StorageFailed`."""
        try:
            self._artifacts.remove(self._name, files)
        except ArtifactsError as error:
            raise StorageFailed(f"{', '.join(files)} could not be removed from the store. {error}") from error


def _not_stored(what: str, error: ArtifactsError) -> StorageFailed:
    return StorageFailed(
        f"{what} could not be stored; what was stored before is whole, and the next attempt goes on from there. {error}"
    )
