"""Events that a worker reports while it runs, the files of a job's folder, and the recoveries that the events record.

Here: the format of an event, and reading events. Not here: writing them (ml_assets.model.training).
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from resources.job.job import TrainingJob

MOST_RANKS_TOLD = 64
"""Ranks of which `started` tells the begin: a longer line could mix with those of other ranks."""
_PREFIX = "@event "
"""Prefix that distinguishes an event from lines that a model or a library prints. An event is one line and one `write`,
so that lines of several ranks do not mix."""


@dataclass(frozen=True, slots=True)
class TrainingEvent:
    """Event of a worker, one JSON line. Nearly all come from rank 0."""

    kind: str
    """Kind of the event. Rank 0 reports `warning`, `started`, `resumed`, `recovered`, `metrics`, `epoch`, `checkpoint`,
    `interval` and `finished`. A rank of each machine reports `system`, any rank `failed`, the agent of a machine
    `ended`. A launcher reports `reserved`."""
    step: int
    time: float
    """Seconds since the epoch, UTC."""
    values: dict[str, Any]
    """For `metrics`, `epoch`, `interval` and `system`: metric name → number. For `started`: `world_size`, `pids`,
    `steps`, and `ranks_began` (seconds since the epoch, of `MOST_RANKS_TOLD` ranks). For `failed`: `error` and
    `message`. For `warning`: `message`. For `ended` (the ranks are gone, another attempt may follow): `code`, `cause`,
    `rank` (the first to fail, or null) and `place`, which is empty if another attempt may succeed. For `recovered`: see
    `resources.job.events`. For `reserved`: see `resources.job.reserved`."""

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
USAGE = "usage"
"""Folder of the records of what trainings reserved, among the artifacts; below it a folder for each model."""
JOB, LOG, EVENTS = "job.json", "log.txt", "events.jsonl"
"""Files of a job's folder: the job; the output of the workers; the events of all attempts, which the workers write."""
NODES = "nodes.json"
"""File of a job's folder: uids of the pods that a queue admitted together (`pods`). A launcher writes it."""
WEIGHTS, RESULT = "model.safetensors", "result.json"
"""Files of a finished job's folder: the best weights and, written last, the result."""


def training_folder_name(job: TrainingJob) -> str:
    """Return the name of the job's folder among the artifacts."""
    return folder_of_training(job.model, job.fingerprint)


def folder_of_training(model: str, fingerprint: str) -> str:
    """Return the name of the folder of a training among the artifacts. The first 16 digits of `fingerprint` do."""
    return f"{TRAININGS}/{model}/{fingerprint[:16]}"


def read_events(folder: Path) -> list[TrainingEvent]:
    """Return the events of all attempts of a job so far, in order; none before the first attempt.

    After a restart, a step may be reported twice.
    """
    path = folder / EVENTS
    return events_in(path.read_text().splitlines() if path.exists() else [])


def events_in(lines: Iterable[str]) -> list[TrainingEvent]:
    """Return the events in lines of output or of the file of events, in order."""
    return [event for event in map(TrainingEvent.from_line, lines) if event is not None]


UNKNOWN_CAUSE = "the agent of the ranks, or its machine, was lost"
"""Cause of an attempt whose agent could not report its end."""


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """One interruption from which a training resumed."""

    attempt: int
    """Number of the attempt that resumed, from 2."""
    cause: str
    """Cause of the previous attempt's end."""
    seconds: float
    """Seconds from the last sign of training before the interruption to the next trained step."""
    from_step: int
    """Step of the checkpoint from which it resumed."""
    steps_lost: int
    """Steps after that checkpoint that had begun and were trained again."""
    workers: tuple[int, int]
    """Number of workers before and after."""
    rows_repeated: int | None = None
    """Rows that the final weights learned from more than once in an epoch because of this recovery. Any value but 0 is
    a bug. None while the training is not finished."""

    @classmethod
    def of(cls, event: TrainingEvent, repeated: int | None = None) -> Self:
        """Read a `recovered` event. `repeated`: value of `rows_repeated`."""
        values = event.values
        return cls(
            attempt=int(values["attempt"]),
            cause=str(values["cause"]),
            seconds=float(values["seconds"]),
            from_step=int(values["from_step"]),
            steps_lost=int(values["steps_lost"]),
            workers=(int(values["workers"][0]), int(values["workers"][1])),
            rows_repeated=repeated,
        )

    def in_words(self) -> str:
        """Return a line on the recovery, for people."""
        rows = "" if self.rows_repeated is None else f", {self.rows_repeated} rows trained twice"
        before, after = self.workers
        workers = "" if before == after else f"with {after} workers instead of {before} "
        return (
            f"{self.cause}: resumed {workers}from step {self.from_step} after {self.seconds:.1f} s, "
            f"{self.steps_lost} steps repeated{rows}"
        )


def recoveries_of(events: Iterable[TrainingEvent]) -> list[Recovery]:
    """Return the recoveries of a job, in order of their attempts, from all its events."""
    told: dict[int, TrainingEvent] = {}
    repeated: dict[int, int] = {}
    for event in events:
        if event.kind == "recovered":
            told[int(event.values["attempt"])] = event
        elif event.kind == "finished":
            found: dict[str, int] = event.values.get("rows_repeated", {})
            repeated = {int(attempt): int(rows) for attempt, rows in found.items()}
    return [Recovery.of(told[attempt], repeated.get(attempt)) for attempt in sorted(told)]


def rows_lost(events: Iterable[TrainingEvent]) -> int | None:
    """Return the rows that epochs left out, summed; None if the job was not interrupted or is not finished."""
    found = [event.values["rows_lost"] for event in events if "rows_lost" in event.values]
    return int(found[-1]) if found else None
