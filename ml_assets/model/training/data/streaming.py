"""Training shards that are fetched from the store during the training, each shortly before it is needed.

Here: the order of fetches and the room they take. Not here: fetching and evicting (shard_cache), the shards of a step
(order), reading rows (batches).
"""

import dataclasses
import json
import shutil
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ml_assets.data.snapshots.split_reader import Rows, Shard, ShardChanged, Snapshot
from ml_assets.model.training.data.shard_cache import ShardCache
from ml_assets.model.training.process.artifacts import open_artifacts
from resources.artifacts import ArtifactMissing, ArtifactsRefused, ArtifactsUnavailable
from resources.job.errors import BadConfiguration, InputChanged, StorageFailed

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
