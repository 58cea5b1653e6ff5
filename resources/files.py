"""Files and folders that are complete or missing; locks between the processes of one machine.

`write_whole` survives a power cut. `whole_file` survives the end of its process, for what can be made again.
"""

import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal, overload

WRITING = ".writing"
"""Suffix of the name of a file that is being written."""
UNFINISHED = ".unfinished-"
"""Prefix of the name of a folder that is being filled."""
_FORGOTTEN_AFTER = 86_400.0
"""Seconds after which an unfinished folder is deleted: its process was killed."""


def sync(path: Path) -> None:
    """Sync `path`: then the content of a file or the names in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` create a file, sync it and rename it to `path`. `path` is complete, also after a power cut."""
    writing = path.with_name(f".{path.name}")
    write(writing)
    sync(writing)
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


@contextmanager
def unfinished_folder(parent: Path) -> Generator[Path]:
    """Yield an empty folder of this caller alone in `parent`, which is created if needed. Delete it after the block.

    A folder that the block renamed stays. Also delete the folders of killed processes, a day after their last change.
    """
    folder = parent / f"{UNFINISHED}{uuid.uuid4().hex}"
    folder.mkdir(parents=True)
    purge(parent.glob(f"{UNFINISHED}*"), _FORGOTTEN_AFTER)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def purge(paths: Iterable[Path], seconds: float) -> None:
    """Delete those temporary files and folders of `paths` that have not changed for `seconds`."""
    oldest = time.time() - seconds
    for path in paths:
        with suppress(FileNotFoundError):  # its owner finished it, or another process purges at the same time
            if path.stat().st_mtime < oldest:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()


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


def create_locked(path: Path) -> IO[bytes]:
    """Create `path`, open it for reading and unbuffered writing, and lock it. No process sees it before it is locked.

    The end of this process releases the lock. Raise `OSError`; `FileExistsError` if another process is creating it.
    """
    unseen = path.with_suffix(".new")
    file = unseen.open("x+b", buffering=0)
    take_lock(file.fileno())
    unseen.rename(path)
    return file


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Generator[None]:
    """Hold the lock of `path` for the block. Create the file if needed. Threads and processes wait for each other."""
    descriptor = open_lock(path, shared=shared)
    try:
        yield
    finally:
        os.close(descriptor)


def file_at(path: Path) -> tuple[int, int] | None:
    """Return device and number of the file at a path, None without one: an open file may have been moved away since."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def is_disk_full(error: BaseException) -> bool:
    """True if the disk or a quota is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
