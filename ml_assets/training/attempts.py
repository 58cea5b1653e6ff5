"""How often a job was started, and from which step: `attempts.jsonl` in its folder, written by rank 0.

Not here: how many attempts are allowed (the launcher decides).
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

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
