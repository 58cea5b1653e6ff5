"""The launcher protocol: run one job somewhere, report as it goes, own its attempts."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from resources.launcher.job import TrainingJob, TrainingResult


@dataclass(frozen=True, slots=True)
class TrainingEvent:
    """One JSON line of rank 0."""

    kind: str
    """`started`, `metrics`, `checkpoint`, `epoch`, `resumed` or `finished`."""
    step: int
    time: float
    """Seconds since the epoch, UTC."""
    values: dict[str, Any]
    """For `metrics` and `epoch`: metric name → number."""


class TrainingLauncher(Protocol):
    """Runs jobs. A finished job of the same fingerprint is returned without running anything."""

    def run(
        self,
        job: TrainingJob,
        folder: Path,
        on_event: Callable[[TrainingEvent], None],
        on_log: Callable[[str], None],
    ) -> TrainingResult:
        """Train `job` in its fingerprint's `folder` until it is done.

        Raises one of `resources.launcher.errors`: a final failure is not retried, a preemption does not
        use the budget, anything else is retried from the last good checkpoint within `max_attempts`.
        """
        ...
