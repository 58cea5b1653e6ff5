"""Trainings of lists in real processes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.data.rowlog import count_rows
from ml_assets_tests.layouts.layout_jobs import MODELS, FinishedTraining, train
from ml_assets_tests.training.list_snapshots import list_snapshot
from ml_assets_tests.training.small_jobs import small_job
from resources.job.training_settings import Parallel


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return list_snapshot(tmp_path_factory.mktemp("lists"))


def trained(lists: Snapshot, folder: Path, **changes: Any) -> FinishedTraining:
    """Train two epochs of five steps of ten lists, in six lanes."""
    job = small_job(lists, f"{MODELS}.residual", "ranking", epochs=2, global_batch=12, lanes=6, **changes)
    return train(job, folder)


def test_a_ranking_has_the_same_bits_with_one_worker_and_with_three(tmp_path: Path, lists: Snapshot) -> None:
    one, three = (
        trained(lists, tmp_path / str(workers), workers=workers, determinism="bitwise") for workers in (1, 3)
    )
    assert one.result.weights_sha256 == three.result.weights_sha256
    assert one.result.best_validation_loss == three.result.best_validation_loss
    assert one.result.steps == three.result.steps == 2 * 5
    assert count_rows(three.folder, lists.rows("train"), 5).lost == 0


@pytest.mark.nightly
def test_a_ranking_in_passes_and_in_shards_has_the_same_losses(tmp_path: Path, lists: Snapshot) -> None:
    """A list is whole in a pass. FSDP's idle ranks take part with a list that does not count."""
    plain = trained(lists, tmp_path / "plain", workers=1)
    divided = trained(
        lists,
        tmp_path / "divided",
        workers=2,
        gradient_accumulation_steps=2,
        parallel=Parallel(shard="full"),
    )
    assert np.allclose(plain.curve("loss"), divided.curve("loss"), atol=1e-4)
    assert divided.result.best_validation_loss == pytest.approx(plain.result.best_validation_loss, abs=1e-4)
    assert divided.result.best_validation_loss < divided.curve("loss")[0]
