"""Training shards that are fetched from the store during the training, each shortly before it is needed.

The ranks of a machine share a folder, so each shard is fetched once, verified, and evicted to make room for others.
Each shard has two locks: one for the process that fetches it, and a shared one for its readers. Fetching and reading do
not wait for each other, and eviction takes only shards that nobody reads or fetches.

Here: the object store of a training process, from the environment that the launcher set; the order of fetches, the
room they take, and that folder. Not here: the shards of a step (order), reading rows (batches), the content of a shard
(snapshots).
"""

import dataclasses
import json
import logging
import os
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ml_assets.data.snapshots.split_reader import Archive, Rows, Shard, ShardChanged, Snapshot, verify_file
from resources.artifacts import (
    ArtifactMissing,
    Artifacts,
    ArtifactsRefused,
    ArtifactsUnavailable,
    artifacts_of,
)
from resources.files import locked, open_lock
from resources.job.errors import BadConfiguration, InputChanged, StorageFailed

# aiobotocore logs the origin of the credentials at each start.
logging.getLogger("aiobotocore").setLevel(logging.WARNING)


def open_artifacts(url: str, cache: Path, patience_seconds: float = 60.0) -> Artifacts:
    """Open the store at `url` with the endpoint and credentials from the environment."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return artifacts_of(url, cache, endpoint, patience_seconds)


_COMING = ".coming"
_LONG_AGO = 10 * 365 * 86_400.0
_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 60.0
"""Time to wait for readers to release shards when there is no room."""


class ShardCache:
    """Cache in `folder`, of at most `limit` bytes. Safe for threads and processes.

    `fetch(file, path)` fetches a file of the snapshot to `path`. Its errors reach the caller that requested the shard.
    """

    def __init__(self, folder: Path, limit: int, fetch: Callable[[str, Path], None]) -> None:
        self.folder, self._limit, self._fetch = folder, limit, fetch
        self._locks, self._rooms, self._incoming = (
            folder / name for name in (".locks", ".rooms", ".incoming")
        )
        for place in (self._locks, self._rooms, self._incoming):
            place.mkdir(parents=True, exist_ok=True)

    def bring(self, shard: Shard) -> None:
        """Fetch the files of `shard` if they are not here. Others may evict them again before anybody reads them.

        Raises `ShardChanged` if a file differs from the manifest, `StorageFailed` if no room can be made, and the
        errors of `fetch`.
        """
        if self._has(shard):
            return
        with locked(self._locks / (shard.path + _COMING)):
            if not self._has(shard):  # another rank or thread may have fetched it meanwhile
                for file in shard.files:
                    self._bring(file)

    def hold(self, shard: Shard) -> int:
        """Fetch the files of `shard` if needed and keep them until `let_go` is called with the returned descriptor.
        Raises the errors of `bring`."""
        while True:
            held = open_lock(self._locks / shard.path, shared=True)
            if self._has(shard):
                os.utime(self.folder / shard.path)
                return held
            os.close(held)
            self.bring(shard)

    def let_go(self, shard: Shard, held: int) -> None:
        """Release `shard` after reading. It is evicted before shards that wait for their readers."""
        now = time.time()
        os.utime(self.folder / shard.path, (now, now - _LONG_AGO))
        os.close(held)

    def _has(self, shard: Shard) -> bool:
        return all((self.folder / file.path).exists() for file in shard.files)

    def _bring(self, file: Shard | Archive) -> None:
        incoming, room = self._incoming / file.path, self._rooms / file.path
        self._reserve(room, file.bytes)
        try:
            for left in incoming.parent.glob(f".{incoming.name}.*"):
                left.unlink()  # a killed process left it; this process holds the shard's lock
            self._fetch(file.path, incoming)
            verify_file(incoming, file)
            with locked(
                self._locks / "room"
            ):  # a process that sums up sizes sees it once: incoming or stored
                incoming.replace(self.folder / file.path)
                room.unlink()
        finally:
            incoming.unlink(missing_ok=True)
            room.unlink(missing_ok=True)

    def _reserve(self, room: Path, size: int) -> None:
        """Reserve `size` bytes: `room` becomes a sparse file of that size."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with locked(self._locks / "room"):
                if self._make_room(size):
                    with room.open("wb") as file:
                        file.truncate(size)
                    return
            if time.monotonic() > deadline:
                raise StorageFailed(
                    f"{self.folder} may hold {self._limit} bytes of shards, and all of them are in use: raise "
                    "resources.shard_cache"
                )
            time.sleep(_LOOK_SECONDS)

    def _make_room(self, size: int) -> bool:
        """Evict the least recently released shards until `size` more bytes fit; return False if they do not."""
        files = {path: path.stat() for path in self.folder.iterdir() if path.is_file()}
        surplus = size - self._limit + sum(stat.st_size for stat in files.values())
        for room in self._rooms.iterdir():
            with suppress(FileNotFoundError):  # that fetch has just ended
                surplus += room.stat().st_size
        for path in sorted(files, key=lambda path: files[path].st_mtime):
            if surplus <= 0:
                break
            if path.suffix == ".arrow":
                surplus -= self._delete(path.name)
        return surplus <= 0

    def _delete(self, shard: str) -> int:
        """Delete a shard and return the bytes freed; 0 if a process reads or fetches it."""
        freed = 0
        with ExitStack() as locks:
            for name in (shard, shard + _COMING):
                if (held := open_lock(self._locks / name, waits=False)) is None:
                    return 0
                locks.callback(os.close, held)
            for path in self.folder.glob(f"{Path(shard).stem}.*"):
                freed += path.stat().st_size
                path.unlink()
        return freed


