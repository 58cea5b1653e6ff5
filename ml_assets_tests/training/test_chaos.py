"""However often a training is killed, it ends in the weights of a training that was not."""

import dataclasses
from pathlib import Path

import pytest

from ml_assets_tests.training.chaos import train_through_kills
from ml_assets_tests.training.jobs import assert_each_row_once_per_epoch, small_job, small_snapshot
from resources.launcher.local import LocalLauncher


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_seeded_kills_change_no_bit_and_lose_no_row(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    kills = pytestconfig.getoption("--chaos-rounds") // 3  # each costs a start of the ranks
    snapshot = small_snapshot(tmp_path / "snapshots")
    job = small_job(snapshot, epochs=kills // 2 + 1, patience=kills, pace=0.008, max_attempts=10 * kills)
    folder = tmp_path / "killed"
    folder.mkdir()
    result, killed = train_through_kills(job, folder, seed=2013, kills=kills)
    assert killed
    assert_each_row_once_per_epoch(folder, snapshot, job)
    # The pace is a hyperparameter, so the job without it is another one, with the same arithmetic.
    swift = dataclasses.replace(job, hyperparameters={})
    unbroken = LocalLauncher().run(swift, tmp_path / "unbroken", lambda _: None, lambda _: None)
    assert result.weights_sha256 == unbroken.weights_sha256
