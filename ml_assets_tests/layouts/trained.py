"""One run of the plant's execution set, and what came of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from dagster._core.execution.execute_in_process_result import ExecuteInProcessResult

from ml_assets.pipeline.links import report_name
from ml_assets.release.parts import bundles_of
from ml_assets.release.runtime import ServingModel
from ml_assets_tests.components.installation import STAGES, Installation, facts_of
from ml_assets_tests.components.readings_pipeline import FEATURES, MODEL

TRAINING_SET, CHECKPOINT, EVALUATION, REGISTERED = STAGES


@dataclass(frozen=True)
class Trained:
    """A run that succeeded, of one day."""

    installation: Installation
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
        return next(self.installation.platform.artifacts.folder(name).glob("*.json")).read_text()

    @property
    def served(self) -> ServingModel:
        """Return the model that would be served."""
        return ServingModel.load(
            bundles_of(self.installation.platform).open(self.facts[EVALUATION]["bundle"]).folder
        )

    @property
    def rows(self) -> pl.DataFrame:
        """Raw ones of the day."""
        return self.installation.main.scan(FEATURES, [self.day]).collect()


def train(installation: Installation, day: str) -> Trained:
    """Materialize the execution set of `installation` for `day`; it must succeed."""
    result = installation.train(day)
    return Trained(installation, day, result, facts_of(result, day))
