"""Full disks: how each library says it, and the error with bytes and remedy.

Not here: checkpoints, whose remedy is about the training (`resources.job.errors`).
"""

import errno
import re
import shutil
import sqlite3
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from resources.words import in_bytes

_SQLITE_FILES = 100_000
"""Bytes of the smallest files that SQLite makes beside a database."""
_SAYS_FULL = re.compile(r"\(os error (28|122)\)")
"""Text of errors of polars, which have no number."""


class DiskFull(OSError):
    """The disk of a folder, or a quota on it, is full. `errno` is ENOSPC."""

    def __str__(self) -> str:
        """Return the sentence, without a number before it."""
        return str(self.strerror)


def is_disk_full(error: BaseException) -> bool:
    """True if the disk or a quota is full."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, sqlite3.OperationalError):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    # Not any error: that of a training quotes the log of another machine.
    is_of_polars = isinstance(error, OSError) or type(error).__module__.startswith("polars.")
    return is_of_polars and _SAYS_FULL.search(str(error)) is not None


@contextmanager
def disk_of(folder: Path, writing: Path | None = None) -> Generator[None]:
    """Raise `DiskFull` if the disk of `folder` is full in the block. `writing`: the file or folder that it writes."""
    try:
        yield
    except Exception as error:  # each library has a type of its own
        if isinstance(error, DiskFull) or not (is_disk_full(error) or _has_no_room_for_sqlite(error, folder)):
            raise
        raise DiskFull(errno.ENOSPC, _said(folder, writing)) from error


def _has_no_room_for_sqlite(error: Exception, folder: Path) -> bool:
    """True for SQLite's "disk I/O error" on a disk without room: it cannot make the files beside its database."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF == sqlite3.SQLITE_IOERR and _free(folder) < _SQLITE_FILES


def full_disk_text(error: BaseException, folders: Iterable[Path]) -> str:
    """Return the message if a full disk is behind `error`, an error of any library; else an empty text.

    If the writer did not say which disk it is, name the one of `folders` with the least free space.
    """
    cause: BaseException | None = error
    while cause is not None and not is_disk_full(cause):
        cause = cause.__cause__
    if cause is None:
        return ""
    if isinstance(cause, DiskFull):
        said = str(cause)
    else:
        said = _said(min((one for one in folders if one.exists()), key=_free), None)
    found = "" if cause is error and isinstance(cause, DiskFull) else f" ({type(error).__name__}: {error})"
    return f"DiskFull: {said}{found}"


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def room_in(folder: Path) -> str:
    """Return how much of the disk of a folder is free: `0.1 MB of 200.0 MB are free`."""
    disk = shutil.disk_usage(folder)
    return f"{in_bytes(disk.free)} of {in_bytes(disk.total)} are free"


def require_room(folder: Path, needed: int) -> None:
    """Raise `DiskFull` if the disk of `folder` has less than `needed` free bytes."""
    if needed > _free(folder):
        raise DiskFull(
            errno.ENOSPC,
            f"the disk of {folder} has no room: {in_bytes(needed)} are needed, {room_in(folder)}. {_REMEDY}",
        )


def _said(folder: Path, writing: Path | None) -> str:
    written = "" if writing is None else f"{in_bytes(_size(writing))} of {writing.name} were written, "
    return f"the disk of {folder} is full: {written}{room_in(folder)}. {_REMEDY}"


_REMEDY = (
    "Free space there (`ml-assets gc` shows what nothing needs), or move the home to a larger disk (ML_ASSETS_HOME). "
    "Then give the same command again: nothing was half written"
)


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(one.stat().st_size for one in files if one.is_file())
