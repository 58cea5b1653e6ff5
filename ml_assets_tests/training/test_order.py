"""The order of the data: each row once per epoch for any world size, and a pure function of the step."""

from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ml_assets.model.training.data.order import RowOrder, ShardSlice, contiguous, fewest_of_contiguous
from ml_assets.model.training.data.rowlog import digest
from resources.job.errors import BadConfiguration

SHARDS = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any).map(tuple)
ORDERS = st.builds(
    RowOrder,
    shard_units=SHARDS,
    global_batch=st.integers(1, 50),
    seed=st.integers(0, 2**40),
    lanes=st.integers(1, 12),
)
Row = tuple[int, int]


def flat(slices: list[ShardSlice]) -> list[Row]:
    return [(each.shard, int(row)) for each in slices for row in each.rows]


def everything(shard_units: tuple[int, ...]) -> list[Row]:
    return [(shard, row) for shard, rows in enumerate(shard_units) for row in range(rows)]


def worlds(order: RowOrder) -> st.SearchStrategy[int]:
    return st.integers(1, order.lanes)


@given(order=ORDERS, epoch=st.integers(0, 3), data=st.data())
def test_an_epoch_takes_each_row_once_however_often_the_world_changes(
    order: RowOrder, epoch: int, data: st.DataObject
) -> None:
    first = epoch * order.steps_per_epoch
    taken: list[Row] = []
    for step in range(first, first + order.steps_per_epoch):
        world_size = data.draw(worlds(order))
        for rank in range(world_size):
            taken += flat(order.share(step, rank, world_size))
    assert sorted(taken) == everything(order.shard_units)


@given(order=ORDERS, step=st.integers(0, 200), data=st.data())
def test_a_step_takes_the_same_rows_in_the_same_groups_for_any_world(
    order: RowOrder, step: int, data: st.DataObject
) -> None:
    world_size = data.draw(worlds(order))
    lanes = [flat(order.lane(step, lane)) for lane in range(order.lanes)]
    assert sum(map(len, lanes)) == order.batch_units(step)
    assert max(map(len, lanes)) - min(map(len, lanes)) <= 1
    for rank in range(world_size):
        mine = order.lanes_of(rank, world_size)
        assert flat(order.share(step, rank, world_size)) == [row for lane in mine for row in lanes[lane]]


@given(lanes=st.integers(1, 2000), data=st.data())
def test_every_lane_has_one_owner_and_owners_as_equally_many_as_can_be(
    lanes: int, data: st.DataObject
) -> None:
    order = RowOrder(shard_units=(10,), global_batch=5, seed=1, lanes=lanes)
    world_size = data.draw(worlds(order))
    owned = [order.lanes_of(rank, world_size) for rank in range(world_size)]
    assert [lane for mine in owned for lane in mine] == list(range(lanes))
    assert max(map(len, owned)) - min(map(len, owned)) <= 1
    assert min(map(len, owned)) >= 1


def test_more_workers_than_lanes_are_refused_with_the_remedy() -> None:
    order = RowOrder(shard_units=(10,), global_batch=5, seed=1, lanes=4)
    with pytest.raises(BadConfiguration, match=r"5 workers .*4 lanes.*`lanes`"):
        order.share(0, 0, 5)


@settings(max_examples=8, deadline=None)
@given(
    shard_units=st.lists(st.integers(1, 3000), min_size=1, max_size=6).map(tuple),
    global_batch=st.integers(1024, 4096),
    seed=st.integers(0, 2**40),
    plan=st.lists(st.integers(1, 1024), min_size=1, max_size=4),
)
def test_the_digest_of_an_epoch_is_that_of_its_rows_for_worlds_to_1024(
    shard_units: tuple[int, ...], global_batch: int, seed: int, plan: list[int]
) -> None:
    order = RowOrder(shard_units=shard_units, global_batch=global_batch, seed=seed, lanes=1024)
    offsets = [0, *accumulate(shard_units)]

    def taken() -> Iterator[NDArray[np.int64]]:
        for step in range(order.steps_per_epoch):
            world_size = plan[step % len(plan)]
            for rank in range(world_size):
                for each in order.share(step, rank, world_size):
                    yield each.rows + offsets[each.shard]

    assert digest(taken()) == digest([np.arange(order.units)])


@given(rows=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20), seed=st.integers(0, 99))
def test_a_digest_shows_lost_repeated_and_foreign_rows_but_no_order(rows: list[int], seed: int) -> None:
    array = np.array(rows, dtype=np.int64)
    shuffled = np.random.default_rng(seed).permutation(array)
    whole = digest([array])
    assert digest([shuffled[:3], shuffled[3:]]) == whole
    assert digest([array[1:]]) != whole
    assert digest([array, array[:1]]) != whole
    assert digest([array[1:], array[:1] + 1]) != whole


@given(order=ORDERS)
def test_batches_are_even_and_never_larger_than_asked_for(order: RowOrder) -> None:
    sizes = [order.batch_units(step) for step in range(order.steps_per_epoch)]
    assert sum(sizes) == order.units
    assert max(sizes) <= order.global_batch
    assert max(sizes) - min(sizes) <= 1


def test_epochs_and_seeds_have_their_own_order() -> None:
    order = RowOrder(shard_units=(50, 50), global_batch=100, seed=1, lanes=4)
    other = RowOrder(shard_units=(50, 50), global_batch=100, seed=2, lanes=4)
    orders = [flat(order.share(0, 0, 1)), flat(order.share(1, 0, 1)), flat(other.share(0, 0, 1))]
    assert len({tuple(rows) for rows in orders}) == 3
    assert orders[0] != sorted(orders[0])


def test_a_batch_mixes_rows_of_as_many_shards_as_there_are_lanes() -> None:
    order = RowOrder(shard_units=(100,) * 16, global_batch=64, seed=1, lanes=8)
    for step in range(10):
        assert len({shard for shard, _ in flat(order.share(step, 0, 1))}) == 8


@given(shard_units=SHARDS, world_size=st.integers(1, 7), batch=st.integers(1, 20))
def test_validation_reads_each_row_once_over_all_ranks(
    shard_units: tuple[int, ...], world_size: int, batch: int
) -> None:
    batches = [
        flat(slices)
        for rank in range(world_size)
        for slices in contiguous(shard_units, rank, world_size, batch)
    ]
    assert [row for rows in batches for row in rows] == everything(shard_units)
    assert all(0 < len(rows) <= batch for rows in batches)
    assert fewest_of_contiguous(shard_units, world_size, batch) == min(map(len, batches))


def test_a_share_of_a_large_shard_costs_no_more_than_its_rows() -> None:
    order = RowOrder(shard_units=(2_000_000,) * 3, global_batch=1000, seed=5, lanes=4)
    slices = order.share(700, 1, 4)
    assert all(each.rows.dtype == np.int64 for each in slices)
    assert sum(len(each.rows) for each in slices) == 250
    assert all(each.rows.base is None for each in slices)  # not a view that keeps a shard's order alive
