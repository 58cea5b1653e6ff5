"""The prefetcher hands out what the order says, from any step on, and leaves no thread behind."""

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.data.batches import Batch, SplitReader
from ml_assets.model.training.data.order import RowOrder, ShardSlice
from ml_assets.model.training.data.prefetcher import Prefetcher
from ml_assets.model.training.data.rowlog import digest


@pytest.fixture(scope="module")
def reader(snapshot: Snapshot) -> SplitReader:
    return SplitReader(snapshot, "train", torch.device("cpu"))


def order_of(reader: SplitReader, global_batch: int = 100, lanes: int = 6) -> RowOrder:
    return RowOrder(shard_units=reader.shard_units, global_batch=global_batch, seed=5, lanes=lanes)


def assert_same(batch: Batch, expected: Batch) -> None:
    assert batch.row.tolist() == expected.row.tolist()
    assert torch.equal(batch.numeric.nan_to_num(9), expected.numeric.nan_to_num(9))
    assert torch.equal(batch.category, expected.category)
    assert torch.equal(batch.label, expected.label)


@settings(max_examples=10, deadline=None)
@given(
    global_batch=st.integers(1, 400),
    lanes=st.integers(1, 8),
    first_step=st.integers(0, 50),
    data=st.data(),
)
def test_a_feed_from_any_step_hands_out_the_rows_of_the_order(
    reader: SplitReader, global_batch: int, lanes: int, first_step: int, data: st.DataObject
) -> None:
    order = order_of(reader, global_batch, lanes)
    world_size = data.draw(st.integers(1, lanes))
    rank = data.draw(st.integers(0, world_size - 1))
    with (
        Prefetcher(order, reader, rank, world_size, first_step) as merged,
        Prefetcher(order, reader, rank, world_size, first_step) as split,
    ):
        for step in range(first_step, first_step + 5):
            assert_same(merged.merged(step), reader.take(order.share(step, rank, world_size)))
            batches = split.by_lane(step)
            mine = order.lanes_of(rank, world_size)
            for lane, batch in zip(mine, batches, strict=True):
                assert_same(batch, reader.take(order.lane(step, lane)))


def test_feeds_hand_out_each_row_once_an_epoch_as_the_world_size_changes(
    snapshot: Snapshot, reader: SplitReader
) -> None:
    order = order_of(reader)
    rows = []
    for first, last, world_size in ((0, 3, 4), (3, 4, 3), (4, order.steps_per_epoch, 6)):
        for rank in range(world_size):
            with Prefetcher(order, reader, rank, world_size, first) as prefetcher:
                rows += [prefetcher.merged(step).row for step in range(first, last)]
    assert digest(rows) == digest([snapshot.read("train").row])


def test_another_step_than_the_next_is_refused(reader: SplitReader) -> None:
    with Prefetcher(order_of(reader), reader, 0, 1, 7) as prefetcher:
        prefetcher.merged(7)
        with pytest.raises(ValueError, match=r"step 7.*8 is next"):
            prefetcher.merged(7)


def test_an_error_of_the_thread_reaches_who_asks_for_the_batch(reader: SplitReader) -> None:
    order = replace(order_of(reader), shard_units=(*reader.shard_units, 300))  # of a shard that is not there
    with Prefetcher(order, reader, 0, 1, 0) as prefetcher, pytest.raises(IndexError):
        list(map(prefetcher.merged, range(order.steps_per_epoch)))
    assert threads() == []


class CountingReader(SplitReader):
    """Counts what it gathered in one go."""

    gathered = 0

    def gather(self, slices: Sequence[ShardSlice]) -> Batch:
        self.gathered += 1
        return super().gather(slices)


def test_a_feed_gathers_so_far_ahead_and_no_farther_and_ends_its_thread(snapshot: Snapshot) -> None:
    reader = CountingReader(snapshot, "train", torch.device("cpu"))
    with Prefetcher(order_of(reader), reader, 0, 1, 0) as prefetcher:
        assert len(threads()) == 1
        for step in range(40):  # some bytes each: sixteen are gathered in one go
            prefetcher.merged(step)
    assert threads() == []
    assert 40 / 16 <= reader.gathered <= 40 / 16 + 4


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetcher")]
