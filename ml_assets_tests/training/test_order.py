"""The order of the data: each row once per epoch for any world size, and a pure function of the step."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.training.order import Order, Piece, contiguous

SHARDS = st.lists(st.integers(1, 40), min_size=1, max_size=5).map(tuple)
ORDERS = st.builds(Order, shard_rows=SHARDS, global_batch=st.integers(1, 50), seed=st.integers(0, 2**40))
Row = tuple[int, int]


def flat(pieces: list[Piece]) -> list[Row]:
    return [(piece.shard, int(row)) for piece in pieces for row in piece.rows]


def everything(shard_rows: tuple[int, ...]) -> list[Row]:
    return [(shard, row) for shard, rows in enumerate(shard_rows) for row in range(rows)]


@given(order=ORDERS, epoch=st.integers(0, 3), world_size=st.integers(1, 7))
def test_an_epoch_takes_each_row_once_whatever_the_world(order: Order, epoch: int, world_size: int) -> None:
    first = epoch * order.steps_per_epoch
    taken = [
        row
        for step in range(first, first + order.steps_per_epoch)
        for rank in range(world_size)
        for row in flat(order.share(step, rank, world_size))
    ]
    assert sorted(taken) == everything(order.shard_rows)


@given(order=ORDERS, step=st.integers(0, 200), world_size=st.integers(1, 7))
def test_a_step_takes_the_same_rows_in_the_same_order_for_any_world(
    order: Order, step: int, world_size: int
) -> None:
    shares = [flat(order.share(step, rank, world_size)) for rank in range(world_size)]
    assert [row for share in shares for row in share] == flat(order.share(step, 0, 1))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert sum(map(len, shares)) == order.batch_rows(step)


@given(order=ORDERS)
def test_batches_are_even_and_never_larger_than_asked_for(order: Order) -> None:
    sizes = [order.batch_rows(step) for step in range(order.steps_per_epoch)]
    assert sum(sizes) == order.rows
    assert max(sizes) <= order.global_batch
    assert max(sizes) - min(sizes) <= 1


def test_epochs_and_seeds_have_their_own_order() -> None:
    order = Order(shard_rows=(50, 50), global_batch=100, seed=1)
    other = Order(shard_rows=(50, 50), global_batch=100, seed=2)
    orders = [flat(order.share(0, 0, 1)), flat(order.share(1, 0, 1)), flat(other.share(0, 0, 1))]
    assert len({tuple(rows) for rows in orders}) == 3
    assert orders[0] != sorted(orders[0])


@given(shard_rows=SHARDS, world_size=st.integers(1, 7), batch=st.integers(1, 20))
def test_validation_reads_each_row_once_over_all_ranks(
    shard_rows: tuple[int, ...], world_size: int, batch: int
) -> None:
    batches = [
        flat(pieces)
        for rank in range(world_size)
        for pieces in contiguous(shard_rows, rank, world_size, batch)
    ]
    assert [row for rows in batches for row in rows] == everything(shard_rows)
    assert all(0 < len(rows) <= batch for rows in batches)


def test_a_share_of_a_large_shard_costs_no_more_than_its_rows() -> None:
    order = Order(shard_rows=(2_000_000,) * 3, global_batch=1000, seed=5)
    (piece,) = order.share(700, 1, 4)
    assert piece.rows.dtype == np.int64
    assert len(piece.rows) == 250
