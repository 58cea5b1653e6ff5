"""Scripts with loops of their own, as pipelines: from one click to a registered version, and through a kill.

A DDP trainer as tutorials have it, on two ranks; gradient-boosted trees, which know nothing of torch; a mean of both.
"""

import dataclasses
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from ml_assets.components.base import SpecComponent
from ml_assets.evaluation.evaluation_document import Report
from ml_assets.features.encoding import FittedState
from ml_assets.pipeline.reproduce import reproduce
from ml_assets.release.of_platform import registry_of
from ml_assets.snapshots.split_reader import FITTED, open_snapshot
from ml_assets.training.script.api import FOLDER, JOB
from ml_assets.training.script.data import matrix_of
from ml_assets.training.script.graph import run_graph
from ml_assets.training.script.script_model import read_model
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
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from ml_assets_tests.training.watcher import Watcher
from resources.job.errors import AttemptsExhausted, BadConfiguration
from resources.job.events import TrainingEvent, read_events
from resources.job.job import TrainingJob, TrainingResult
from resources.job.recoveries import recoveries_of
from resources.job.training_settings import TrainingSettings

ROOT = Path(__file__).parents[2]
DAY = days(1, start=WINDOW)[0]
EPOCHS = 14


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


@pytest.fixture(params=["by_ddp", "by_accelerate_style", "by_lightning", "by_trees"])
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
    assert unbuilt == "it has no registered version yet; `ml-assets launch unbuilt PARTITION` makes one"
    page = next(trained.report_folder.glob("report.html")).read_text()
    assert "Other models" in page
    assert "not measured: it has no registered version yet" in page

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


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> TrainingJob:
    """Many short epochs of the DDP script on two ranks."""
    snapshot = small_snapshot(tmp_path_factory.mktemp("snapshots"))
    return dataclasses.replace(
        small_job(snapshot, objective="regression"),
        model_function="",
        script="ml_assets_tests.scripts.ddp_adapted",
        hyperparameters={"epochs": EPOCHS, "batch-size": 13},
        settings=TrainingSettings(workers=2),
    )


def test_the_trees_of_the_flights_train_and_stop_early(tmp_path: Path, job: TrainingJob) -> None:
    """The script of `flight_delay_trees` on small rows: figures arrive, and the trees beat a constant."""
    flights = dataclasses.replace(
        job,
        objective="binary",
        script="ml_assets.defs.flights.flight_delay_trees.train",
        hyperparameters={"rounds": 60, "patience": 20, "leaf-rows": 20},
        settings=TrainingSettings(workers=1),
    )
    result = Watcher().run(flights, tmp_path)
    assert result.best_validation_loss < 0.9 * math.log(2)
    told = [event.values["validation_loss"] for event in read_events(tmp_path) if event.kind == "epoch"]
    assert len(told) >= 2
    assert min(told) >= result.best_validation_loss


def test_the_blend_of_the_flights_is_no_worse_than_its_trees(tmp_path: Path, job: TrainingJob) -> None:
    """The validation rows choose the weight, and the handed-in graph answers them with the loss of that weight."""
    flights = dataclasses.replace(
        job,
        objective="binary",
        script="ml_assets.defs.flights.flight_delay_blend.train",
        hyperparameters={
            "rounds": 60,
            "patience": 20,
            "leaf-rows": 20,
            "epochs": 40,
            "dropout": 0.1,
            "learning-rate": 0.02,
        },
        settings=TrainingSettings(workers=1),
    )
    result = Watcher().run(flights, tmp_path)
    told = [event.values["validation_loss"] for event in read_events(tmp_path) if event.kind == "epoch"]
    assert told[-1] == result.best_validation_loss <= min(told) + 1e-9
    snapshot = open_snapshot(Path(flights.snapshot))
    matrix, label = matrix_of(snapshot.read("validation"))
    content = read_model(Path(result.weights))
    assert isinstance(content, bytes)
    answer = run_graph(content, matrix).astype(np.float64)
    loss = -np.log(np.where(label == 1, answer, 1 - answer)).mean()
    assert loss == pytest.approx(result.best_validation_loss, rel=1e-5)


def test_a_cancelled_and_killed_script_ends_in_the_same_weights(tmp_path: Path, job: TrainingJob) -> None:
    """The script resumes from the checkpoints that it wrote itself."""

    def cancel(_: Watcher, event: TrainingEvent) -> None:
        if event.kind == "checkpoint" and event.step == 3:
            raise KeyboardInterrupt

    def kill_rank_0(watcher: Watcher, event: TrainingEvent) -> None:
        if event.kind == "checkpoint" and watcher.kinds().count("checkpoint") == 3:
            os.kill(watcher.pids[0], signal.SIGKILL)

    unbroken = Watcher().run(job, tmp_path / "unbroken")
    folder = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        Watcher(cancel).run(job, folder)
    result = Watcher(kill_rank_0).run(job, folder)
    assert result.attempts == 3
    first, second = result.resumed_from_steps
    assert 3 <= first < second
    assert result.weights_sha256 == unbroken.weights_sha256
    assert result.best_validation_loss == unbroken.best_validation_loss
    events = read_events(folder)
    assert {event.step for event in events if event.kind == "epoch"} == set(range(1, EPOCHS + 1))
    *_, recovery = recoveries_of(events)
    assert recovery.from_step == second
    assert "SIGKILL" in recovery.cause


