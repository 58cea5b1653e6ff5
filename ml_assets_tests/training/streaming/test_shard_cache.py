"""Shards that lie here for a while: fetched once, in bounded room, each one checked."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ml_assets.data.snapshots.split_reader import Shard, ShardChanged, Snapshot
from ml_assets.model.training.data import streaming
from ml_assets.model.training.data.streaming import ShardCache
from ml_assets_tests.training.streaming.shard_store import (
    ShardStore,
    names_in,
    nothing_comes_or_goes,
    room_for,
)
from resources.job.errors import StorageFailed


def test_a_shard_is_fetched_once_however_many_ask_for_it(
    snapshot: Snapshot, shards: tuple[Shard, ...], tmp_path: Path
) -> None:
    store = ShardStore(snapshot.folder)
    ranks = [ShardCache(tmp_path, room_for(shards, 3), store.fetch) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        held = list(pool.map(lambda i: ranks[i % 4].hold(shards[0]), range(8)))
    assert sorted(store.asked) == ["train-00000.arrow", "train-00000.tar"]
    for i, one in enumerate(held):
        ranks[i % 4].let_go(shards[0], one)
    for file in shards[0].files:
        assert (tmp_path / file.path).read_bytes() == (snapshot.folder / file.path).read_bytes()


def test_two_readers_of_a_shard_do_not_wait_for_each_other(
    snapshot: Snapshot, shards: tuple[Shard, ...], tmp_path: Path
) -> None:
    arrived, may_go_on = threading.Event(), threading.Event()

    def fetch(file: str, path: Path) -> None:
        ShardStore(snapshot.folder).fetch(file, path)
        arrived.set()
        may_go_on.wait(20)

    cache = ShardCache(tmp_path, room_for(shards, 3), fetch)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.hold, shards[0])
        assert arrived.wait(20)
        second = pool.submit(cache.hold, shards[0])  # while it is on its way
        may_go_on.set()
        first.result(20)
        second.result(20)
        cache.bring(shards[0])


def test_what_was_read_goes_before_what_waits_and_never_what_is_being_read(
    snapshot: Snapshot, shards: tuple[Shard, ...], tmp_path: Path
) -> None:
    cache = ShardCache(tmp_path, room_for(shards, 3.2), ShardStore(snapshot.folder).fetch)
    cache.bring(shards[0])
    time.sleep(0.02)  # a tick of the clock that dates files
    reading = cache.hold(shards[1])
    cache.let_go(shards[2], cache.hold(shards[2]))
    cache.bring(shards[3])
    assert names_in(tmp_path) == {shards[i].path for i in (0, 1, 3)}
    cache.bring(shards[4])
    assert names_in(tmp_path) == {shards[i].path for i in (1, 3, 4)}
    cache.let_go(shards[1], reading)
    cache.bring(shards[5])
    assert names_in(tmp_path) == {shards[i].path for i in (3, 4, 5)}
    assert not (tmp_path / "train-00001.tar").exists()


def test_where_all_is_being_read_there_is_no_room(
    snapshot: Snapshot, shards: tuple[Shard, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "_PATIENCE_SECONDS", 0.1)
    cache = ShardCache(tmp_path, room_for(shards, 2.2), ShardStore(snapshot.folder).fetch)
    held = [cache.hold(shard) for shard in shards[:2]]
    with pytest.raises(StorageFailed, match=r"all .*in use.*resources\.shard_cache"):
        cache.bring(shards[2])
    cache.let_go(shards[0], held[0])
    cache.bring(shards[2])


def test_nothing_arrives_while_somebody_counts_what_is_here(
    snapshot: Snapshot, shards: tuple[Shard, ...], tmp_path: Path
) -> None:
    on_its_way, may_go_on, fetched = threading.Event(), threading.Event(), threading.Event()

    def fetch(file: str, path: Path) -> None:
        on_its_way.set()
        assert may_go_on.wait(20)
        ShardStore(snapshot.folder).fetch(file, path)
        fetched.set()

    cache = ShardCache(tmp_path, room_for(shards, 3), fetch)
    with ThreadPoolExecutor(1) as threads:
        coming = threads.submit(cache.bring, shards[0])
        assert on_its_way.wait(20)
        with nothing_comes_or_goes(tmp_path):
            may_go_on.set()
            assert fetched.wait(20)
            time.sleep(0.2)
            assert names_in(tmp_path) == set()
            assert [path.name for path in (tmp_path / ".rooms").iterdir()] == [shards[0].path]
        coming.result(20)
    assert names_in(tmp_path) == {shards[0].path}


def test_room_is_waited_for(snapshot: Snapshot, shards: tuple[Shard, ...], tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, room_for(shards, 1.2), ShardStore(snapshot.folder).fetch)
    held = cache.hold(shards[0])
    waiting = threading.Thread(target=cache.bring, args=(shards[1],))
    waiting.start()
    while not list((tmp_path / ".locks").glob(f"{shards[1].path}.*")):
        assert waiting.is_alive()
    cache.let_go(shards[0], held)
    waiting.join(200)
    assert names_in(tmp_path) == {shards[1].path}


def test_a_file_that_is_not_the_one_of_the_manifest_is_never_seen(
    snapshot: Snapshot, shards: tuple[Shard, ...], tmp_path: Path
) -> None:
    def fetch(file: str, path: Path) -> None:
        content = bytearray((snapshot.folder / file).read_bytes())
        content[-1] ^= file.endswith(".tar")
        path.write_bytes(content)

    cache = ShardCache(tmp_path, room_for(shards, 2), fetch)
    for _ in range(2):
        with pytest.raises(ShardChanged, match=r"train-00000.tar changed: SHA-256"):
            cache.hold(shards[0])
        assert not (tmp_path / "train-00000.tar").exists()
        assert not any((tmp_path / ".incoming").iterdir())
        assert not any((tmp_path / ".rooms").iterdir())
