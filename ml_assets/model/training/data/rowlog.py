"""Row log: the rows that each rank took, four bytes a row, written before the step that learns from them.

    rows/attempt-001-rank-0.bin      per step: step, number of rows, the rows (little-endian uint32 each)
    rows/attempt-001-rank-0-1.bin    the part after the first cut
    rows/attempt-000-rank-0.bin      of a restored training: the rows of the training that it comes from

Each checkpoint cuts the log and stores the complete part elsewhere, so no part is sent twice. A killed worker loses no
record: each record is a single `write`, which the kernel then holds. A step that was repeated after a resume is in the
logs of both attempts. The later attempt counts, since the resume undid the earlier one.

The digest of the logged rows does not depend on their order or on the ranks that took them. The ranks' rows of a whole
epoch have the digest of the split's rows exactly if each row was taken once. So one line shows that a training lost no
row and repeated no row, for any number of interruptions and workers.
"""

import errno
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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
    """Row numbers of the feature table, as in the shard."""


class RowLog:
    """Log of this process. It keeps a file open until the process ends."""

    def __init__(self, folder: Path, attempt: int, rank: int) -> None:
        self._folder = folder
        self._name = f"rows/attempt-{attempt:03d}-rank-{rank}"
        self._parts = 0
        (folder / "rows").mkdir(exist_ok=True)
        self._open()

    def cut(self) -> str:
        """End the file and begin another; return the path of the complete file, relative to the job's folder."""
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
        """Record the rows of one step. Raises `OSError` if the disk is full."""
        record = _record(step, rows)
        if os.write(self._descriptor, record) < len(record):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file)


def _record(step: int, rows: NDArray[Any]) -> bytes:
    record = np.empty(len(rows) + 2, dtype=_WORD)
    record[0], record[1], record[2:] = step, len(rows), rows
    return record.tobytes()


RESTORED_ROWS = "rows/attempt-000-rank-0.bin"
"""Log of the rows from which a restored training had learned before its first attempt."""


def copy_rows(folder: Path, before: int, target: Path) -> None:
    """Write the rows from which the training in `folder` learned in its steps below `before` to the file `target`."""
    newest = _newest_attempts(folder)
    with target.open("wb") as file:
        for taken in read_rows(folder):
            if taken.step < before and taken.attempt == newest[taken.step]:
                file.write(_record(taken.step, taken.rows))


def read_rows(folder: Path) -> Iterator[TakenRows]:
    """Yield all records of a job's folder, by attempt and rank. A record that a full disk cut off ends its file."""
    for attempt, rank, path in _logs(folder):
        for step, rows in _records(path):
            yield TakenRows(attempt, rank, step, rows)


class LastTaken(NamedTuple):
    """Last step of an attempt in its row logs."""

    steps: int
    """Steps that had begun, counted from the start of the training; 0 without a log here."""
    time: float
    """Time of that step, in seconds since the epoch; 0 without a log here."""


def last_taken(folder: Path, attempt: int) -> LastTaken:
    """Return the last step of `attempt` in the logs of this folder; logs of other machines are not here."""
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
    """The newest attempt that trained in this epoch."""


def learned_epochs(folder: Path, steps_per_epoch: int) -> dict[int, Epoch]:
    """Return epoch → the rows from which the final weights learned in it, from the logs of all ranks in `folder`.

    If a step ran more than once, the newest attempt counts, whatever its world size.
    """
    newest = _newest_attempts(folder)
    epochs: dict[int, Epoch] = {}
    for taken in read_rows(folder):
        if taken.attempt == newest[taken.step]:
            number = taken.step // steps_per_epoch
            rows, last_attempt = epochs.get(number, Epoch([], 0))
            rows.append(taken.rows)
            epochs[number] = Epoch(rows, max(last_attempt, taken.attempt))
    return epochs


def _newest_attempts(folder: Path) -> dict[int, int]:
    """Return step → the newest attempt that took it."""
    newest: dict[int, int] = {}
    for taken in read_rows(folder):
        newest[taken.step] = max(newest.get(taken.step, 0), taken.attempt)
    return newest


@dataclass(frozen=True, kw_only=True)
class RowCount:
    """Check that a finished training learned from each row once per epoch."""

    repeated: dict[int, int]
    """Attempt → repeated rows in the epochs that it was the last to train in. Correct: 0 for each attempt."""
    lost: int
    """Rows that an epoch left out, summed over epochs. Correct: 0."""


def count_rows(folder: Path, rows: int, steps_per_epoch: int) -> RowCount:
    """Count lost and repeated rows of a training whose training split has `rows` rows."""
    repeated, lost = {attempt: 0 for attempt, _, _ in _logs(folder)}, 0
    for epoch in learned_epochs(folder, steps_per_epoch).values():
        learned = np.sort(np.concatenate(epoch.rows))
        again = int(np.count_nonzero(learned[1:] == learned[:-1]))
        repeated[epoch.last_attempt] += again
        lost += rows - (len(learned) - again)
    return RowCount(repeated=repeated, lost=lost)


def _logs(folder: Path) -> list[tuple[int, int, Path]]:
    """Return attempt, rank and file of each log, ordered by attempt, rank and part."""
    files = ((_NAME.fullmatch(path.name), path) for path in (folder / "rows").glob("*.bin"))
    found = [(tuple(int(number or 0) for number in match.groups()), path) for match, path in files if match]
    return [(attempt, rank, path) for (attempt, rank, _), path in sorted(found)]


def _records(path: Path) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    """Yield step and rows of each record. The file is memory-mapped: the log of a long training is large."""
    size = path.stat().st_size // _WORD.itemsize
    if size == 0:
        return
    words = np.memmap(path, dtype=_WORD, mode="r", shape=(size,))
    at = 0
    while at + 2 <= size and at + 2 + int(words[at + 1]) <= size:
        step, rows = int(words[at]), int(words[at + 1])
        yield step, words[at + 2 : at + 2 + rows]
        at += 2 + rows


_SALTS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
"""Odd 64-bit constants. With two of them, a false match has odds of one in 2^128."""


def digest(parts: Iterable[NDArray[Any]]) -> str:
    """Return 32 hex digits over all row numbers in `parts` (integers); a repeated number counts each time.

    The digest is a sum of scrambled numbers modulo 2^64: it does not depend on order, and partial sums can be added.
    """
    totals = np.zeros(len(_SALTS), dtype=np.uint64)
    for rows in parts:
        totals += [_scrambled((rows.astype(np.uint64) + 1) * np.uint64(salt)).sum() for salt in _SALTS]
    return "".join(f"{int(total):016x}" for total in totals)


def _scrambled(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the last steps of splitmix64 (Steele, Lea, Flood 2014): every input bit affects every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
