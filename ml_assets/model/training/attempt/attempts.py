"""Record of each attempt of a job, with its first step and world size: `attempts.jsonl` in the job's folder.

Rank 0 writes it. Here too: the duration of each attempt. Not here: the number of attempts allowed (the launcher
decides).
"""

import json
import math
import os
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from resources.files import locked, open_lock
from resources.job.events import TrainingEvent, read_events

ATTEMPTS = "attempts.jsonl"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of the workers that reached training."""

    number: int
    """Counted from 1."""
    from_step: int
    world_size: int
    started: float
    """Seconds since the epoch, UTC."""


def read_attempts(folder: Path) -> list[Attempt]:
    """Return all attempts so far, oldest first. A record that a full disk cut off is left out."""
    found: list[Attempt] = []
    for line in _text(folder).splitlines():
        with suppress(ValueError):
            found.append(Attempt(**json.loads(line)))
    return found


def record_attempt(folder: Path, from_step: int, world_size: int) -> Attempt:
    """Append one attempt."""
    number = len(read_attempts(folder)) + 1
    attempt = Attempt(number=number, from_step=from_step, world_size=world_size, started=time.time())
    is_cut_off = not f"\n{_text(folder)}".endswith("\n")
    with (folder / ATTEMPTS).open("a") as file:
        file.write("\n" * is_cut_off + json.dumps(asdict(attempt)) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return attempt


def _text(folder: Path) -> str:
    path = folder / ATTEMPTS
    return path.read_text() if path.exists() else ""


def wait_until_alone(folder: Path) -> None:
    """Wait until no other rank 0 writes to `folder`, and keep others out until this process ends. The rank 0 of a
    killed attempt may still be ending."""
    open_lock(folder / "rank-0.lock")  # never closed: the end of the process releases it


@contextmanager
def one_at_a_time(folder: Path) -> Generator[None]:
    """Run the block on one rank of this machine at a time."""
    with locked(folder / "ranks.lock"):
        yield


def seconds_trained(folder: Path) -> list[float]:
    """Return the seconds that each attempt trained, from its start to its last sign of life. The newest attempt calls
    this, so its last sign is now.

    The times are those that workers wrote into the job's folder. A launcher that restarts changes nothing, nor does an
    event that is repeated or late.
    """
    starts = [attempt.started for attempt in read_attempts(folder)]
    signs = [sign for event in read_events(folder) if (sign := sign_of(event)) is not None]
    return seconds_between(starts, [*signs, time.time()])


def seconds_between(starts: Sequence[float], signs: Iterable[float]) -> list[float]:
    """Return for each start, in order of time, the seconds to its last sign of life before the next start."""
    signs = list(signs)
    return [
        max([start, *(sign for sign in signs if sign < end)]) - start
        for start, end in pairwise([*starts, math.inf])
    ]


def worker_seconds(folder: Path) -> float:
    """Return the sum over attempts of `seconds_trained` times world size."""
    seconds = seconds_trained(folder)
    return sum(one.world_size * took for one, took in zip(read_attempts(folder), seconds, strict=True))


def sign_of(event: TrainingEvent) -> float | None:
    """Return the time at which workers lived by this event, in seconds since the epoch; None if it shows none."""
    if event.kind == "reserved":  # of the launcher
        return None
    if event.kind == "ended":  # may describe the previous attempt while the next one begins
        return None
    if event.kind == "recovered":  # its `seconds` count from the last sign of the previous attempt
        return event.time - float(event.values["seconds"])
    return event.time
