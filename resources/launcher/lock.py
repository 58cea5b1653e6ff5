"""One runner per job folder: a file lock that ends with its holders, however they end.

Not here: what the second comer does (local).
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def folder_lock(folder: Path) -> Generator[int | None]:
    """The lock of `folder`, held for the block: a file descriptor, or None where somebody else has it.

    A child process that gets the descriptor holds the lock too: nobody starts the job again before it
    ended.
    """
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield descriptor
    finally:
        os.close(descriptor)  # not unlocked: children that hold it keep it
