"""Events that a worker reports while it runs, and the files of a job's folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from resources.job.job import TrainingJob

_PREFIX = "@event "
"""Prefix that distinguishes an event from lines that a model or a library prints. An event is one line and one `write`,
so that lines of several ranks do not mix."""


@dataclass(frozen=True, slots=True)
class TrainingEvent:
    """Event of a worker, one JSON line. Nearly all come from rank 0."""

    kind: str
    """Kind of the event. Rank 0 reports `warning`, `started`, `resumed`, `recovered`, `metrics`, `epoch`, `checkpoint`
    and `finished`. A rank of each machine reports `system`, any rank `failed`, the agent of a machine `ended`. A
    launcher that reserves GPUs reports `reserved`."""
    step: int
    time: float
    """Seconds since the epoch, UTC."""
    values: dict[str, Any]
    """For `metrics`, `epoch` and `system`: metric name → number. For `started`: `world_size`, `pids`, `steps`. For
    `failed`: `error` and `message`. For `warning`: `message`. For `ended` (the ranks are gone, another attempt may
    follow): `code`, `cause` and `place`, which is empty if another attempt may succeed. For `recovered`: see
    `resources.job.recoveries`. For `reserved`: `job`, `gpus` held at that time, and `gpu_seconds` until then."""

    def to_line(self) -> str:
        """Return the line that a worker writes, without a newline."""
        return _PREFIX + json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> Self | None:
        """Return the event in a line of output, or None for a log line.

        Text before the event is dropped: a progress bar does not end its line, so the event follows on the same line.
        """
        _, prefix, document = line.rpartition(_PREFIX)
        if not prefix:
            return None
        try:
            return cls(**json.loads(document))
        except (ValueError, TypeError):  # cut short by a kill of the worker: treat it as a log line
            return None


TRAININGS = "training"
"""Folder of all jobs among the artifacts."""
SNAPSHOTS = "snapshots"
"""Folder of the snapshots among the artifacts that pods read, each under its digest."""
JOB, LOG, EVENTS = "job.json", "log.txt", "events.jsonl"
"""Files of a job's folder: the job; the output of the workers; the events of all attempts, which the workers write."""
WEIGHTS, RESULT = "model.safetensors", "result.json"
"""Files of a finished job's folder: the best weights and, written last, the result."""


def training_folder_name(job: TrainingJob) -> str:
    """Return the name of the job's folder among the artifacts."""
    return f"{TRAININGS}/{job.model}/{job.fingerprint[:16]}"


def read_events(folder: Path) -> list[TrainingEvent]:
    """Return the events of all attempts of a job so far, in order; none before the first attempt.

    After a restart, a step may be reported twice.
    """
    path = folder / EVENTS
    lines = path.read_text().splitlines() if path.exists() else []
    return [event for event in map(TrainingEvent.from_line, lines) if event is not None]
