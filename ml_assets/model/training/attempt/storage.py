"""Error for a failed write of checkpoint data; it names the remedy."""

from pathlib import Path

from resources.files import is_disk_full
from resources.job.errors import StorageFailed


def storage_failed(error: OSError, what: str, folder: Path) -> StorageFailed:
    """Return the error to raise if `what` could not be written to `folder`."""
    why = "no space left on the disk" if is_disk_full(error) else str(error)
    return StorageFailed(
        f"{what} could not be written to {folder}: {why}. Free space there, lower keep_checkpoints, or give the "
        "workers a larger disk; earlier checkpoints are complete, and the next attempt resumes from the newest"
    )
