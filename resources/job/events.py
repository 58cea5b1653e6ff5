"""Events that a worker reports while it runs, and the files of a job's folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from resources.job.job import TrainingJob

_PREFIX = "@event "
"""Tells an event from what a model or a library prints: one line, one `write`, so that ranks do not mix."""


@dataclass(frozen=True, slots=True)
class TrainingEvent:
    """One JSON line of a worker, nearly always of rank 0."""

    kind: str
    """`started`, `resumed`, `recovered`, `metrics`, `epoch`, `checkpoint`, `finished`; `system` from a rank of each
    machine, `failed` from any rank, `ended` from the agent of a machine."""
    step: int
    time: float
    """Seconds since the epoch, UTC."""
    values: dict[str, Any]
    """For `metrics`, `epoch` and `system`: metric name → number. For `started`: `world_size`, `pids`, `steps`. For
    `failed`: `error` and `message`. For `ended` (the ranks are gone, another attempt may follow): `code` and
    `cause`. For `recovered`: see `resources.job.recoveries`."""

    def to_line(self) -> str:
        """The line a worker writes, without a newline."""
        return _PREFIX + json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> Self | None:
        """The event in a line of output, or None where the line is a log line.

        What stands before it is dropped: a progress bar ends no line, and what comes next is in the same.
        """
        _, prefix, document = line.rpartition(_PREFIX)
        if not prefix:
            return None
        try:
            return cls(**json.loads(document))
        except (ValueError, TypeError):  # cut off by the death of the worker: a log line then
            return None


JOB, LOG, EVENTS = "job.json", "log.txt", "events.jsonl"
"""Files of a job's folder: the job; what workers print; every event of every attempt, as lines that workers write."""
WEIGHTS, RESULT = "model.safetensors", "result.json"
"""Files that a finished job leaves there: the best weights and, last, the result."""


def training_folder_name(job: TrainingJob) -> str:
    """The job's folder among the artifacts."""
    return f"training/{job.model}/{job.fingerprint[:16]}"


def read_events(folder: Path) -> list[TrainingEvent]:
    """The events of a job so far, of every attempt, in order; none before the first attempt.

    After a restart a step may have been told twice.
    """
    path = folder / EVENTS
    lines = path.read_text().splitlines() if path.exists() else []
    return [event for event in map(TrainingEvent.from_line, lines) if event is not None]
