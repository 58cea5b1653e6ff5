"""How often a job was started, and from which step: `attempts.jsonl` in its folder, written by rank 0 alone.

Not here: how many attempts are allowed (the launcher decides).
"""

import fcntl
import json
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from resources.launcher.protocol import read_events

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
    """All attempts so far, oldest first."""
    path = folder / ATTEMPTS
    return [Attempt(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def record_attempt(folder: Path, from_step: int, world_size: int) -> Attempt:
    """Append one attempt."""
    number = len(read_attempts(folder)) + 1
    attempt = Attempt(number=number, from_step=from_step, world_size=world_size, started=time.time())
    with (folder / ATTEMPTS).open("a") as file:
        file.write(json.dumps(asdict(attempt)) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return attempt


def wait_until_alone(folder: Path) -> None:
    """Until this process ends, no other rank 0 writes to `folder`; one of a killed attempt may still be dying."""
    descriptor = os.open(folder / "rank-0.lock", os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)


@contextmanager
def one_at_a_time(folder: Path) -> Generator[None]:
    """The ranks of this machine one after the other."""
    descriptor = os.open(folder / "ranks.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def seconds_trained(folder: Path) -> float:
    """From the start of each attempt to its last sign, summed; the one that runs has one now."""
    seconds, started, last = 0.0, 0.0, 0.0
    for event in read_events(folder):
        if event.kind == "started":
            seconds, started = seconds + last - started, event.time
        last = event.time
    return seconds + time.time() - started
