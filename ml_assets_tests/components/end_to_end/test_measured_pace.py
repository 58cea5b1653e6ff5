"""`checkpoint_every_minutes: auto` in a pipeline: the page and the record have the choice, which changes no result."""

from pathlib import Path
from typing import Any

import pytest

from ml_assets.model.steps.usage import read_usage
from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.installation import Installation, readings_components
from ml_assets_tests.components.readings_pipeline import MODEL, WINDOW, days
from resources.job.events import JOB
from resources.job.job import TrainingJob

DAYS = days(WINDOW + 2, start=1)[-3:]


def _components(minutes: float | str) -> list[Any]:
    training = readings_pipeline.PIPELINE["training"] | {
        "workers": 1,
        "checkpoint_every_minutes": minutes,
        "determinism": "bitwise",
    }
    return readings_components(pipeline={"training": training})


def test_the_choice_is_shown_and_another_interval_trains_nothing_anew(tmp_path: Path) -> None:
    installation = Installation(tmp_path, _components("auto")).with_tables(3)
    facts = installation.trained(DAYS[0])[f"{MODEL}/checkpoint"]
    assert "a checkpoint every " in facts["checkpoints"]
    assert "none on record" in facts["checkpoints"]
    job = TrainingJob.from_json((Path(facts["folder"]) / JOB).read_text())
    record = read_usage(installation.platform.artifacts, MODEL, job.fingerprint)
    assert record is not None
    (attempt,) = record.attempts
    assert attempt.workers == 1
    assert attempt.interval is not None
    assert not attempt.lost_work

    fixed = installation.declared_as(_components(5.0))
    again = fixed.trained(DAYS[0])[f"{MODEL}/checkpoint"]
    assert again["folder"] == facts["folder"]
    assert read_usage(installation.platform.artifacts, MODEL, job.fingerprint) == record

    later = installation.trained(DAYS[1])[f"{MODEL}/checkpoint"]
    history = TrainingJob.from_json((Path(later["folder"]) / JOB).read_text()).loss_history
    assert history is not None
    assert history.losses == 0
    assert history.worker_seconds == pytest.approx(attempt.trained_seconds)
