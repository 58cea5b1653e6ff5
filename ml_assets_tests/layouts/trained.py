"""One run of the plant's execution set, and what came of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from dagster._core.execution.execute_in_process_result import ExecuteInProcessResult

from ml_assets.components.steps.evaluation import report_name
from ml_assets.release.parts import bundles_of
from ml_assets.release.runtime import ServingModel
from ml_assets_tests.components.plant import FEATURES, MODEL
from ml_assets_tests.components.world import STAGES, World, facts_of

TRAINING_SET, CHECKPOINT, EVALUATION, REGISTERED = STAGES


@dataclass(frozen=True)
class Trained:
    """A run that succeeded, of one day."""

    world: World
    day: str
    result: ExecuteInProcessResult
    facts: dict[str, dict[str, Any]]

    @property
    def folder(self) -> Path:
        """Return the folder of the job."""
        return Path(self.facts[CHECKPOINT]["folder"])

    @property
    def report(self) -> str:
        """The evaluation's, as JSON."""
        name = report_name(MODEL, self.day, self.facts[EVALUATION]["evaluation"])
        return next(self.world.platform.artifacts.folder(name).glob("*.json")).read_text()

    @property
    def served(self) -> ServingModel:
        """Return the model that would be served."""
        return ServingModel.load(
            bundles_of(self.world.platform).open(self.facts[EVALUATION]["bundle"]).folder
        )

    @property
    def rows(self) -> pl.DataFrame:
        """Raw ones of the day."""
        return self.world.main.scan(FEATURES, [self.day]).collect()


def train(world: World, day: str) -> Trained:
    """Materialize the execution set of `world` for `day`; it must succeed."""
    result = world.train(day)
    return Trained(world, day, result, facts_of(result, day))
