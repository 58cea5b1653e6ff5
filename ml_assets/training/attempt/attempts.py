"""Record of each start of a job, with its step and world size: `attempts.jsonl` in the job's folder. Rank 0 writes it.

Here too: the duration of each start. Not here: the number of attempts allowed (the launcher decides).
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
    """One start of the workers that got as far as training."""

    number: int
    """From 1."""
    from_step: int
    world_size: int
    started: float
    """Seconds since the epoch, UTC."""


def read_attempts(folder: Path) -> list[Attempt]:
    """All attempts so far, oldest first; of one that a full disk cut off nothing is known."""
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
    """Until this process ends, no other rank 0 writes to `folder`; one of a killed attempt may still be dying."""
    open_lock(folder / "rank-0.lock")  # never closed: the end of the process lets go


@contextmanager
def one_at_a_time(folder: Path) -> Generator[None]:
    """The ranks of this machine one after the other."""
    with locked(folder / "ranks.lock"):
        yield


def seconds_trained(folder: Path) -> list[float]:
    """Return the seconds that each attempt trained, from its start to its last sign of life. The newest one, which
    asks, is alive now.

    By the times that workers wrote into the job's folder: launchers that died and came back change nothing, nor does an
    event that is there twice or late.
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
    """`seconds_trained` of each attempt, times the workers it had."""
    seconds = seconds_trained(folder)
    return sum(one.world_size * took for one, took in zip(read_attempts(folder), seconds, strict=True))


def sign_of(event: TrainingEvent) -> float | None:
    """Return when this event says that workers lived, seconds since the epoch."""
    if event.kind == "ended":  # may be said of the attempt before while the next one begins
        return None
    if event.kind == "recovered":  # it looked closer when the attempt before had trained last
        return event.time - float(event.values["seconds"])
    return event.time
