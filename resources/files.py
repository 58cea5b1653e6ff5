"""Files that are complete or missing, also after a power cut; locks between the processes of one machine."""

import errno
import fcntl
import os
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, overload

WRITING = ".writing"
"""Suffix of the name of a file that is being written."""


def sync_folder(folder: Path) -> None:
    """Sync `folder`, so that the names in it survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` create a file, sync it and rename it to `path`. `path` is complete, also after a power cut."""
    writing = path.with_name(f".{path.name}")
    write(writing)
    with writing.open("rb") as file:
        os.fsync(file.fileno())
    writing.replace(path)


@contextmanager
def whole_file(target: Path) -> Generator[Path]:
    """Yield a path of this writer alone, which is renamed to `target` when the block ends. If it raises, delete it.

    Readers never see half of `target`. If two writers write it at once, the later one wins.
    """
    writing = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}{WRITING}")
    try:
        yield writing
        writing.replace(target)
    finally:
        writing.unlink(missing_ok=True)


def take_lock(descriptor: int, *, shared: bool = False, waits: bool = True) -> bool:
    """Lock an open file until the last copy of `descriptor` is closed. The end of a process closes its copies.

    Return False if another holder has the lock and `waits` is False. Threads that share an open file share its lock.
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
    """Open `path` (create it if needed) and lock it; return the descriptor. To release the lock, close it.

    Return None if another holder has the lock and `waits` is False.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)  # opened again by each holder
    if take_lock(descriptor, shared=shared, waits=waits):
        return descriptor
    os.close(descriptor)
    return None


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Generator[None]:
    """Hold the lock of `path` for the block. Create the file if needed. Threads and processes wait for each other."""
    descriptor = open_lock(path, shared=shared)
    try:
        yield
    finally:
        os.close(descriptor)


def is_disk_full(error: OSError) -> bool:
    """True if the disk or a quota is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
