"""Trainings of the tests of layouts, run by the launcher, and what their events say of each step."""

import dataclasses
from pathlib import Path
from typing import Any

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets_tests.training.small_jobs import small_job
from resources.job.events import TrainingEvent
from resources.job.job import TrainingJob, TrainingResult
from resources.job.training_settings import Parallel
from resources.launcher.local import LocalLauncher

MODELS = "ml_assets_tests.layouts.residual_models"


def residual_job(snapshot: Snapshot, workers: int, **parallel: Any) -> TrainingJob:
    """One epoch of 20 steps, with figures of each."""
    job = small_job(
        snapshot,
        model="residual",
        workers=workers,
        parallel=Parallel(**parallel),
        epochs=1,
        global_batch=52,
        lanes=4,
        gradient_accumulation_steps=4 if "pipeline" in parallel else 1,
        checkpoint_every_steps=8,
    )
    return dataclasses.replace(job, model_function=f"{MODELS}.residual")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinishedTraining:
    """A training that is over."""

    folder: Path
    result: TrainingResult
    events: list[TrainingEvent]

    def curve(self, name: str) -> list[float]:
        """The figure `name` of each step; of one that was done again after a resume, the last."""
        values = {event.step: event.values[name] for event in self.events if event.kind == "metrics"}
        return [values[step] for step in sorted(values)]


def train(job: TrainingJob, folder: Path) -> FinishedTraining:
    """Run `job` to its end."""
    events: list[TrainingEvent] = []
    result = LocalLauncher().run(job, folder, events.append, lambda _: None)
    return FinishedTraining(folder=folder, result=result, events=events)
