"""A disk that is full, said so that a person knows what to do. Not here: object stores (mirror)."""

import errno
from pathlib import Path

from resources.launcher.errors import StorageFailed


def is_disk_full(error: OSError) -> bool:
    """No space left, or none of a quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def storage_failed(error: OSError, what: str, folder: Path) -> StorageFailed:
    """What to raise where `what` could not be written to `folder`."""
    why = "no space left on the disk" if is_disk_full(error) else str(error)
    return StorageFailed(
        f"{what} could not be written to {folder}: {why}. Free space there, lower keep_checkpoints, or give the "
        "workers a larger disk; checkpoints written before are whole, the next attempt goes on from the newest"
    )
