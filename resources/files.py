"""Files and folders that are complete or missing; locks between the processes of one machine; chunks of one size.

`write_whole` survives a power cut. `whole_file` survives the end of its process, for what can be made again. Both, and
`unfinished_folder`, raise `DiskFull`.

MLflow and Dagster create the tables of their SQLite files in many transactions. If the process is killed halfway, every
later start fails, because a table already exists or another is missing. `make_whole` creates the tables in another
file, which is renamed when it is complete.
"""

import fcntl
import io
import os
import shutil
import sqlite3
import time
import uuid
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal, overload

from resources.disk import disk_of

WRITING = ".writing"
"""Suffix of the name of a file that is being written."""
UNFINISHED = ".unfinished-"
"""Prefix of the name of a folder that is being filled."""
_LOCK = ".lock"
"""Suffix of the lock beside an unfinished folder, which its process holds."""
_FORGOTTEN_AFTER = 86_400.0
"""Seconds after which an unfinished folder without a lock is deleted."""


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
    with disk_of(path.parent, writing):
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
        with disk_of(target.parent, writing):
            yield writing
            writing.replace(target)
    finally:
        writing.unlink(missing_ok=True)


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` a hard link to the file `source`, or a copy on another file system. Raises `OSError`."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@contextmanager
def unfinished_folder(parent: Path) -> Generator[Path]:
    """Yield an empty folder of this caller alone in `parent`, which is created if needed. Delete it after the block.

    A folder that the block renamed stays. Also delete the folders of killed processes: nobody holds their lock.
    """
    parent.mkdir(parents=True, exist_ok=True)
    _purge_unfinished(parent)
    folder = parent / f"{UNFINISHED}{uuid.uuid4().hex}"
    lock = folder.with_suffix(_LOCK)
    held = open_lock(lock)
    try:
        folder.mkdir()
        with disk_of(parent, folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.unlink(missing_ok=True)
        os.close(held)


def _purge_unfinished(parent: Path) -> None:
    for path in parent.glob(f"{UNFINISHED}*"):
        if path.suffix != _LOCK:
            if not path.with_suffix(_LOCK).exists():
                purge([path], _FORGOTTEN_AFTER)
            continue
        with suppress(FileNotFoundError):  # its owner finished, or another process purges at the same time
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if take_lock(descriptor, waits=False):
                    shutil.rmtree(path.with_suffix(""), ignore_errors=True)
                    path.unlink(missing_ok=True)
            finally:
                os.close(descriptor)


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


class ChunkedFile(io.RawIOBase):
    """File that collects up to `size` bytes and then calls `_pass_on`, which subclasses implement."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._chunk = bytearray()

    def write(self, data: Any) -> int:
        """Take all bytes of `data`, any object with a buffer; return their number."""
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            piece = view[at : at + self._size - len(self._chunk)]
            self._chunk += piece
            at += len(piece)
            if len(self._chunk) == self._size:
                self._pass_on(self._taken())
        return len(view)

    def writable(self) -> bool:
        """Return True."""
        return True

    def _taken(self) -> bytearray:
        """Return the collected bytes and begin a new chunk."""
        chunk, self._chunk = self._chunk, bytearray()
        return chunk

    def _pass_on(self, chunk: bytearray) -> None:
        raise NotImplementedError


def make_whole(path: Path, make: Callable[[Path], object]) -> None:
    """Let `make` fill an SQLite file, then rename it to `path`. Do nothing if `path` exists.

    `make` receives a path of the same name in another folder. If several processes call this at once, one creates the
    file and the others wait. Errors of `make`, sqlite3 and the file system pass through.
    """
    folder = _making(path)
    if path.exists() and not folder.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f".{path.name}.lock")):
        if not path.exists():
            _make(path, make)
        shutil.rmtree(folder, ignore_errors=True)  # also that of a process killed after its last step


def _make(path: Path, make: Callable[[Path], object]) -> None:
    # Not `unfinished_folder`: under the lock, a folder that is there belongs to a killed process, so it goes at once.
    folder = _making(path)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    make(folder / path.name)
    copy = folder / "copy"
    # Rename a copy, because mlflow keeps its connections to the original file.
    with closing(sqlite3.connect(folder / path.name)) as made, closing(sqlite3.connect(copy)) as target:
        made.backup(target)
    copy.rename(path)


def _making(path: Path) -> Path:
    """Return the folder in which the file is made."""
    return path.with_name(f".{path.name}.making")
