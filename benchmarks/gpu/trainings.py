"""Run one training through the launcher, as a pipeline would, and reduce its events to medians.

Not here: the choice of trainings (cases), their bars (__main__).
"""

import hashlib
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml_assets.data.snapshots.split_reader import Snapshot
from resources.job.events import TrainingEvent
from resources.job.job import TrainingJob, TrainingResult
from resources.job.training_settings import TrainingSettings
from resources.launcher.local import LocalLauncher

FIGURES = (
    "training_throughput_samples_per_sec",
    "step_ms_p50",
    "data_wait_share",
    "gpu_utilization_pct",
    "gpu_peak_memory_gb",
    "mfu",
)
"""Metrics to reduce to medians over the second half of a training: by then kernels are compiled and clocks are up."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One training that succeeded."""

    result: TrainingResult
    events: tuple[TrainingEvent, ...]
    wall_seconds: float
    """Seconds from the call of the launcher to its answer."""
    lines: tuple[str, ...]
    """Log lines."""

    @property
    def device(self) -> str:
        """`cpu` or `cuda`, as rank 0 reports."""
        return next(str(event.values["device"]) for event in self.events if event.kind == "started")

    def figures(self) -> dict[str, float]:
        """Median of each reported metric of `FIGURES`, and the last losses."""
        told = [event.values for event in self.events if event.kind == "metrics"]
        late = told[len(told) // 2 :]
        found = {
            name: statistics.median(values[name] for values in late if name in values)
            for name in FIGURES
            if any(name in values for values in late)
        }
        found["loss"] = late[-1]["loss"]
        found["validation_loss"] = self.result.best_validation_loss
        saves = [event.values for event in self.events if event.kind == "checkpoint"]
        if saves:
            found["checkpoint_blocked_ms"] = statistics.median(values["blocked_ms"] for values in saves)
            found["checkpoint_duration_ms"] = statistics.median(
                values["checkpoint_duration_ms"] for values in saves
            )
        return found | {"wall_seconds": self.wall_seconds}

    def weights_digest(self) -> str:
        """SHA-256 of the file of the best weights."""
        return hashlib.sha256(Path(self.result.weights).read_bytes()).hexdigest()


def train(
    name: str,
    snapshot: Snapshot,
    folder: Path,
    function: str,
    hyperparameters: dict[str, Any],
    settings: TrainingSettings,
    *,
    decode: str = "",
    objective: str = "binary",
    on_event: Callable[[TrainingEvent], None] = lambda _: None,
) -> Outcome:
    """Train in `folder/name`. Raise the launcher's errors."""
    job = job_of(snapshot, function, hyperparameters, settings, decode=decode, objective=objective)
    events: list[TrainingEvent] = []
    lines: list[str] = []

    def keep(event: TrainingEvent) -> None:
        events.append(event)
        on_event(event)

    began = time.monotonic()
    result = LocalLauncher().run(job, folder / name, keep, lines.append)
    return Outcome(
        result=result, events=tuple(events), wall_seconds=time.monotonic() - began, lines=tuple(lines)
    )


def job_of(
    snapshot: Snapshot,
    function: str,
    hyperparameters: dict[str, Any],
    settings: TrainingSettings,
    *,
    decode: str = "",
    objective: str = "binary",
) -> TrainingJob:
    """Return the job of such a training."""
    return TrainingJob(
        model="gpu-benchmark",
        partition="2024-01-01",
        model_function=function,
        objective=objective,
        hyperparameters=hyperparameters,
        snapshot=str(snapshot.folder),
        snapshot_digest=snapshot.digest,
        code_version="",
        seed=1,
        settings=settings,
        decode=decode,
    )


class KillOnce:
    """Event callback that kills rank 0 with SIGKILL at the first metrics at or after `step`."""

    def __init__(self, step: int) -> None:
        self._step, self._pid = step, 0
        self.at_step: int | None = None
        """Step of the event at which it was killed; None before."""

    def __call__(self, event: TrainingEvent) -> None:
        """See `TrainingLauncher.run`."""
        if event.kind == "started" and self.at_step is None:
            self._pid = int(event.values["pids"][0])
        if event.kind == "metrics" and self.at_step is None and event.step >= self._step:
            self.at_step = event.step
            os.kill(self._pid, signal.SIGKILL)


def note(text: str) -> None:
    """Print the progress of the benchmark on standard error."""
    print(text, file=sys.stderr, flush=True)
