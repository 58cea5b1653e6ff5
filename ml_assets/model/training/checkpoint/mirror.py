"""Mirror of the job's folder in an object store: a pod pushes what must outlive it, a new pod pulls it.

A pod's local folder ends with the pod. On a single machine there is no mirror, since the folder itself is durable. Not
here: the commit of a checkpoint in the store (checkpoints), S3 (resources.artifacts).
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ml_assets.model.training.data.streaming import open_artifacts
from resources.artifacts import ArtifactsError, ArtifactsUnavailable
from resources.job.errors import StorageFailed


class Mirror:
    """Mirror at `url` of the local folder `folder`, whose name must be the last part of the address.

    If the server is unreachable, retries for `patience_seconds`, which is less than other ranks wait.
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
        """Open a file of the store for writing in order, without a local copy. Raises `StorageFailed`."""
        try:
            with self._artifacts.create(self._name, file) as stream:
                yield stream
        except ArtifactsError as error:
            raise _not_stored(file, error) from error

    def abort_uploads(self) -> None:
        """Abort uploads of files that killed processes began to `create`. Raises `StorageFailed`."""
        try:
            self._artifacts.abort_uploads(self._name)
        except ArtifactsError as error:
            raise StorageFailed(
                f"incomplete uploads could not be removed from {self.url}. {error}"
            ) from error

    def pull(self, files: Sequence[str]) -> None:
        """Fetch `files` into the local folder. Raises `ArtifactMissing`, `ArtifactsRefused` (also if the server itself
        reports a damaged file), `StorageFailed`."""
        try:
            self._artifacts.pull(self._name, files)
        except ArtifactsUnavailable as error:
            raise StorageFailed(f"{', '.join(files)} could not be read from the store. {error}") from error

    def files(self) -> set[str]:
        """Return the paths of all stored files. Raises `StorageFailed`."""
        try:
            return set(self._artifacts.files(self._name))
        except ArtifactsError as error:
            raise StorageFailed(f"{self.url} could not be listed. {error}") from error

    def remove(self, files: Sequence[str]) -> None:
        """Delete `files` in the store and in the local folder. Raises `StorageFailed`."""
        try:
            self._artifacts.remove(self._name, files)
        except ArtifactsError as error:
            raise StorageFailed(f"{', '.join(files)} could not be removed from the store. {error}") from error


def _not_stored(what: str, error: ArtifactsError) -> StorageFailed:
    return StorageFailed(
        f"{what} could not be stored; the checkpoints stored before are complete, and the next attempt resumes from "
        f"the newest. {error}"
    )
