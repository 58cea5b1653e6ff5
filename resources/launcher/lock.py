"""One runner per job folder: a file lock that ends with its holders, however they end.

Not here: what the second comer does (local).
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from resources.files import open_lock


@contextmanager
def folder_lock(folder: Path) -> Generator[int | None]:
    """The lock of `folder`, held for the block: a file descriptor, or None where somebody else has it.

    A child process that gets the descriptor holds the lock too: nobody starts the job again before it
    ended.
    """
    descriptor = open_lock(folder / "lock", waits=False)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)  # not unlocked: children that hold it keep it
