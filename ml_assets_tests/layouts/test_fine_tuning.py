"""A pipeline that begins with its own production version: one click, as any other, from where that version ended."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from ml_assets.release.parts import releases_of
from ml_assets_tests.components import plant
from ml_assets_tests.components.plant import MODEL, WINDOW, days
from ml_assets_tests.components.world import STAGES, World, plant_components
from resources.job.events import read_events

TRAINING_SET, CHECKPOINT, *_ = STAGES
DAY, NEXT_DAY = days(2, start=WINDOW)


def losses(facts: dict[str, dict[str, Any]]) -> list[float]:
    """On the validation rows, after each epoch."""
    events = read_events(Path(facts[CHECKPOINT]["folder"]))
    return [event.values["validation_loss"] for event in events if event.kind == "epoch"]


@pytest.fixture
def world(tmp_path: Path, _empty_tracker: Path) -> World:
    """The plant with its tables of both days."""
    shutil.copy(_empty_tracker, tmp_path / "mlflow.db")
    return World(tmp_path).with_tables(2)


def test_a_version_is_trained_further_with_the_next_day(world: World) -> None:
    from mlflow import MlflowClient

    from_nothing = world.trained(DAY)
    releases_of(world.platform).promote(MODEL, 1, author="ada", reason="the first")

    model = plant.PIPELINE["model"] | {"init_from": f"{MODEL}@production"}
    tuned = world.declared_as(plant_components(pipeline={"model": model})).trained(NEXT_DAY)
    assert tuned[TRAINING_SET]["begins with"] == f"{MODEL}/1"
    run = MlflowClient(world.settings.resolved_tracking_uri.reveal()).get_run(tuned[CHECKPOINT]["mlflow/run"])
    assert run.data.tags["init_from"] == f"{MODEL}/1"
    assert losses(tuned)[0] < 1.5 * min(losses(from_nothing)) < losses(from_nothing)[0]
