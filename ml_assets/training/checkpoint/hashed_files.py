"""Files that torch's checkpoint writer fills: each made once, from its first byte to its last, hashed on the way.

Not here: what is in them (parts), where they come to lie (checkpoints, stored_checkpoints).
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
"""Name → a file to be written in order; whole and durable when the block ends, absent where it raises."""


class HashedFiles(FileSystemBase):
    """File system for torch's checkpoint writer that hashes each file."""

    def __init__(self, create: Create) -> None:
        self._create = create
        self.sha256: dict[str, str] = {}
        """Name of each file written → 64 hex digits."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase]:
        """A file to write. Raises what its place raises."""
        # The index is to be renamed when it is written; here no file appears before it is.
        name = PurePath(path).name.removesuffix(".tmp")
        with self._create(name) as file:
            stream = _Hashed(file)
            try:
                yield stream
            except RuntimeError:
                # Torch keeps what was wrong to itself: of a full disk it tells a wrong position in the file.
                if stream.failure is not None:
                    raise stream.failure from None
                raise
        self.sha256[name] = stream.sha256.hexdigest()

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        """Names suffice."""
        return suffix

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Never: a place is empty when a checkpoint begins."""
        return False

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Done when it was written."""

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Whoever gave the place has made it."""

    def init_path(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """There is only one place."""
        return path

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        """There is nothing to replace."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """There is only one place."""
        return True


class _Hashed(io.RawIOBase):
    """Passes on what is written."""

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
