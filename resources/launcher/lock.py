"""Lock of a job folder: one runner at a time. The system releases it when its holders end, also after a kill.

Not here: the behaviour of the second process (local).
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from resources.files import open_lock


@contextmanager
def folder_lock(folder: Path) -> Generator[int | None]:
    """Hold the lock of `folder` for the block. Yield its file descriptor, or None if another process holds it.

    A child process that inherits the descriptor holds the lock too. So no process starts the job again before the
    child has ended.
    """
    descriptor = open_lock(folder / "lock", waits=False)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)  # close, not unlock: children that inherited the lock keep it
