"""However often a training is killed, and with however many workers it goes on, it ends in the weights of one worker
that nobody disturbed."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from ml_assets.extras.drills.fixture import train_undisturbed
from ml_assets.model.training.attempt.attempts import read_attempts
from ml_assets_tests.faults.random_kills import train_through_kills
from ml_assets_tests.faults.summary import KILLED
from ml_assets_tests.training.small_jobs import assert_each_row_once_per_epoch, small_job, small_snapshot


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_random_kills_change_no_bit_and_lose_no_row(
    tmp_path: Path, pytestconfig: pytest.Config, record_property: Callable[[str, object], None]
) -> None:
    """The number of workers changes too, each time the launcher dies."""
    kills = max(1, pytestconfig.getoption("--chaos-rounds") // 6)  # each costs a start of the ranks
    snapshot = small_snapshot(tmp_path / "snapshots")
    job = small_job(
        snapshot,
        epochs=kills + 2,
        patience=kills + 2,
        global_batch=24,
        lanes=12,
        determinism="bitwise",
        pace=0.002,  # of a lane
        max_attempts=10 * kills,
    )
    folder = tmp_path / "killed"
    folder.mkdir()
    result, killed = train_through_kills(job, folder, seed=2013, kills=kills)
    assert killed
    record_property(KILLED, len(killed))
    assert_each_row_once_per_epoch(folder, snapshot, job)
    # The pace is a hyperparameter, so the job without it is another one, with the same arithmetic.
    alone = dataclasses.replace(job.settings, workers=1)
    swift = dataclasses.replace(job, hyperparameters={}, settings=alone)
    undisturbed = train_undisturbed(swift, tmp_path / "undisturbed")
    assert undisturbed.world_size == 1
    assert len({attempt.world_size for attempt in read_attempts(folder)}) > 1
    assert result.weights_sha256 == undisturbed.weights_sha256