@pytest.mark.nightly
def test_lightning_resumes_from_the_checkpoint_that_its_ranks_saved(tmp_path: Path, job: TrainingJob) -> None:
    """Lightning keeps the epoch, the optimizer and its loops in a file of its own; no epoch is trained twice."""

    def kill_rank_0(watcher: Watcher, event: TrainingEvent) -> None:
        if event.kind == "checkpoint" and watcher.kinds().count("checkpoint") == 3:
            os.kill(watcher.pids[0], signal.SIGKILL)

    job = dataclasses.replace(job, script="ml_assets_tests.scripts.lightning_adapted")
    result = Watcher(kill_rank_0).run(job, tmp_path)
    assert result.attempts == 2
    (resumed,) = result.resumed_from_steps
    assert resumed >= 3
    assert result.steps == EPOCHS * _steps_of_an_epoch(job)
    epochs = [event.step for event in read_events(tmp_path) if event.kind == "epoch"]
    assert set(epochs) == set(range(1, EPOCHS + 1))
    assert len(epochs) <= EPOCHS + 1  # at most the epoch of the kill was told twice


def _steps_of_an_epoch(job: TrainingJob) -> int:
    """Steps of `job`'s batches over the training rows, dealt out over its workers."""
    rows = open_snapshot(Path(job.snapshot), job.snapshot_digest).rows("train")
    return math.ceil(math.ceil(rows / job.settings.workers) / job.hyperparameters["batch-size"])


def test_a_script_that_makes_no_progress_resumes_from_its_checkpoint(
    tmp_path: Path, job: TrainingJob
) -> None:
    job = dataclasses.replace(
        job,
        script="ml_assets_tests.scripts.misbehaving",
        hyperparameters={"how": "still"},
        settings=TrainingSettings(workers=1, max_attempts=2, stall_timeout_seconds=1.0),
    )
    watcher = Watcher()
    result = watcher.run(job, tmp_path)
    assert result.resumed_from_steps == (1,)
    (recovery,) = recoveries_of(read_events(tmp_path))
    assert "rank 0 finished no step for" in recovery.cause
    assert "in stand_still_once" in (tmp_path / "log.txt").read_text()  # where it hung


def test_a_failure_names_the_rank_that_failed_first_with_its_last_lines(
    tmp_path: Path, job: TrainingJob
) -> None:
    job = dataclasses.replace(
        job,
        script="ml_assets_tests.scripts.misbehaving",
        hyperparameters={"how": "alone"},
        settings=TrainingSettings(workers=3, max_attempts=1),
    )
    with pytest.raises(AttemptsExhausted) as failed:
        Watcher().run(job, tmp_path)
    *_, frame, last = str(failed.value).splitlines()
    assert last == "ZeroDivisionError: in the batch of the last rank"
    assert "raise ZeroDivisionError" in frame
    assert "the first to fail: rank 2 ended with exit code 1" in str(failed.value)
    (end,) = [event for event in read_events(tmp_path) if event.kind == "ended"]
    assert end.values["cause"].startswith("rank 2 ended with exit code 1: ZeroDivisionError")


@pytest.mark.nightly
def test_ranks_that_save_together_resume_at_any_world_size(tmp_path: Path, job: TrainingJob) -> None:
    """Ranks resume from a whole checkpoint, never from one that some of the ranks did not finish."""

    def cancel(_: Watcher, event: TrainingEvent) -> None:
        if event.kind == "checkpoint" and event.step == 5:
            raise KeyboardInterrupt

    job = dataclasses.replace(
        job,
        script="ml_assets_tests.scripts.sharded",
        hyperparameters={"epochs": 8, "dies_at": 3},
        settings=TrainingSettings(workers=3),
    )
    with pytest.raises(KeyboardInterrupt):
        Watcher(cancel).run(job, tmp_path)
    # By hand, and with fewer ranks: a cluster starts an attempt with those it has room for.
    by_hand = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    environment = os.environ | {JOB: str(tmp_path / "job.json"), FOLDER: str(tmp_path)}
    subprocess.run([*by_hand, "-m", job.script], env=environment, cwd=ROOT, check=True, timeout=200)
    result = TrainingResult.read(tmp_path / "result.json")
    assert result.world_size == 2
    first, second = result.resumed_from_steps
    assert first == 2  # of step 3, rank 1 never handed in its part
    assert second >= 5
    log = (tmp_path / "log.txt").read_text()
    assert "rank 2 resumes what 3 saved: ['draws-0', 'draws-1', 'draws-2']" in log
    told = {event.step: event.values for event in read_events(tmp_path) if event.kind == "epoch"}
    losses = [told[step]["validation_loss"] for step in range(1, 9)]
    assert losses == sorted(losses, reverse=True)


def test_a_rank_that_ends_without_its_part_of_a_checkpoint_is_named(tmp_path: Path, job: TrainingJob) -> None:
    job = dataclasses.replace(
        job, script="ml_assets_tests.scripts.misbehaving", hyperparameters={"how": "uneven"}
    )
    with pytest.raises(BadConfiguration, match="rank 1 has ended, but rank 0 waits for its part"):
        Watcher().run(job, tmp_path)
