"""Which rows each rank really took: four bytes a row, written before the step that learns from them.

    rows/attempt-001-rank-0.bin      per step: step, number of rows, the rows (little-endian uint32 each)
    rows/attempt-001-rank-0-1.bin    what came after it was cut for the first time

A log is cut where its parts are stored elsewhere, at each checkpoint: no part is sent twice. A killed worker
loses nothing of it: every record is one `write` that the kernel has. A step that was done again after a
resume is there in both attempts; the later one counts, since the earlier one was undone.
"""

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_WORD = np.dtype("<u4")
_NAME = re.compile(r"attempt-(\d+)-rank-(\d+)(?:-(\d+))?\.bin")


class TakenRows(NamedTuple):
    """One step of one rank."""

    attempt: int
    rank: int
    step: int
    rows: NDArray[np.uint32]
    """Row numbers of the feature table, as the shard said them."""


class RowLog:
    """The log of this process; a file is open until the process ends."""

    def __init__(self, folder: Path, attempt: int, rank: int) -> None:
        self._folder = folder
        self._name = f"rows/attempt-{attempt:03d}-rank-{rank}"
        self._parts = 0
        (folder / "rows").mkdir(exist_ok=True)
        self._open()

    def cut(self) -> str:
        """End the file and begin another; the path in the job's folder of the one that is complete."""
        os.close(self._descriptor)
        complete = self._file
        self._parts += 1
        self._open()
        return complete

    @property
    def _file(self) -> str:
        return f"{self._name}-{self._parts}.bin" if self._parts else f"{self._name}.bin"

    def _open(self) -> None:
        path = self._folder / self._file
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, step: int, rows: NDArray[np.int64]) -> None:
        """Record the rows of one step. Raises `OSError` where they do not fit on the disk."""
        record = np.empty(len(rows) + 2, dtype=_WORD)
        record[0], record[1], record[2:] = step, len(rows), rows
        if os.write(self._descriptor, record.tobytes()) < record.nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file)


def read_rows(folder: Path) -> Iterator[TakenRows]:
    """All records of a job's folder, by attempt and rank; a record cut off by a full disk ends its file."""
    files = ((_NAME.fullmatch(path.name), path) for path in (folder / "rows").iterdir())
    found = [(tuple(int(number or 0) for number in match.groups()), path) for match, path in files if match]
    for (attempt, rank, _), path in sorted(found):
        words = np.frombuffer(path.read_bytes()[: path.stat().st_size // 4 * 4], dtype=_WORD)
        at = 0
        while at + 2 <= len(words) and at + 2 + int(words[at + 1]) <= len(words):
            step, size = int(words[at]), int(words[at + 1])
            yield TakenRows(attempt, rank, step, words[at + 2 : at + 2 + size])
            at += 2 + size
