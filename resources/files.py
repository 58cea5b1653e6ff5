"""Files that are whole or absent, also after a power cut."""

import errno
import os
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

WRITING = ".writing"
"""End of the name of a file that is being written."""


def sync_folder(folder: Path) -> None:
    """Have the names in `folder` outlive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` make a file, which then becomes `path`: what is there survives a power cut."""
    writing = path.with_name(f".{path.name}")
    write(writing)
    with writing.open("rb") as file:
        os.fsync(file.fileno())
    writing.replace(path)


@contextmanager
def whole_file(target: Path) -> Generator[Path]:
    """A file of this writer alone, which becomes `target` when the block ends, and disappears where it raises.

    Nobody ever sees half of `target`, and of two that write it at once the later one stands, whole.
    """
    writing = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}{WRITING}")
    try:
        yield writing
        writing.replace(target)
    finally:
        writing.unlink(missing_ok=True)


def is_disk_full(error: OSError) -> bool:
    """True where no space is left, or none of a quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
