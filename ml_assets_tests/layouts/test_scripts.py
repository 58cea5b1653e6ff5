"""Scripts with loops of their own, as pipelines: from one click to a registered version.

A DDP trainer as tutorials have it, on two ranks; gradient-boosted trees, which know nothing of torch; a mean of both.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from ml_assets.components.base import SpecComponent
from ml_assets.data.features.encoding import FittedState
from ml_assets.data.snapshots.split_reader import FITTED, open_snapshot
from ml_assets.extras.reproduction.reproduce import reproduce
from ml_assets.model.evaluation.report_document import Report
from ml_assets.model.release.releases import registry_of
from ml_assets_tests.components.installation import STAGES, Installation, readings_components
from ml_assets_tests.components.model_run import (
    CHECKPOINT,
    EVALUATION,
    REGISTERED,
    TRAINING_SET,
    ModelRun,
    train,
)
from ml_assets_tests.components.readings_pipeline import MODEL, PIPELINE, WINDOW, days
from resources.job.job import TrainingJob

DAY = days(1, start=WINDOW)[0]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, _empty_tracker: Path) -> Installation:
    """An installation with its tables."""
    home = tmp_path_factory.mktemp("installation")
    shutil.copy(_empty_tracker, home / "mlflow.db")
    return Installation(home).with_tables(1)


def train_by(
    script: str,
    installation: Installation,
    workers: int,
    arguments: Sequence[int] = (),
    compared_with: Sequence[str] = (),
    **hyperparameters: Any,
) -> ModelRun:
    """Train the model of a script on one day."""
    declared = components_of(script, workers, arguments, compared_with, **hyperparameters)
    return train(installation.declared_as(declared), DAY)


def components_of(
    script: str,
    workers: int,
    arguments: Sequence[int] = (),
    compared_with: Sequence[str] = (),
    **hyperparameters: Any,
) -> list[SpecComponent]:
    """The three components of the readings, with the model of a script."""
    model = {
        "script": f"ml_assets_tests.scripts.{script}",
        "arguments": list(arguments),
        "hyperparameters": hyperparameters,
    }
    evaluation = PIPELINE["evaluation"] | {"compared_with": list(compared_with)}
    change = {"model": model, "training": {"workers": workers}, "evaluation": evaluation}
    return readings_components(pipeline=change)


@pytest.fixture(scope="module")
def by_ddp(installation: Installation) -> ModelRun:
    return train_by("ddp_adapted", installation, 2, epochs=8, lr=0.03)


@pytest.fixture(scope="module")
def by_trees(installation: Installation) -> ModelRun:
    return train_by("trees_adapted", installation, 1, **{"trees": 60, "trees-a-round": 20})


@pytest.fixture(scope="module")
def by_accelerate_style(installation: Installation) -> ModelRun:
    """Positional arguments, a module beside the script, a group that is destroyed before the model is handed in."""
    return train_by("accelerate_style_adapted", installation, 2, arguments=[8], lr=0.03)


@pytest.fixture(scope="module")
def by_lightning(installation: Installation) -> ModelRun:
    """Lightning's trainer in the ranks that the platform started."""
    return train_by("lightning_adapted", installation, 2, epochs=8, lr=0.03)


@pytest.fixture(scope="module")
def by_hugging_face(installation: Installation) -> ModelRun:
    """The Trainer of transformers; one worker, as its import takes a rank many seconds."""
    return train_by("hugging_face_adapted", installation, 1, **{"epochs": 8, "lr": 0.03, "batch-size": 32})


@pytest.fixture(scope="module")
def by_plain_loop(installation: Installation) -> ModelRun:
    return train_by("plain_loop_adapted", installation, 1, **{"epochs": 10, "batch-size": 16})


@pytest.fixture(scope="module")
def by_boosting(installation: Installation) -> ModelRun:
    return train_by("boosting_adapted", installation, 1, rounds=60)


@pytest.fixture(
    params=[
        "by_ddp",
        "by_accelerate_style",
        "by_lightning",
        "by_trees",
        "by_hugging_face",
        "by_plain_loop",
        "by_boosting",
    ]
)
def trained(request: pytest.FixtureRequest) -> ModelRun:
    return request.getfixturevalue(request.param)


def test_one_click_makes_a_registered_version_of_a_script(trained: ModelRun) -> None:
    assert list(trained.facts) == list(STAGES)
    assert trained.facts[EVALUATION]["decision"] == "blessed"
    assert trained.facts[EVALUATION]["rmse"] < 0.5 * trained.facts[EVALUATION]["baseline_rmse"]
    version = registry_of(trained.installation.platform).version(MODEL, trained.facts[REGISTERED]["version"])
    assert version.tags["fingerprint"] == trained.facts[TRAINING_SET]["fingerprint"]


