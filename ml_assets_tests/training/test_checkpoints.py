"""Checkpoints: whole or absent, the newest few and the best kept, damage noticed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ml_assets.model.training.attempt.attempts import Attempt
from ml_assets.model.training.checkpoint.checkpoints import CheckpointDamaged, Checkpoints
from ml_assets.model.training.checkpoint.parts import State
from ml_assets_tests.training.rank_processes import one_rank, save


@pytest.fixture(scope="module", autouse=True)
def _one_rank() -> Iterator[None]:
    with one_rank():
        yield


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path, 3, "f")


def state(step: int) -> State:
    return {"parameters": {"weight": torch.full((50,), float(step))}, "progress": {"step": step}}


def folder_of(tmp_path: Path, step: int) -> Path:
    return tmp_path / "checkpoints" / f"step-{step:08d}"


def test_what_is_saved_is_loaded(checkpoints: Checkpoints) -> None:
    save(checkpoints, 7, state(7))
    loaded = checkpoints.load(7)
    assert loaded["progress"]["step"] == 7
    assert torch.equal(loaded["parameters"]["weight"], torch.full((50,), 7.0))
    assert checkpoints.newest_good() == 7


def test_the_newest_three_and_the_best_are_kept(checkpoints: Checkpoints) -> None:
    for step in range(10, 80, 10):
        save(checkpoints, step, state(step), best_step=20 if step >= 20 else 0)
    assert checkpoints.steps() == [70, 60, 50, 20]


def test_the_best_one_that_an_older_one_names_stays_with_it(checkpoints: Checkpoints, tmp_path: Path) -> None:
    for step, best in ((10, 10), (20, 10), (30, 30), (40, 30)):
        save(checkpoints, step, state(step), best_step=best)
    assert checkpoints.steps() == [40, 30, 20, 10]
    for step in (40, 30):
        (folder_of(tmp_path, step) / "__0_0.distcp").unlink()
    assert checkpoints.newest_good() == 20  # with 30, the best one, gone, too


def test_what_the_running_attempt_began_from_stays(checkpoints: Checkpoints) -> None:
    save(checkpoints, 10, state(10))
    checkpoints.begin(Attempt(number=2, from_step=10, world_size=1, started=0.0))
    for step in range(20, 80, 10):
        save(checkpoints, step, state(step))
    assert checkpoints.steps() == [70, 60, 50, 10]


def test_a_checkpoint_of_another_training_counts_for_nothing(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    save(checkpoints, 10, state(10))
    save(Checkpoints(tmp_path / "other", 3, "another one"), 20, state(20))
    folder_of(tmp_path / "other", 20).rename(folder_of(tmp_path, 20))
    assert checkpoints.newest_good() == 10
    with pytest.raises(CheckpointDamaged, match=r"training another one,.*f:.*init_from"):
        checkpoints.load(20)


def test_without_a_checkpoint_training_starts_from_nothing(checkpoints: Checkpoints) -> None:
    assert checkpoints.newest_good() is None


@pytest.mark.parametrize(
    "damage",
    ["cut off", "flipped bit", "no index", "no marker", "marker cut off", "empty folder", "older version"],
)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    checkpoints: Checkpoints, tmp_path: Path, damage: str
) -> None:
    for step in (10, 20):
        save(checkpoints, step, state(step))
    folder = folder_of(tmp_path, 20)
    content, marker = folder / "__0_0.distcp", folder / "commit.json"
    if damage == "cut off":
        content.write_bytes(content.read_bytes()[:-1])
    elif damage == "flipped bit":
        content.write_bytes(bytes([content.read_bytes()[0] ^ 1]) + content.read_bytes()[1:])
    elif damage == "no index":
        (folder / ".metadata").unlink()
    elif damage == "older version":
        marker.write_text(json.dumps({"fingerprint": "f", "best_step": 0, "sha256": {}}))
    elif damage == "marker cut off":
        marker.write_text(marker.read_text()[:20])
    else:
        marker.unlink()
        if damage == "empty folder":
            content.unlink()
            (folder / ".metadata").unlink()
    assert checkpoints.newest_good() == 10
    with pytest.raises(CheckpointDamaged):
        checkpoints.load(20)


@pytest.mark.parametrize(
    "altered",
    [
        {"best_step": "20"},
        {"best_step": -1},
        {"best_step": None},
        {"sha256": None},
        {"sha256": [".metadata"]},
        {"sha256": {".metadata": 5}},
        {"sha256": {".metadata": "0" * 64, "../step-00000010/__0_0.distcp": "0" * 64}},
        {"fingerprint": 3},
    ],
)
def test_a_marker_of_other_values_is_a_damaged_checkpoint(
    checkpoints: Checkpoints, tmp_path: Path, altered: dict[str, Any]
) -> None:
    """Each attempt ended with a `TypeError`."""
    for step in (10, 20):
        save(checkpoints, step, state(step))
    marker = folder_of(tmp_path, 20) / "commit.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), **altered}))
    assert checkpoints.newest_good() == 10


def test_a_checkpoint_is_no_good_without_the_best_one_it_names(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    for step, best in ((10, 10), (20, 20), (30, 20)):
        save(checkpoints, step, state(step), best_step=best)
    (folder_of(tmp_path, 20) / "__0_0.distcp").unlink()
    assert checkpoints.newest_good() == 10


def test_saving_after_a_fallback_removes_what_was_given_up(checkpoints: Checkpoints, tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(checkpoints, step, state(step))
    for step in (20, 30):
        (folder_of(tmp_path, step) / "__0_0.distcp").unlink()
    assert checkpoints.newest_good() == 10
    save(checkpoints, 15, state(15))
    assert checkpoints.steps() == [15, 10]


def test_a_save_that_was_cut_off_is_invisible_and_gives_way(checkpoints: Checkpoints, tmp_path: Path) -> None:
    save(checkpoints, 10, state(10))
    half = tmp_path / "checkpoints" / ".writing"
    half.mkdir()
    (half / "__0_0.distcp").write_bytes(b"half")
    assert checkpoints.steps() == [10]
    save(checkpoints, 20, state(20))
    assert checkpoints.newest_good() == 20
    assert not half.exists()
