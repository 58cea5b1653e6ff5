"""Log of the rows that each rank really took: four bytes a row, written before the step that learns from them.

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
from dataclasses import dataclass
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
    for attempt, rank, path in _logs(folder):
        for step, rows in _records(path):
            yield TakenRows(attempt, rank, step, rows)


class LastTaken(NamedTuple):
    """Last step of an attempt by its row logs."""

    steps: int
    """Steps that had begun, counted from the start of the training; 0 where there is no log here."""
    time: float
    """Time of that step, seconds since the epoch; 0 where there is no log here."""


def last_taken(folder: Path, attempt: int) -> LastTaken:
    """Return the last step of `attempt` by the logs in this folder; those of other machines are not here."""
    last = LastTaken(0, 0.0)
    for number, _, path in _logs(folder):
        if number == attempt:
            steps = max((step + 1 for step, _ in _records(path)), default=0)
            last = LastTaken(max(last.steps, steps), max(last.time, path.stat().st_mtime))
    return last


class Epoch(NamedTuple):
    """Rows from which an epoch learned."""

    rows: list[NDArray[np.uint32]]
    """Row numbers, unordered."""
    last_attempt: int
    """The newest that trained in it."""


def learned_epochs(folder: Path, steps_per_epoch: int) -> dict[int, Epoch]:
    """Epoch → the rows the final weights learned from in it, by the logs of all ranks in `folder`.

    Of a step that was done more than once, the newest attempt counts, whatever number of ranks each had.
    """
    newest: dict[int, int] = {}
    for taken in read_rows(folder):
        newest[taken.step] = max(newest.get(taken.step, 0), taken.attempt)
    epochs: dict[int, Epoch] = {}
    for taken in read_rows(folder):
        if taken.attempt == newest[taken.step]:
            number = taken.step // steps_per_epoch
            rows, last_attempt = epochs.get(number, Epoch([], 0))
            rows.append(taken.rows)
            epochs[number] = Epoch(rows, max(last_attempt, taken.attempt))
    return epochs


@dataclass(frozen=True, kw_only=True)
class RowCount:
    """Check that a finished training learned from each row once per epoch."""

    repeated: dict[int, int]
    """Attempt → rows that were learned from again in an epoch which it was the last to train in; 0 in all of them is
    right."""
    lost: int
    """Rows that an epoch left out, summed over epochs; 0 is right."""


def count_rows(folder: Path, rows: int, steps_per_epoch: int) -> RowCount:
    """Count `learned_epochs`, of a training split of `rows` rows."""
    repeated, lost = {attempt: 0 for attempt, _, _ in _logs(folder)}, 0
    for epoch in learned_epochs(folder, steps_per_epoch).values():
        learned = np.sort(np.concatenate(epoch.rows))
        again = int(np.count_nonzero(learned[1:] == learned[:-1]))
        repeated[epoch.last_attempt] += again
        lost += rows - (len(learned) - again)
    return RowCount(repeated=repeated, lost=lost)


def _logs(folder: Path) -> list[tuple[int, int, Path]]:
    """Attempt, rank and file of each log, by attempt, rank and part."""
    files = ((_NAME.fullmatch(path.name), path) for path in (folder / "rows").glob("*.bin"))
    found = [(tuple(int(number or 0) for number in match.groups()), path) for match, path in files if match]
    return [(attempt, rank, path) for (attempt, rank, _), path in sorted(found)]


def _records(path: Path) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    """Step and rows of each record; mapped, not read: a long training's log is large."""
    size = path.stat().st_size // _WORD.itemsize
    if size == 0:
        return
    words = np.memmap(path, dtype=_WORD, mode="r", shape=(size,))
    at = 0
    while at + 2 <= size and at + 2 + int(words[at + 1]) <= size:
        step, rows = int(words[at]), int(words[at + 1])
        yield step, words[at + 2 : at + 2 + rows]
        at += 2 + rows
