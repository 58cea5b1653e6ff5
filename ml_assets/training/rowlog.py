"""Which rows each rank really took: four bytes a row, written before the step that learns from them.

    rows/attempt-001-rank-0.bin      per step: step, number of rows, the rows (little-endian uint32 each)

A killed worker loses nothing of it: every record is one `write` that the kernel has. A step that was done
again after a resume is there in both attempts; the later one counts, since the earlier one was undone.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_WORD = np.dtype("<u4")


class TakenRows(NamedTuple):
    """One step of one rank."""

    attempt: int
    rank: int
    step: int
    rows: NDArray[np.uint32]
    """Row numbers of the feature table, as the shard said them."""


class RowLog:
    """The log of this process; the file is open until the process ends."""

    def __init__(self, folder: Path, attempt: int, rank: int) -> None:
        (folder / "rows").mkdir(exist_ok=True)
        path = folder / "rows" / f"attempt-{attempt:03d}-rank-{rank}.bin"
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, step: int, rows: NDArray[np.int64]) -> None:
        """Record the rows of one step."""
        record = np.empty(len(rows) + 2, dtype=_WORD)
        record[0], record[1], record[2:] = step, len(rows), rows
        os.write(self._descriptor, record.tobytes())


def read_rows(folder: Path) -> Iterator[TakenRows]:
    """All records of a job's folder, by attempt and rank; a record cut off by a full disk ends its file."""
    for path in sorted((folder / "rows").glob("attempt-*-rank-*.bin")):
        _, attempt, _, rank = path.stem.split("-")
        words = np.frombuffer(path.read_bytes()[: path.stat().st_size // 4 * 4], dtype=_WORD)
        at = 0
        while at + 2 <= len(words) and at + 2 + int(words[at + 1]) <= len(words):
            step, size = int(words[at]), int(words[at + 1])
            yield TakenRows(int(attempt), int(rank), step, words[at + 2 : at + 2 + size])
            at += 2 + size
