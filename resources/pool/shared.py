"""Value that many tasks read, such as a vocabulary of ten million words: it travels once to each worker, as a file."""

import pickle
from functools import lru_cache
from pathlib import Path
from typing import Generic, TypeVar

from resources.files import whole_file

Value = TypeVar("Value")


class Shared(Generic[Value]):
    """A value that can be pickled. In a pickled task stands the path of its file, which a worker reads once.

    The file is written when the first task leaves this process, and is the caller's to delete after the last one.
    """

    def __init__(self, value: Value, file: Path) -> None:
        """`file`: a path that no other value ever had; workers see it."""
        self.value = value
        self._file = file

    def __reduce__(self) -> "tuple[object, tuple[Path]]":
        if not self._file.exists():
            with whole_file(self._file) as writing:
                writing.write_bytes(pickle.dumps(self.value))
        return _read, (self._file,)


@lru_cache(maxsize=1)
def _read(file: Path) -> Shared[object]:
    return Shared(pickle.loads(file.read_bytes()), file)
