"""Checkpoints: whole or absent, the newest few and the best kept, damage noticed."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ml_assets.training.checkpoints import CheckpointDamaged, Checkpoints


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path, keep=3)


def state(step: int) -> dict[str, Any]:
    return {"model": {"weight": torch.full((50,), float(step))}, "step": step}


def folder_of(tmp_path: Path, step: int) -> Path:
    return tmp_path / "checkpoints" / f"step-{step:08d}"


def test_what_is_saved_is_loaded(checkpoints: Checkpoints) -> None:
    checkpoints.save(7, state(7), best_step=0)
    loaded = checkpoints.load(7)
    assert loaded["step"] == 7
    assert torch.equal(loaded["model"]["weight"], torch.full((50,), 7.0))
    assert checkpoints.newest_good() == 7


def test_the_newest_three_and_the_best_are_kept(checkpoints: Checkpoints) -> None:
    for step in range(10, 80, 10):
        checkpoints.save(step, state(step), best_step=20 if step >= 20 else 0)
    assert checkpoints.steps() == [70, 60, 50, 20]


def test_without_a_checkpoint_training_starts_from_nothing(checkpoints: Checkpoints) -> None:
    assert checkpoints.newest_good() is None


@pytest.mark.parametrize("damage", ["cut off", "flipped bit", "no marker", "marker cut off", "empty folder"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    checkpoints: Checkpoints, tmp_path: Path, damage: str
) -> None:
    for step in (10, 20):
        checkpoints.save(step, state(step), best_step=0)
    content, marker = folder_of(tmp_path, 20) / "state.pt", folder_of(tmp_path, 20) / "commit.json"
    if damage == "cut off":
        content.write_bytes(content.read_bytes()[:-1])
    elif damage == "flipped bit":
        content.write_bytes(bytes([content.read_bytes()[0] ^ 1]) + content.read_bytes()[1:])
    elif damage == "marker cut off":
        marker.write_text(marker.read_text()[:20])
    else:
        marker.unlink()
        if damage == "empty folder":
            content.unlink()
    assert checkpoints.newest_good() == 10
    with pytest.raises(CheckpointDamaged):
        checkpoints.load(20)


def test_a_checkpoint_is_no_good_without_the_best_one_it_names(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    for step, best in ((10, 10), (20, 20), (30, 20)):
        checkpoints.save(step, state(step), best_step=best)
    (folder_of(tmp_path, 20) / "state.pt").unlink()
    assert checkpoints.newest_good() == 10


def test_saving_after_a_fallback_removes_what_was_given_up(checkpoints: Checkpoints, tmp_path: Path) -> None:
    for step in (10, 20, 30):
        checkpoints.save(step, state(step), best_step=0)
    for step in (20, 30):
        (folder_of(tmp_path, step) / "state.pt").unlink()
    assert checkpoints.newest_good() == 10
    checkpoints.save(15, state(15), best_step=0)
    assert checkpoints.steps() == [15, 10]


def test_a_save_that_was_cut_off_is_invisible_and_gives_way(checkpoints: Checkpoints, tmp_path: Path) -> None:
    checkpoints.save(10, state(10), best_step=0)
    half = tmp_path / "checkpoints" / ".writing"
    half.mkdir()
    (half / "state.pt").write_bytes(b"half")
    assert checkpoints.steps() == [10]
    checkpoints.save(20, state(20), best_step=0)
    assert checkpoints.newest_good() == 20
    assert not half.exists()