def test_what_a_script_tells_is_in_the_tracker_and_its_curve_in_the_report(trained: ModelRun) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(trained.installation.settings.resolved_tracking_uri.reveal())
    run = trained.facts[CHECKPOINT]["mlflow/run"]
    told = client.get_metric_history(run, "validation_loss")
    assert len(told) >= 3
    assert told[-1].value < told[0].value
    params = client.get_run(run).data.params
    assert params["script"].startswith("ml_assets_tests.scripts.")
    assert "training.epochs" not in params  # the platform's loop had no part in it
    assert '"validation"' in trained.report
    observed = [
        event.asset_observation_data.asset_observation
        for event in trained.result.get_asset_observation_events()
    ]
    assert any("validation_loss" in one.metadata for one in observed)


def test_a_second_click_finds_the_training_of_a_script(by_ddp: ModelRun) -> None:
    again = train_by("ddp_adapted", by_ddp.installation, 2, epochs=8, lr=0.03)
    assert again.facts[CHECKPOINT]["reused"] is True
    assert again.facts[EVALUATION]["bundle"] == by_ddp.facts[EVALUATION]["bundle"]
    assert again.facts[REGISTERED]["version"] == by_ddp.facts[REGISTERED]["version"]


def test_served_trees_answer_as_scikit_learn_does(by_trees: ModelRun) -> None:
    import joblib

    newest = max((by_trees.folder / "checkpoints").glob("step-*"))
    rows, matrix = _with_holes(by_trees)
    expected = joblib.load(newest / "trees.joblib").predict(matrix)
    np.testing.assert_allclose(by_trees.served.predict(rows), expected, rtol=1e-5)


def test_a_booster_of_lightgbm_is_served_and_compared_with_a_network(
    installation: Installation, by_ddp: ModelRun
) -> None:
    """The report shows both on the same rows; a version that does not exist costs a sentence. Trained again, it has
    the same bits."""
    import lightgbm

    network = f"{MODEL}/{by_ddp.facts[REGISTERED]['version']}"
    others = [network, f"{MODEL}/99", "unbuilt"]
    trained = train_by("boosted", installation, 1, compared_with=others, rounds=60, categories=True)
    by_network, *lacking = (one.model_dump() for one in Report.model_validate_json(trained.report).compared)
    assert by_network["metrics"]["rmse"] == pytest.approx(by_ddp.facts[EVALUATION]["rmse"])
    gain = by_network["metrics"]["rmse"] - trained.facts[EVALUATION]["rmse"]
    assert by_network["improvements"]["rmse"]["value"] == pytest.approx(gain)
    unknown, unbuilt = (one["cannot_score"] for one in lacking)
    assert unknown.startswith(f"{MODEL} has no version 99; it has 1 (")
    assert "`ml-assets launch unbuilt PARTITION`" in unbuilt
    page = next(trained.report_folder.glob("report.html")).read_text()
    assert "Other models" in page
    assert "not measured: it has" in page

    assert trained.facts[EVALUATION]["decision"] == "blessed"
    newest = max((trained.folder / "checkpoints").glob("step-*"))
    rows, matrix = _with_holes(trained)
    expected = lightgbm.Booster(model_file=newest / "booster.txt").predict(matrix)
    np.testing.assert_allclose(trained.served.predict(rows), expected, rtol=1e-5)

    *_, declared = components_of("boosted", 1, compared_with=others, rounds=60, categories=True)
    platform = installation.platform
    version = registry_of(platform).version(MODEL, trained.facts[REGISTERED]["version"])
    again = reproduce(declared.spec, platform, version, on_log=lambda _: None)
    assert (again.level, again.expected) == ("weights", "weights")
    assert {one.what: one.is_same for one in again.compared}["bundle"]


def test_a_script_of_ddp_is_reproduced_with_as_many_workers(by_ddp: ModelRun) -> None:
    """Its batches depend on the number of workers, so another number promises nothing."""
    *_, declared = components_of("ddp_adapted", 2, epochs=8, lr=0.03)
    platform = by_ddp.installation.platform
    version = registry_of(platform).version(MODEL, by_ddp.facts[REGISTERED]["version"])
    again = reproduce(declared.spec, platform, version, on_log=lambda _: None)
    assert (again.level, again.expected) == ("weights", "weights")
    assert {one.what: one.is_same for one in again.compared}["bundle"]
    by_one = reproduce(declared.spec, platform, version, workers=1, on_log=lambda _: None)
    assert (by_one.level, by_one.expected) == ("none", "none")


def _with_holes(trained: ModelRun) -> tuple[pl.DataFrame, np.ndarray]:
    """The day's rows with a fifth of a column missing, and the matrix that the library reads."""
    job = TrainingJob.from_json((trained.folder / "job.json").read_text())
    fitted = FittedState.from_json((open_snapshot(Path(job.snapshot)).folder / FITTED).read_text())
    rows = trained.rows.with_columns(
        pl.when(pl.int_range(pl.len()) % 5 == 0)
        .then(None)
        .otherwise("made_yesterday")
        .alias("made_yesterday")
    )
    return rows, np.hstack(fitted.encode(rows))


# Without Dagster
