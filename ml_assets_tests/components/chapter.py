"""One run of the execution set, and what it left: what a test about a model's life reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from dagster._core.execution.execute_in_process_result import ExecuteInProcessResult

from ml_assets.components.steps.snapshot import take_snapshot
from ml_assets_tests.components import plant
from ml_assets_tests.components.plant import MODEL, WINDOW, days
from ml_assets_tests.components.world import World, facts_of, plant_components


@dataclass(frozen=True)
class Chapter:
    """One run of the execution set."""

    result: ExecuteInProcessResult
    facts: dict[str, dict[str, Any]]
    """Asset → metadata of its materialization as plain values; absent where it was not materialized."""
    branches: dict[str, str]
    """The lake's kept branches after the run."""


def live(world: World, day: str) -> Chapter:
    """Materialize the plant's execution set for `day`, which must succeed."""
    result = world.train(day)
    return Chapter(result, facts_of(result, day), world.platform.lake.branches("keep-"))


def mlflow_run(world: World, run_id: str) -> Any:
    """MLflow's own view of a run."""
    from mlflow import MlflowClient

    return MlflowClient(world.settings.resolved_tracking_uri.reveal()).get_run(run_id)


def frozen(world: World, day: str, init_from: str | None) -> dict[str, Any]:
    """Return the values that the second step hands on."""
    *_, pipeline = plant_components(pipeline={"model": plant.PIPELINE["model"] | {"init_from": init_from}})
    keys = days(WINDOW, start=(date.fromisoformat(day) - plant.FIRST).days - WINDOW + 1)
    judged = {"commit": world.main.commit_id, "keys": keys, "stale": {}, "inputs": []}
    facts, _ = take_snapshot(pipeline.spec, world.platform, day, judged, "a-run")
    return facts


def job_of(world: World, frozen: Mapping[str, Any]) -> str:
    """The job whose training set was materialized with the metadata `frozen`, as JSON."""
    folder = world.settings.artifacts_folder / "training" / MODEL / frozen["fingerprint"].value[:16]
    return (folder / "job.json").read_text()
