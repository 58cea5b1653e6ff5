"""Whatever lies on which rank, a training is the same: its losses, its rows, its weights, also through a kill."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.step.load import load_model, predict
from ml_assets_tests.layouts.layout_jobs import FinishedTraining, residual_job, train
from ml_assets_tests.training.small_jobs import (
    assert_each_row_once_per_epoch,
    feature_table,
    small_snapshot,
    with_weights,
)
from resources.job.events import TrainingEvent
from resources.job.job import TrainingJob, TrainingResult
from resources.launcher.local import LocalLauncher


@pytest.fixture(scope="module")
def alone(snapshot: Snapshot, tmp_path_factory: pytest.TempPathFactory) -> FinishedTraining:
    """One rank, which has everything."""
    return train(residual_job(snapshot, 1), tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize(
    ("workers", "parallel"),
    [
        pytest.param(3, {"shard": "optimizer"}, id="optimizer"),
        pytest.param(2, {"shard": "gradients"}, id="gradients"),
        pytest.param(3, {"shard": "full"}, id="full"),
        pytest.param(2, {"tensor": 2}, id="tensor"),
        pytest.param(4, {"tensor": 2}, id="replicas of tensor"),
        pytest.param(2, {"pipeline": 2}, id="pipeline"),
    ],
)
def test_a_layout_changes_nothing_but_the_rounding(
    tmp_path: Path, snapshot: Snapshot, alone: FinishedTraining, workers: int, parallel: dict[str, Any]
) -> None:
    job = residual_job(snapshot, workers, **parallel)
    assert_like(train(job, tmp_path), alone, job, snapshot)


def assert_like(
    trained: FinishedTraining, alone: FinishedTraining, job: TrainingJob, snapshot: Snapshot
) -> None:
    for name in ("loss", "gradient_norm"):
        assert trained.curve(name) == pytest.approx(alone.curve(name), rel=2e-3)
    assert trained.result.best_validation_loss == pytest.approx(alone.result.best_validation_loss, rel=1e-3)
    assert_each_row_once_per_epoch(trained.folder, snapshot, job)
    expected, found = load_file(alone.result.weights), load_file(trained.result.weights)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=2e-2, atol=2e-3)
    model = load_model(job, snapshot.inputs, Path(trained.result.weights))
    assert predict(model, "binary", snapshot.read("validation")).shape == (200,)


def test_a_pipeline_passes_the_weights_of_rows_along(tmp_path: Path, alone: FinishedTraining) -> None:
    table = with_weights(feature_table())
    snapshot = small_snapshot(tmp_path / "weighted", table, weight="weight")
    one, two = (
        train(residual_job(snapshot, workers, pipeline=workers), tmp_path / f"{workers} ranks")
        for workers in (1, 2)
    )
    for name in ("loss", "gradient_norm"):
        assert two.curve(name) == pytest.approx(one.curve(name), rel=2e-3)
        assert two.curve(name) != pytest.approx(alone.curve(name), rel=2e-3)
    assert two.result.best_validation_loss == pytest.approx(one.result.best_validation_loss, rel=1e-3)


@pytest.mark.nightly
def test_sharded_tensor_parallel_layers_change_nothing(
    tmp_path: Path, snapshot: Snapshot, alone: FinishedTraining
) -> None:
    """A killed rank changes nothing either: no row and no bit is lost."""
    job = residual_job(snapshot, 4, shard="full", tensor=2)
    unbroken = train(job, tmp_path / "unbroken")
    assert_like(unbroken, alone, job, snapshot)
    killed: list[int] = []

    def kill(event: TrainingEvent) -> None:
        if event.kind == "started" and not killed:
            killed.append(event.values["pids"][3])
        if event.kind == "checkpoint" and len(killed) == 1:
            os.kill(killed[0], signal.SIGKILL)
            killed.append(event.step)

    result: TrainingResult = LocalLauncher().run(job, tmp_path / "killed", kill, lambda _: None)
    assert result.attempts == 2
    assert result.resumed_from_steps[0] >= killed[1]
    assert result.weights_sha256 == unbroken.result.weights_sha256
    assert_each_row_once_per_epoch(tmp_path / "killed", snapshot, job)
