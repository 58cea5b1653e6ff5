"""Batches hold what the shards say, row by row, in the order asked for."""

from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.data.snapshots.shards import Rows
from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.data.batches import Batch, SplitReader
from ml_assets.model.training.data.order import ShardSlice
from ml_assets_tests.training.small_jobs import small_snapshot

CPU = torch.device("cpu")


def assert_rows(batch: Batch, snapshot: Snapshot, wanted: list[tuple[int, int]]) -> None:
    shards: list[Rows] = [snapshot.map(shard) for shard in snapshot.shards_of("train")]
    assert len(batch) == len(batch.label) == len(batch.numeric) == len(batch.category) == len(wanted)
    for i, (shard, row) in enumerate(wanted):
        assert np.array_equal(batch.numeric[i].numpy(), shards[shard].numeric[row], equal_nan=True)
        assert batch.category[i].tolist() == shards[shard].category[row].tolist()
        assert batch.label[i] == shards[shard].label[row]
        assert batch.row[i] == shards[shard].row[row]


@given(wanted=st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 332), max_size=6)), max_size=6))
def test_a_batch_holds_the_rows_of_its_pieces_in_order(
    snapshot: Snapshot, wanted: list[tuple[int, list[int]]]
) -> None:
    reader = SplitReader(snapshot, "train", CPU)
    batch = reader.take([ShardSlice(shard, np.array(rows, dtype=np.int64)) for shard, rows in wanted])
    assert_rows(batch, snapshot, [(shard, row) for shard, rows in wanted for row in rows])
    assert batch.numeric.shape == (len(batch), 3)
    assert batch.category.shape == (len(batch), 1)
    assert (batch.numeric.dtype, batch.category.dtype, batch.label.dtype, batch.row.dtype) == (
        torch.float32,
        torch.int64,
        torch.float32,
        np.int64,
    )
    held = (batch.numeric, batch.category, batch.label)
    assert sum(t.numel() * t.element_size() for t in held) + batch.row.nbytes == reader.row_bytes * len(batch)


def test_the_parts_of_a_batch_are_views_of_it(snapshot: Snapshot) -> None:
    batch = SplitReader(snapshot, "train", CPU).take([ShardSlice(1, np.arange(10))])
    parts = batch.split([3, 0, 7])
    assert [len(part) for part in parts] == [3, 0, 7]
    assert_rows(parts[2], snapshot, [(1, row) for row in range(3, 10)])
    batch.numeric[4, 0] = 77
    assert parts[2].numeric[1, 0] == 77


def test_a_batch_may_be_changed_without_changing_the_shard(tmp_path: Path) -> None:
    snapshot = small_snapshot(tmp_path)
    reader = SplitReader(snapshot, "train", CPU)
    reader.take([ShardSlice(0, np.arange(5))]).numeric.fill_(9)
    assert_rows(reader.take([ShardSlice(0, np.arange(5))]), snapshot, [(0, row) for row in range(5)])
