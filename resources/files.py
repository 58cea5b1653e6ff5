"""Files that are whole or absent, also after a power cut, and locks among the processes of one machine."""

import errno
import fcntl
import os
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, overload

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


def take_lock(descriptor: int, *, shared: bool = False, waits: bool = True) -> bool:
    """Lock an open file until the last copy of `descriptor` is closed, also by the end of the process.

    Returns False where somebody else holds the lock and the caller does not wait. The system forgets the lock of a
    process that was killed. Threads that share an open file share its lock.
    """
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, how if waits else how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@overload
def open_lock(path: Path, *, shared: bool = False, waits: Literal[True] = True) -> int: ...
@overload
def open_lock(path: Path, *, shared: bool = False, waits: Literal[False]) -> int | None: ...
def open_lock(path: Path, *, shared: bool = False, waits: bool = True) -> int | None:
    """Open `path`, which is made, and lock it. Closing the descriptor returned lets go.

    Returns None where somebody else holds the lock and the caller does not wait.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)  # opened anew for each holder
    if take_lock(descriptor, shared=shared, waits=waits):
        return descriptor
    os.close(descriptor)
    return None


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Generator[None]:
    """Hold the lock of `path`, which is made, for the block. Threads and processes wait for each other."""
    descriptor = open_lock(path, shared=shared)
    try:
        yield
    finally:
        os.close(descriptor)


def is_disk_full(error: OSError) -> bool:
    """True where no space is left, or none of a quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