_FETCHES = 4
"""Shards that a rank fetches at once: a single connection seldom fills a network."""
_FILE, _CACHE = "source.json", "streamed"


class StreamedShards:
    """Shards of one split by number. A rank reads from `held` of them at once; expected shards are being fetched."""

    def __init__(self, snapshot: Snapshot, shards: Sequence[Shard], cache: ShardCache, held: int) -> None:
        self._snapshot = dataclasses.replace(snapshot, folder=cache.folder)
        self._shards, self._cache, self._held = shards, cache, held
        self._open: OrderedDict[int, tuple[Rows, int]] = OrderedDict()
        self._coming: dict[int, Future[None]] = {}
        self._threads = ThreadPoolExecutor(_FETCHES, thread_name_prefix="shards")

    def expect(self, numbers: Sequence[int]) -> None:
        """Fetch these shards in the background, soonest needed first."""
        for number in numbers:
            if number not in self._open and number not in self._coming:
                self._coming[number] = self._threads.submit(self._cache.bring, self._shards[number])

    def expect_none(self) -> None:
        """Cancel downloads that have not begun."""
        for coming in self._coming.values():
            coming.cancel()
        self._coming.clear()

    def __getitem__(self, number: int) -> Rows:
        """Return the rows of one shard, memory-mapped; wait until the shard is here.

        Raises `InputChanged` if it differs from the manifest, `StorageFailed` if the store is unreachable or there is
        no room.
        """
        if number not in self._open:
            if (coming := self._coming.pop(number, None)) is not None:
                wait([coming])  # after an error, `hold` below tries again and raises
            while len(self._open) >= self._held:
                longest_ago, (_, held) = self._open.popitem(last=False)
                self._cache.let_go(self._shards[longest_ago], held)
            try:
                held = self._cache.hold(self._shards[number])
                self._open[number] = (self._snapshot.map(self._shards[number]), held)
            except ShardChanged as error:
                raise InputChanged(str(error)) from error
        self._open.move_to_end(number)
        return self._open[number][0]


@dataclass(frozen=True, kw_only=True)
class ShardSource:
    """Location of training shards that are not in a snapshot's folder; a file beside the manifest holds it."""

    url: str
    """Address of the whole snapshot."""
    cache_bytes: int
    """Bytes of shards that this machine may hold at once."""

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read the file in `folder`; None if there is no such file, since all shards are in the folder."""
        path = folder / _FILE
        return cls(**json.loads(path.read_text())) if path.exists() else None

    def write(self, folder: Path) -> None:
        """Write the file into `folder`; delete the cache of an earlier training there."""
        shutil.rmtree(folder / _CACHE, ignore_errors=True)
        (folder / _FILE).write_text(json.dumps(dataclasses.asdict(self)))

    def open(self, snapshot: Snapshot, lanes: int, local_ranks: int) -> StreamedShards:
        """Return the training shards for a rank with `lanes` lanes, one of `local_ranks` ranks on this machine.

        The cache must have room for two shards per lane (the one it reads and the next) and for two more per rank, or
        for all shards. Raises `BadConfiguration` if it has not.
        """
        shards = snapshot.shards_of("train")
        largest = max(sum(file.bytes for file in shard.files) for shard in shards)
        room = local_ranks * (2 * lanes + 2)
        whole = sum(file.bytes for shard in shards for file in shard.files)
        if self.cache_bytes < min(room * largest, whole):
            raise BadConfiguration(
                f"resources.shard_cache of {self.cache_bytes} bytes is too small: {local_ranks} workers on a machine x "
                f"(2 x {lanes} lanes + 2) = {room} shards of up to {largest} bytes are {room * largest}. Raise it, "
                "lower `lanes`, or leave it out: all shards are then downloaded before the training starts"
            )
        above, _, name = self.url.rpartition("/")
        artifacts = open_artifacts(above, snapshot.folder.parent)

        def fetch(file: str, path: Path) -> None:
            try:
                artifacts.fetch(name, file, path)
            except ArtifactMissing as error:
                raise InputChanged(f"{self.url}/{file} is gone: {error}") from error
            except ArtifactsUnavailable as error:
                raise StorageFailed(f"{self.url}/{file} could not be read. {error}") from error
            except ArtifactsRefused as error:
                raise BadConfiguration(str(error)) from error

        cache = ShardCache(snapshot.folder / _CACHE, self.cache_bytes, fetch)
        return StreamedShards(snapshot, shards, cache, held=lanes + 1)
