"""Shards that come while they are needed: the rows of those that lay here, in bounded room."""

import dataclasses
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets.data.snapshots.split_reader import MANIFEST, Shard, Snapshot, open_snapshot
from ml_assets.model.training.data.batches import SplitReader
from ml_assets.model.training.data.order import RowOrder
from ml_assets.model.training.data.prefetcher import Prefetcher
from ml_assets.model.training.data.rowlog import RowLog
from ml_assets.model.training.data.streaming import ShardCache, ShardSource, StreamedShards
from ml_assets.model.training.loop import fit
from ml_assets.model.training.process.heartbeat import Heartbeat
from ml_assets.model.training.process.stop import StopRequest
from ml_assets.model.training.run import Run, prepare
from ml_assets_tests.training.rank_processes import one_rank
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from ml_assets_tests.training.small_models import read_tokens
from ml_assets_tests.training.streaming.shard_store import ShardStore, lies_in, room_for, size_of
from resources.job.errors import BadConfiguration, InputChanged

CPU = torch.device("cpu")


@pytest.fixture
def staged(snapshot: Snapshot, tmp_path: Path) -> Snapshot:
    """The snapshot on another machine: its manifest and what validates are there, the rest is at an address."""
    return stage(snapshot, tmp_path / "scratch" / "snapshot", room_for(snapshot.shards_of("train"), 7))


def stage(snapshot: Snapshot, folder: Path, cache_bytes: int) -> Snapshot:
    folder.mkdir(parents=True)
    needed = [file.path for shard in snapshot.shards_of("validation") for file in shard.files]
    for name in (MANIFEST, *needed):
        os.link(snapshot.folder / name, folder / name)
    ShardSource(url=snapshot.folder.as_uri(), cache_bytes=cache_bytes).write(folder)
    return open_snapshot(folder, snapshot.digest)


def reader_of(snapshot: Snapshot, lanes: int, local_ranks: int = 1) -> SplitReader:
    source = ShardSource.read(snapshot.folder)
    streamed = source and source.open(snapshot, lanes, local_ranks)
    return SplitReader(snapshot, "train", CPU, read_tokens, streamed)


@pytest.mark.parametrize("first_step", [0, 5])
def test_streamed_shards_give_the_rows_of_local_ones_in_bounded_space(
    snapshot: Snapshot, staged: Snapshot, first_step: int
) -> None:
    here = reader_of(snapshot, lanes=2)
    order = RowOrder(shard_units=here.shard_units, global_batch=8, seed=5, lanes=2)
    source = ShardSource.read(staged.folder)
    assert source is not None
    most = 0
    with Prefetcher(order, reader_of(staged, lanes=2), 0, 1, first_step) as prefetcher:
        for step in range(first_step, first_step + 2 * order.steps_per_epoch):
            batch, expected = prefetcher.merged(step), here.take(order.share(step, 0, 1))
            assert batch.row.tolist() == expected.row.tolist()
            assert torch.equal(batch.numeric, expected.numeric)
            assert batch.blob is not None
            assert expected.blob is not None
            assert torch.equal(batch.blob, expected.blob)
            most = max(most, lies_in(staged.folder / "streamed"))
    assert room_for(snapshot.shards_of("train"), 3) < most <= source.cache_bytes
    assert most < sum(map(size_of, snapshot.shards_of("train")))


def test_what_nobody_waits_for_any_more_does_not_come(
    snapshot: Snapshot, shards: tuple[Shard, ...], tmp_path: Path
) -> None:
    store, on_their_way, may_go_on = ShardStore(snapshot.folder), threading.Semaphore(0), threading.Event()

    def fetch(file: str, path: Path) -> None:
        on_their_way.release()
        may_go_on.wait(20)
        store.fetch(file, path)

    cache = ShardCache(tmp_path, room_for(shards, 10), fetch)
    streamed = StreamedShards(snapshot, shards, cache, held=2)
    streamed.expect(range(9))
    for _ in range(4):
        assert on_their_way.acquire(timeout=20)
    streamed.expect_none()
    may_go_on.set()
    assert len(streamed[9]) == shards[9].rows
    assert {name for name in store.asked if name.endswith(".arrow")} <= {
        shards[i].path for i in (0, 1, 2, 3, 9)
    }


