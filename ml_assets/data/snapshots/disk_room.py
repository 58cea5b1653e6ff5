"""Room on the disk for the files of a snapshot, and the error of a disk without it."""

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ml_assets.data.snapshots.split_reader import SnapshotError
from resources.files import is_disk_full


class DiskTooSmall(SnapshotError):
    """The disk has no room for the files of a snapshot."""


@contextmanager
def disk_room(folder: Path, needed: int = 0) -> Generator[None]:
    """Require `needed` bytes on the disk of `folder`, if they are known; one error if it fills all the same.

    Raises `DiskTooSmall`, which names the bytes and the setting.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DiskTooSmall(f"{_told(folder)}: it needs {needed:,} bytes, {free:,} are free. {_REMEDY}")
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        raise DiskTooSmall(
            f"{_told(folder)}: it was full after {written:,} bytes"
            f"{f' of {needed:,}' if needed else ' of temporary files'}. {_REMEDY}"
        ) from error


_REMEDY = "Free some, or set ML_ASSETS_HOME to a folder on a larger disk"


def _told(folder: Path) -> str:
    return f"the disk of {folder.parent} has no room for this training set"
