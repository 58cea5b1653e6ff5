"""Scripts without a pipeline around them: those of the flights, and killed, cancelled and failing ones."""

import dataclasses
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml_assets.data.snapshots.split_reader import open_snapshot
from ml_assets.model.training.script.api import FOLDER, JOB
from ml_assets.model.training.script.data import matrix_of
from ml_assets.model.training.script.graph import read_model, run_graph
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from ml_assets_tests.training.watcher import Watcher
from resources.job.errors import AttemptsExhausted, BadConfiguration, FailedTwice
from resources.job.events import TrainingEvent, read_events, recoveries_of
from resources.job.job import TrainingJob, TrainingResult
from resources.job.training_settings import TrainingSettings

ROOT = Path(__file__).parents[2]
EPOCHS = 14


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


def misbehaving(job: TrainingJob, how: str, **settings: Any) -> TrainingJob:
    """Return the job of a script that goes wrong in one way."""
    return dataclasses.replace(
        job,
        script="ml_assets_tests.scripts.misbehaving",
        hyperparameters={"how": how},
        settings=TrainingSettings(**settings),
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


@pytest.mark.parametrize(
    ("script", "hyperparameters"),
    [
        pytest.param("hugging_face_adapted", {"epochs": 4, "batch-size": 64}, marks=pytest.mark.nightly),
        ("plain_loop_adapted", {"epochs": 4, "batch-size": 64}),
        pytest.param("lightning_adapted", {"epochs": 4, "batch-size": 64}, marks=pytest.mark.nightly),
        ("boosting_adapted", {"rounds": 40}),
    ],
)
def test_a_killed_script_with_a_ready_callback_ends_in_the_same_weights(
    tmp_path: Path, job: TrainingJob, script: str, hyperparameters: dict[str, Any]
) -> None:
    """The work after its second checkpoint is done again, with the same random numbers."""
    name = f"ml_assets_tests.scripts.{script}"
    unbroken = dataclasses.replace(
        job, script=name, hyperparameters=hyperparameters, settings=TrainingSettings(workers=1)
    )
    killed = dataclasses.replace(unbroken, script="ml_assets_tests.scripts.dying", arguments=(name,))
    expected = Watcher().run(unbroken, tmp_path / "unbroken")
    result = Watcher().run(killed, tmp_path / "killed")
    assert (expected.attempts, result.attempts) == (1, 2)
    assert result.resumed_from_steps[0] > 0
    assert result.weights_sha256 == expected.weights_sha256
    assert result.best_validation_loss == expected.best_validation_loss
    assert (result.steps, result.epochs) == (expected.steps, expected.epochs)


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
    job = misbehaving(job, "still", workers=1, max_attempts=2, stall_timeout_seconds=1.0)
    watcher = Watcher()
    result = watcher.run(job, tmp_path)
    assert result.resumed_from_steps == (1,)
    (recovery,) = recoveries_of(read_events(tmp_path))
    assert recovery.cause.startswith("rank 0 finished no ")
    assert "in stand_still_once" in (tmp_path / "log.txt").read_text()  # where it hung


def test_a_failure_names_the_rank_that_failed_first_with_its_last_lines(
    tmp_path: Path, job: TrainingJob
) -> None:
    job = misbehaving(job, "alone", workers=3, max_attempts=1)
    with pytest.raises(AttemptsExhausted) as failed:
        Watcher().run(job, tmp_path)
    *_, frame, last = str(failed.value).splitlines()
    assert last == "ZeroDivisionError: in the batch of the last rank"
    assert "raise ZeroDivisionError" in frame
    assert re.search(r"fail: rank 2.*code 1", str(failed.value))
    (end,) = [event for event in read_events(tmp_path) if event.kind == "ended"]
    assert re.match(r"rank 2.*code 1: ZeroDivisionError", end.values["cause"])


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        (
            "after_a_checkpoint",
            FailedTwice,
            r"same place, .*: KeyError at .*misbehaving\.py:\d+ after step 2",
        ),
        ("later_each_time", AttemptsExhausted, "2 attempts failed"),
        ("network", AttemptsExhausted, "2 attempts failed"),
    ],
)
def test_a_failure_that_repeats_at_the_same_place_is_final(
    tmp_path: Path, job: TrainingJob, how: str, error: type[Exception], said: str
) -> None:
    """A typo was tried three times. Errors of networks, and failures that come later each time, keep their attempts."""
    job = misbehaving(job, how, workers=1, max_attempts=3 if error is FailedTwice else 2)
    watcher = Watcher()
    with pytest.raises(error, match=said):
        watcher.run(job, tmp_path)
    assert watcher.kinds().count("started") == 2


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
    job = misbehaving(job, "uneven", workers=2)
    with pytest.raises(BadConfiguration, match=r"rank 1 has ended.*all_ranks=True"):
        Watcher().run(job, tmp_path)
