"""One run of the execution set, and what it left: what a test about a model's life reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
from dagster._core.execution.execute_in_process_result import ExecuteInProcessResult

from ml_assets.foundation.links import report_name
from ml_assets.model.release.releases import bundles_of
from ml_assets.model.release.runtime import ServingModel
from ml_assets.model.steps.snapshot import take_snapshot
from ml_assets.model.steps.values import TrainingSet, ValidatedWindow
from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.installation import STAGES, Installation, facts_of, readings_components
from ml_assets_tests.components.readings_pipeline import FEATURES, MODEL, WINDOW, days

TRAINING_SET, CHECKPOINT, EVALUATION, REGISTERED = STAGES


@dataclass(frozen=True)
class ModelRun:
    """One run of the execution set that succeeded."""

    installation: Installation
    day: str
    result: ExecuteInProcessResult
    facts: dict[str, dict[str, Any]]
    """Asset → metadata of its materialization as plain values; absent where it was not materialized."""
    branches: dict[str, str]
    """The lake's kept branches after the run."""

    @property
    def folder(self) -> Path:
        """Return the folder of the job."""
        return Path(self.facts[CHECKPOINT]["folder"])

    @property
    def report_folder(self) -> Path:
        """Return the folder of the report."""
        name = report_name(MODEL, self.day, self.facts[EVALUATION]["evaluation"])
        return self.installation.platform.artifacts.folder(name)

    @property
    def report(self) -> str:
        """Return the report of the evaluation, as JSON."""
        return next(self.report_folder.glob("*.json")).read_text()

    @property
    def served(self) -> ServingModel:
        """Return the model that would be served."""
        return ServingModel.load(
            bundles_of(self.installation.platform).open(self.facts[EVALUATION]["bundle"]).folder
        )

    @property
    def rows(self) -> pl.DataFrame:
        """Return the raw rows of the day."""
        return self.installation.main.scan(FEATURES, [self.day]).collect()


def train(installation: Installation, day: str) -> ModelRun:
    """Materialize the execution set for `day`, which must succeed."""
    result = installation.train(day)
    kept = installation.platform.lake.branches("keep-")
    return ModelRun(installation, day, result, facts_of(result, day), kept)


def mlflow_run(installation: Installation, run_id: str) -> Any:
    """MLflow's own view of a run."""
    from mlflow import MlflowClient

    return MlflowClient(installation.settings.resolved_tracking_uri.reveal()).get_run(run_id)


def frozen(installation: Installation, day: str, init_from: str | None) -> TrainingSet:
    """Return the value that the second step hands on."""
    *_, pipeline = readings_components(
        pipeline={"model": readings_pipeline.PIPELINE["model"] | {"init_from": init_from}}
    )
    keys = days(WINDOW, start=(date.fromisoformat(day) - readings_pipeline.FIRST).days - WINDOW + 1)
    validated = ValidatedWindow(
        commit=installation.main.commit_id,
        table=readings_pipeline.FEATURES,
        keys=tuple(keys),
        stale={},
        inputs=(),
        declared="",
    )
    training_set, _ = take_snapshot(pipeline.spec, installation.platform, day, validated, "a-run")
    return training_set


def job_of(installation: Installation, frozen: Mapping[str, Any]) -> str:
    """The job whose training set was materialized with the metadata `frozen`, as JSON."""
    folder = installation.settings.artifacts_folder / "training" / MODEL / frozen["fingerprint"].value[:16]
    return (folder / "job.json").read_text()
