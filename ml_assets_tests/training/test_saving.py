"""Saving while training goes on, by several ranks: what is saved is the state at the request, whole or not at all."""

import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.model.training.checkpoint.checkpoints import Checkpoints
from ml_assets.model.training.checkpoint.parts import State, share_of
from ml_assets.model.training.checkpoint.saving import ALIKE, Saved, Saver, refuse_infinite, restore, state_of
from ml_assets.model.training.process.group import Group, PeerFailed
from ml_assets_tests.training.rank_processes import in_ranks, one_rank, save
from resources.job.errors import Diverged, StorageFailed
from resources.job.training_settings import CheckpointStorage


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


def test_a_save_holds_the_state_at_its_request(alone: Group, tmp_path: Path) -> None:
    """The state may change while the save is being written."""
    checkpoints = Checkpoints(tmp_path, 3, "f")
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
    checkpoints, saver = Checkpoints(tmp_path, 3, "f"), Saver(Checkpoints(tmp_path, 3, "f"), alone)
    save(checkpoints, 1, state(1.0))
    checkpoints.writing.write_text("a file where a folder is to be")
    saver.begin(2, state(2.0), 0, lambda _: None, lambda _: pytest.fail("it does not count"))
    with pytest.raises(StorageFailed, match=r"written to .*checkpoints"):
        saver.wait()
    assert not saver.has_failed  # told
    checkpoints.writing.unlink()
    assert checkpoints.newest_good() == 1


def test_weights_that_are_not_finite_are_not_kept(alone: Group, tmp_path: Path) -> None:
    checkpoints, saver = Checkpoints(tmp_path, 3, "f"), Saver(Checkpoints(tmp_path, 3, "f"), alone)
    spoiled = state(1.0)
    spoiled["parameters"]["weight 1"][7] = torch.inf
    saver.begin(1, spoiled, 0, lambda copy: refuse_infinite(copy, 1), lambda _: None)
    with pytest.raises(Diverged, match=r"step 1 weight.*not finite"):
        saver.wait()
    assert checkpoints.steps() == []


def faults_of_first_save(saver: Saver, state: State) -> int:
    """Return the number of page faults of the loop's first save."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    saver.begin(1, state, 0, lambda _: None, lambda _: None)
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    saver.wait()
    return faults


def test_the_memory_of_the_first_save_is_made_before_it(alone: Group, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 3, "f")
    large: State = {"parameters": {f"weight {i}": torch.ones(2_000_000) for i in range(3)}}
    pages = 3 * 8_000_000 // resource.getpagesize()
    saver = Saver(checkpoints, alone)
    asked = list[int]()
    for _ in range(3):  # after each step
        saver.make_memory(lambda: asked.append(1) or large)
    large["parameters"]["weight 1"].fill_(7.0)
    assert faults_of_first_save(saver, large) < pages / 10
    assert len(asked) == 1
    assert checkpoints.load(1)["parameters"]["weight 1"].unique().tolist() == [7.0]


@pytest.mark.parametrize("storage", ["fp32", "compressed", "bf16"])
def test_what_is_stored_is_the_state_to_the_bit_or_rounded_to_bf16(
    alone: Group, tmp_path: Path, storage: CheckpointStorage
) -> None:
    checkpoints = Checkpoints(tmp_path, 3, "f")
    model = torch.nn.Sequential(torch.nn.Linear(300, 100), torch.nn.BatchNorm1d(100))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.randn(4, 300)).square().sum().backward()
    optimizer.step()
    for kept in optimizer.state.values():
        kept["step"].fill_(1001)  # which bf16 cannot hold
    saver = Saver(checkpoints, alone, storage=storage)
    living = state_of(model, optimizer, {"step": 1001})
    saver.begin(1, living, 0, lambda _: None, lambda _: None)
    saver.wait()
    loaded = checkpoints.load(1)
    assert loaded["progress"] == {"step": 1001}
    for section in ("parameters", "optimizer", "buffers"):
        for name, value in living[section].items():
            back = loaded[section][name]
            assert back.shape == value.shape
            if storage == "bf16" and section != "buffers" and value.dim():
                assert (back.dtype, torch.equal(back, value.to(torch.bfloat16))) == (torch.bfloat16, True)
            else:
                assert (back.dtype, torch.equal(back, value)) == (value.dtype, True)
    restore(loaded, model, optimizer)
    assert {value.dtype for value in state_of(model, optimizer, {})["optimizer"].values()} == {torch.float32}
    again = state_of(model, optimizer, {})
    assert torch.equal(
        again["optimizer"]["0.weight/exp_avg"], loaded["optimizer"]["0.weight/exp_avg"].float()
    )
    assert again["optimizer"]["0.weight/step"].item() == 1001


def test_fewer_bytes_are_stored_where_it_is_asked_for(alone: Group, tmp_path: Path) -> None:
    weights: State = {"parameters": {"weight": torch.randn(100_000)}}
    sizes: dict[CheckpointStorage, int] = {}
    for storage in get_args(CheckpointStorage):
        saver = Saver(Checkpoints(tmp_path / storage, 3, "f"), alone, storage=storage)
        saver.begin(1, weights, 0, lambda _: None, lambda _: None)
        saver.wait()
        sizes[storage] = sum(part.stat().st_size for part in (tmp_path / storage).rglob("*.distcp"))
    assert sizes["fp32"] > 400_000
    assert sizes["bf16"] < 0.51 * sizes["fp32"]
    assert sizes["compressed"] < 0.95 * sizes["fp32"]


def save_its_part(group: Group, place: Path) -> None:
    saver = Saver(Checkpoints(place, 3, "f"), group.io_group())
    mine = state(5.0)
    mine["buffers"]["mean"].fill_(group.rank)
    saver.begin(5, mine, 0, lambda _: None, lambda _: None)
    saver.wait()


def save_and_fail_as_rank_1(group: Group, place: Path) -> None:
    saver = Saver(Checkpoints(place, 3, "f"), group.io_group())
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
    loaded = Checkpoints(tmp_path, 3, "f").load(5)
    assert sorted(loaded["parameters"]) == ["weight 0", "weight 1", "weight 2"]
    assert loaded["buffers"]["mean"].tolist() == [0.0, 0.0]  # rank 0's
    assert loaded["progress"] == {"step": 5}


def test_a_checkpoint_with_an_unwritable_part_counts_on_no_rank(tmp_path: Path) -> None:
    first, second = in_ranks(2, tmp_path, save_and_fail_as_rank_1)
    assert isinstance(first, PeerFailed)
    assert isinstance(second, StorageFailed), second
    assert "File too large" in str(second)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000005"]
    assert Checkpoints(tmp_path, 3, "f").newest_good() == 5
