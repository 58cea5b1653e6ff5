"""Writes that are on the disk before anything refers to them."""

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Have the names in `folder` outlive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