def test_ranks_of_a_machine_share_what_they_bring(snapshot: Snapshot, tmp_path: Path) -> None:
    whole = sum(map(size_of, snapshot.shards_of("train")))
    staged = stage(snapshot, tmp_path / "snapshot", whole)
    order = RowOrder(shard_units=reader_of(snapshot, 2).shard_units, global_batch=8, seed=5, lanes=4)
    with ExitStack() as ranks:
        feeds = [
            ranks.enter_context(Prefetcher(order, reader_of(staged, 2, local_ranks=2), rank, 2, 0))
            for rank in range(2)
        ]
        rows = [
            row
            for step in range(order.steps_per_epoch)
            for prefetcher in feeds
            for row in prefetcher.merged(step).row.tolist()
        ]
    assert sorted(rows) == sorted(snapshot.read("train").row.tolist())
    assert lies_in(staged.folder / "streamed") == whole


def test_too_small_a_cache_is_refused_with_the_arithmetic(snapshot: Snapshot, tmp_path: Path) -> None:
    shards = snapshot.shards_of("train")
    staged = stage(snapshot, tmp_path / "snapshot", room_for(shards, 5))
    complaint = r"1 workers on a machine x \(2 x 3 lanes \+ 2\) = 8 shards of up to \d+ bytes are \d+"
    with pytest.raises(BadConfiguration, match=complaint):
        reader_of(staged, lanes=3)


def trained(run: Run, folder: Path) -> Iterator[float]:
    run.resume()
    with Heartbeat(0) as heartbeat:
        fit(run, RowLog(folder, 1, 0), StopRequest(), heartbeat)
    yield run.progress.best_loss


def test_a_training_is_the_same_where_its_shards_come_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    snapshot = small_snapshot(tmp_path / "here", shard_bytes=3_000)
    staged = stage(snapshot, tmp_path / "there" / "snapshot", room_for(snapshot.shards_of("train"), 7))
    losses: list[float] = []
    with one_rank() as group:
        for place in (snapshot, staged):
            job = small_job(snapshot, workers=1, lanes=2, epochs=1)
            job = dataclasses.replace(job, snapshot=str(place.folder), hyperparameters={})
            folder = place.folder / "job"
            folder.mkdir()
            losses += trained(prepare(job, folder, group), folder)
    assert losses[0] == losses[1]

    changed = snapshot.folder / snapshot.shards[0].path
    content = bytearray(changed.read_bytes())
    content[600] ^= 1
    changed.write_bytes(content)
    again = stage(snapshot, tmp_path / "again" / "snapshot", room_for(snapshot.shards_of("train"), 7))
    job = small_job(again, workers=1, lanes=2)
    with one_rank() as group, pytest.raises(InputChanged, match=r"train-00000.arrow changed"):
        list(trained(prepare(job, tmp_path, group), tmp_path))


@settings(max_examples=30, deadline=None)
@given(
    shard_units=st.lists(st.integers(1, 30), min_size=1, max_size=8).map(tuple),
    global_batch=st.integers(1, 40),
    lanes=st.integers(1, 6),
    step=st.integers(0, 60),
    data=st.data(),
)
def test_what_a_lane_reads_now_and_next_is_ahead(
    shard_units: tuple[int, ...], global_batch: int, lanes: int, step: int, data: st.DataObject
) -> None:
    order = RowOrder(shard_units=shard_units, global_batch=global_batch, seed=3, lanes=lanes)
    lane = data.draw(st.integers(0, lanes - 1))
    ahead = order.ahead(step, [lane])
    assert len(ahead) == len(set(ahead)) <= 2
    read = [
        (at // order.steps_per_epoch, each.shard)
        for at in range(step, step + 2 * order.steps_per_epoch)
        for each in order.lane(at, lane)
    ]
    visits = [shard for i, (epoch, shard) in enumerate(read) if not i or read[i - 1] != (epoch, shard)]
    sees_two = bool(order.lane(step, lane))
    assert set(visits[: 1 + sees_two]) <= set(ahead)


def test_the_shards_that_are_read_now_come_before_the_next_of_any_lane() -> None:
    order = RowOrder(shard_units=(100,) * 16, global_batch=64, seed=1, lanes=4)
    ahead = order.ahead(0, range(4))
    assert set(ahead[:4]) == {each.shard for lane in range(4) for each in order.lane(0, lane)}
    assert len(ahead) == 8
