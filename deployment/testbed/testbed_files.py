"""Files of the testbed: records written atomically, and locks between processes.

It has its own, because the testbed uses the standard library alone and `resources/files.py` belongs to the platform.
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def write_record(file: Path, text: str) -> None:
    """Write `file` atomically. Only its owner can read it."""
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    aside.touch(mode=0o600)
    aside.write_text(text)
    aside.replace(file)


@contextmanager
def locked(file: Path) -> Generator[None]:
    """Hold an exclusive lock on `file` for the block. The file is created; other processes wait."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
