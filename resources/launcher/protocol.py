"""The launcher protocol: run one job somewhere, report as it goes, own its attempts."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from resources.launcher.job import TrainingJob, TrainingResult

if TYPE_CHECKING:  # workers import this module, and need no pydantic
    from resources.launcher.profile import ResourceProfile

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
    `cause`. For `recovered`: see `resources.launcher.recoveries`."""

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


class TrainingLauncher(Protocol):
    """Runs jobs. A finished job of the same fingerprint is returned without running anything."""

    def run(
        self,
        job: TrainingJob,
        folder: Path,
        on_event: Callable[[TrainingEvent], None],
        on_log: Callable[[str], None],
        profile: "ResourceProfile | None" = None,
        run_id: str = "",
    ) -> TrainingResult:
        """Train `job` in its fingerprint's `folder` until it is done.

        `profile` says what the workers are given where they run; processes of this machine share the machine.
        `run_id` names the run that waits for it: workers outlive their launcher until that run has ended.

        Raises one of `resources.launcher.errors`: a final failure is not retried, a preemption does not
        use the budget, anything else is retried from the last good checkpoint within `max_attempts`.
        """
        ...

    def facts(self, profile: "ResourceProfile | None" = None) -> dict[str, str]:
        """Return where and on what trainings run here, for the record of a run."""
        ...

    def prune(
        self,
        has_ended: Callable[[str], bool] = lambda _: False,
        on_log: Callable[[str], None] = lambda _: None,
    ) -> list[str]:
        """End trainings whose launcher is gone and will not come back, and name them. Safe at any time from anywhere.

        `has_ended` says of the id of a run that neither it nor a retry of it can come back; without it a run is waited
        for. `on_log` gets a line for what could not be judged or removed.
        """
        ...
