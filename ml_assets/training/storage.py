"""Files that are whole or absent, and a disk that is full, said so that a person knows what to do.

Not here: object stores (mirror), checkpoints of many files (checkpoints).
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path

from resources.launcher.errors import StorageFailed


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` make a file, which then becomes `path`: what is there survives a power cut."""
    writing = path.with_name(f".{path.name}")
    write(writing)
    with writing.open("rb") as file:
        os.fsync(file.fileno())
    writing.replace(path)


def is_disk_full(error: OSError) -> bool:
    """No space left, or none of a quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def storage_failed(error: OSError, what: str, folder: Path) -> StorageFailed:
    """Return the error to raise where `what` could not be written to `folder`."""
    why = "no space left on the disk" if is_disk_full(error) else str(error)
    return StorageFailed(
        f"{what} could not be written to {folder}: {why}. Free space there, lower keep_checkpoints, or give the "
        "workers a larger disk; checkpoints written before are whole, the next attempt goes on from the newest"
    )
