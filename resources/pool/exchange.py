"""Ways of files between the caller of a range and the tasks of its workers, in both directions.

Workers of this machine use a folder of it, without a copy. Workers of other machines use the artifacts' storage.
`Platform.exchange` chooses. Not here: the meaning of the files.
"""

import shutil
import uuid
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from resources.artifacts import ArtifactMissing, Artifacts, ArtifactsError
from resources.files import unfinished_folder, whole_file
from resources.pool import PoolError

IN_STORE = "pool"
"""Folder of the artifacts with a folder for each range in progress."""
_FORGOTTEN_AFTER = timedelta(days=7)
"""Age of the newest file of a range from which its caller counts as dead."""
_AT_ONCE = 8
"""Files that are fetched at the same time."""


class FileNotHandedOver(PoolError):
    """A file is not where its sender should have left it."""


class Exchange(Protocol):
    """Files of one range by name, for its caller and all its tasks. A task carries it: it can be pickled.

    A name is a plain file name. A file that is sent again replaces the earlier one, whole: a task may run twice.
    """

    def send(self, name: str) -> AbstractContextManager[Path]:
        """Yield a path to write. When the block ends, the file is there for all; if the block raises, it is not.

        Raises `DiskFull`, and what `Artifacts.create` raises.
        """
        ...

    def receive(self, names: Sequence[str]) -> AbstractContextManager[list[Path]]:
        """Yield the paths of files that were sent, in the order of `names`: to read, and only in the block.

        Raises `FileNotHandedOver`, `DiskFull`, and what `Artifacts.fetch` raises.
        """
        ...

    def here(self, names: Sequence[str], near: Path) -> AbstractContextManager["Exchange"]:
        """Yield a way of files between this process and workers of this machine, on which files that were sent are.

        They are fetched at most once, to the disk of the folder `near`. Raises as `receive`.
        """
        ...

    def remove(self, names: Sequence[str]) -> None:
        """Delete files that nobody will receive any more. The end of the range deletes the others."""
        ...


OpenExchange = Callable[[Path], AbstractContextManager[Exchange]]
"""Opens an exchange for a range whose result will lie in a folder: on that disk, files need no copy."""


@dataclass(frozen=True)
class _FolderExchange:
    """Files stay in a folder that all workers see."""

    folder: Path

    def send(self, name: str) -> AbstractContextManager[Path]:
        return whole_file(self.folder / name)

    @contextmanager
    def receive(self, names: Sequence[str]) -> Generator[list[Path]]:
        paths = [self.folder / name for name in names]
        if lacking := next((path for path in paths if not path.exists()), None):
            raise FileNotHandedOver(
                f"{lacking} is not on this machine: a worker of another machine wrote it there. Name the cluster by an "
                "address that other machines reach (ML_ASSETS_RAY_ADDRESS); then files go by way of the artifacts"
            )
        yield paths

    def here(self, names: Sequence[str], near: Path) -> AbstractContextManager[Exchange]:
        return nullcontext(self)

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            (self.folder / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class _StoreExchange:
    """Files go by way of the artifacts. Local copies live only in a block."""

    artifacts: Artifacts
    name: str
    """Folder of the range among the artifacts."""
    cache: Path

    @contextmanager
    def send(self, name: str) -> Generator[Path]:
        with unfinished_folder(self.cache) as folder:
            file = folder / name
            yield file
            with file.open("rb") as content, self.artifacts.create(self.name, name) as sent:
                shutil.copyfileobj(content, sent, 1 << 20)

    @contextmanager
    def receive(self, names: Sequence[str]) -> Generator[list[Path]]:
        with unfinished_folder(self.cache) as folder:
            yield self._fetched(names, folder)

    @contextmanager
    def here(self, names: Sequence[str], near: Path) -> Generator[Exchange]:
        with unfinished_folder(near) as folder:
            self._fetched(names, folder)
            yield _FolderExchange(folder)

    def _fetched(self, names: Sequence[str], folder: Path) -> list[Path]:
        paths = [folder / name for name in names]
        try:
            with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="exchange") as pool:
                list(pool.map(self._fetch, paths))
        except ArtifactMissing as error:
            raise FileNotHandedOver(
                f"a file of a worker is missing: {error}. Somebody deleted it, or its range was silent for "
                f"{_FORGOTTEN_AFTER.days} days: run the range again"
            ) from error
        return paths

    def _fetch(self, path: Path) -> None:
        self.artifacts.fetch(self.name, path.name, path)

    def remove(self, names: Sequence[str]) -> None:
        if names:  # for the storage, an empty list costs a request
            self.artifacts.remove(self.name, names)


@contextmanager
def folder_exchange(parent: Path) -> Generator[Exchange]:
    """Yield a way of files through a folder in `parent`, which all workers see. It is deleted after the block, or by a
    later range if this process is killed."""
    with unfinished_folder(parent) as folder:
        yield _FolderExchange(folder)


@contextmanager
def store_exchange(artifacts: Artifacts, cache: Path) -> Generator[Exchange]:
    """Yield a way of files through the artifacts' storage. What is left of them is deleted after the block.

    If this process is killed or the storage is away then, a later range deletes it: the newest file of a dead range is
    a week old. `cache`: folder of this machine and of each worker's, for local copies.
    """
    _purge(artifacts)
    name = f"{IN_STORE}/{uuid.uuid4().hex}"
    try:
        yield _StoreExchange(artifacts, name, cache)
    finally:
        with suppress(ArtifactsError):  # the range has its own outcome by now
            _delete(artifacts, name)


def _purge(artifacts: Artifacts) -> None:
    newest: dict[str, datetime] = {}
    for file, changed in artifacts.changed(IN_STORE).items():
        range_ = file.partition("/")[0]
        newest[range_] = max(changed, newest.get(range_, changed))
    for range_, changed in newest.items():
        if changed < datetime.now(UTC) - _FORGOTTEN_AFTER:
            _delete(artifacts, f"{IN_STORE}/{range_}")


def _delete(artifacts: Artifacts, name: str) -> None:
    artifacts.abort_uploads(name)  # of workers that were killed
    artifacts.remove(name)
