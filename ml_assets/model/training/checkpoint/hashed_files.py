"""Files that torch's checkpoint writer fills: each is written once, in order, and hashed on the way.

Not here: their content (parts), their location (checkpoints, stored_checkpoints).
"""

import hashlib
import io
import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import PurePath
from typing import IO, Any

from torch.distributed.checkpoint.filesystem import FileSystemBase

Create = Callable[[str], AbstractContextManager[IO[bytes]]]
"""Name → a file for writing in order; complete and durable after the block, absent if the block raises."""


class HashedFiles(FileSystemBase):
    """File system for torch's checkpoint writer that hashes each file."""

    def __init__(self, create: Create) -> None:
        self._create = create
        self.sha256: dict[str, str] = {}
        """Name of each written file → 64 hex digits."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase]:
        """Open a file for writing. Raises the errors of `create`."""
        # Torch writes the index as `.tmp` and renames it. Here, no file appears before it is complete anyway.
        name = PurePath(path).name.removesuffix(".tmp")
        with self._create(name) as file:
            stream = _Hashed(file)
            try:
                yield stream
            except RuntimeError:
                # Torch hides the first error: after a full disk it reports a wrong position in the file.
                if stream.failure is not None:
                    raise stream.failure from None
                raise
        self.sha256[name] = stream.sha256.hexdigest()

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        """Return the name alone; this file system has no folders."""
        return suffix

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Return False: the folder is empty when a checkpoint begins."""
        return False

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Do nothing: the file already has its final name."""

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Do nothing: the caller has made the folder."""

    def init_path(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """Return `path`: there is only one folder."""
        return path

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        """Do nothing: there is no older file to replace."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Accept any id: there is only one folder."""
        return True


class _Hashed(io.RawIOBase):
    """Stream that hashes the bytes it passes on."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._position = 0
        self.sha256 = hashlib.sha256()
        self.failure: Exception | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data)
        try:
            self._file.write(view)
        except Exception as error:
            self.failure = self.failure or error
            raise
        self.sha256.update(view)
        self._position += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self._position

    def writable(self) -> bool:
        return True
