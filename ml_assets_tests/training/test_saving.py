"""Saving while training goes on, by several ranks: what is saved is the state at the request, whole or not at all."""

import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.training.checkpoints import Checkpoints
from ml_assets.training.group import Group, PeerFailed
from ml_assets.training.parts import State, share_of
from ml_assets.training.saving import Saved, Saver
from ml_assets.training.state import ALIKE, refuse_infinite
from ml_assets_tests.training.ranks import in_ranks, one_rank, save
from resources.launcher.errors import Diverged, StorageFailed


@pytest.fixture
def alone() -> Iterator[Group]:
    with one_rank() as group:
        yield group


def state(value: float, numbers: int = 50) -> State:
    return {
        "parameters": {f"weight {i}": torch.full((numbers,), value) for i in range(3)},
        "buffers": {"mean": torch.full((2,), value)},
        "progress": {"step": int(value)},
    }


@given(
    sizes=st.lists(st.integers(0, 1000), min_size=1, max_size=40),
    world_size=st.integers(1, 17),
)
def test_each_value_is_written_by_one_rank_and_all_write_about_as_much(
    sizes: list[int], world_size: int
) -> None:
    whole: State = {
        "parameters": {str(i): torch.empty(size, dtype=torch.int8) for i, size in enumerate(sizes)},
        "buffers": {"mean": torch.empty(3)},
        "progress": {"step": 7},
    }
    shares = [share_of(whole, ALIKE, rank, world_size) for rank in range(world_size)]
    written = sorted(int(name) for share in shares for name in share["parameters"])
    assert written == list(range(len(sizes)))
    assert shares[0]["progress"] == {"step": 7}
    assert [len(share["buffers"]) for share in shares] == [1] + [0] * (world_size - 1)
    loads = [sum(value.nbytes for value in share["parameters"].values()) for share in shares]
    assert max(loads) - min(loads) <= max(sizes)


def test_what_is_saved_is_the_state_at_the_request_however_it_changes_meanwhile(
    alone: Group, tmp_path: Path
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    go_on, told = threading.Event(), list[Saved]()
    saver = Saver(checkpoints, alone)

    def hold(_: State) -> None:
        assert go_on.wait(10)

    living = state(1.0)
    saver.begin(1, living, 0, hold, told.append)
    for value in living["parameters"].values():
        value.fill_(2.0)
    assert (checkpoints.steps(), told) == ([], [])  # begun, and counts for nothing
    go_on.set()
    saver.begin(2, living, 1, lambda _: None, told.append)  # waits for the first, and uses its memory again
    saver.wait()
    assert [(saved.step, saved.best_step) for saved in told] == [(1, 0), (2, 1)]
    for step in (1, 2):
        assert checkpoints.load(step)["parameters"]["weight 0"].tolist() == [float(step)] * 50


def test_a_save_that_fails_is_known_and_told_at_the_next_wait(alone: Group, tmp_path: Path) -> None:
    checkpoints, saver = Checkpoints(tmp_path, keep=3), Saver(Checkpoints(tmp_path, keep=3), alone)
    save(checkpoints, 1, state(1.0))
    checkpoints.writing.write_text("a file where a folder is to be")
    saver.begin(2, state(2.0), 0, lambda _: None, lambda _: pytest.fail("it does not count"))
    with pytest.raises(StorageFailed, match=r"could not be written to .*checkpoints"):
        saver.wait()
    assert not saver.has_failed  # told
    checkpoints.writing.unlink()
    assert checkpoints.newest_good() == 1


def test_weights_that_are_not_finite_are_not_kept(alone: Group, tmp_path: Path) -> None:
    checkpoints, saver = Checkpoints(tmp_path, keep=3), Saver(Checkpoints(tmp_path, keep=3), alone)
    spoiled = state(1.0)
    spoiled["parameters"]["weight 1"][7] = torch.inf
    saver.begin(1, spoiled, 0, lambda copy: refuse_infinite(copy, 1), lambda _: None)
    with pytest.raises(Diverged, match="after step 1 weight 1 has a value that is not finite"):
        saver.wait()
    assert checkpoints.steps() == []


def save_its_part(group: Group, place: Path) -> None:
    saver = Saver(Checkpoints(place, keep=3), group)
    mine = state(5.0)
    mine["buffers"]["mean"].fill_(group.rank)
    saver.begin(5, mine, 0, lambda _: None, lambda _: None)
    saver.wait()


def save_and_fail_as_rank_1(group: Group, place: Path) -> None:
    saver = Saver(Checkpoints(place, keep=3), group)
    saver.begin(5, state(5.0), 0, lambda _: None, lambda _: None)
    saver.wait()
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    if group.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, unlimited[1]))
    saver.begin(6, state(6.0, 9000), 0, lambda _: None, lambda _: None)
    try:
        saver.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)


def test_what_two_ranks_wrote_one_reads_whole(tmp_path: Path) -> None:
    assert in_ranks(2, tmp_path, save_its_part) == [None, None]
    parts = (tmp_path / "checkpoints/step-00000005").glob("*.distcp")
    assert all(part.stat().st_size > 200 for part in parts)
    loaded = Checkpoints(tmp_path, keep=3).load(5)
    assert sorted(loaded["parameters"]) == ["weight 0", "weight 1", "weight 2"]
    assert loaded["buffers"]["mean"].tolist() == [0.0, 0.0]  # rank 0's
    assert loaded["progress"] == {"step": 5}


def test_a_part_that_cannot_be_written_keeps_the_whole_from_counting_on_every_rank(tmp_path: Path) -> None:
    first, second = in_ranks(2, tmp_path, save_and_fail_as_rank_1)
    assert isinstance(first, PeerFailed)
    assert isinstance(second, StorageFailed), second
    assert "File too large" in str(second)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000005"]
    assert Checkpoints(tmp_path, keep=3).newest_good() == 5
