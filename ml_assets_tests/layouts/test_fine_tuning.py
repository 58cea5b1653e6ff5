"""A pipeline that begins with its own production version: one click, as any other, from where that version ended."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from ml_assets.model.release.promotion import promote
from ml_assets.model.release.releases import releases_of
from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.installation import STAGES, Installation, readings_components
from ml_assets_tests.components.readings_pipeline import MODEL, WINDOW, days
from resources.job.events import read_events
from resources.ledger import Person

TRAINING_SET, CHECKPOINT, *_ = STAGES
DAY, NEXT_DAY = days(2, start=WINDOW)


def losses(facts: dict[str, dict[str, Any]]) -> list[float]:
    """Return the loss on the validation rows after each epoch."""
    events = read_events(Path(facts[CHECKPOINT]["folder"]))
    return [event.values["validation_loss"] for event in events if event.kind == "epoch"]


@pytest.fixture
def installation(tmp_path: Path, _empty_tracker: Path) -> Installation:
    """An installation with the tables of both days."""
    shutil.copy(_empty_tracker, tmp_path / "mlflow.db")
    return Installation(tmp_path).with_tables(2)


def test_a_version_is_trained_further_with_the_next_day(installation: Installation) -> None:
    from mlflow import MlflowClient

    from_nothing = installation.trained(DAY)
    promote(releases_of(installation.platform), MODEL, 1, by=Person.unchecked("ada"), reason="the first")

    model = readings_pipeline.PIPELINE["model"] | {"init_from": f"{MODEL}@production"}
    tuned = installation.declared_as(readings_components(pipeline={"model": model})).trained(NEXT_DAY)
    assert tuned[TRAINING_SET]["initial version"] == f"{MODEL}/1"
    run = MlflowClient(installation.settings.resolved_tracking_uri.reveal()).get_run(
        tuned[CHECKPOINT]["mlflow/run"]
    )
    assert run.data.tags["init_from"] == f"{MODEL}/1"
    assert losses(tuned)[0] < 1.5 * min(losses(from_nothing)) < losses(from_nothing)[0]
