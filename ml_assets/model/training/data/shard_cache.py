"""Cache of a snapshot's shards on this machine: fetched on demand, verified, and evicted to make room for others.

The ranks of a machine share the folder, so each shard is fetched once. Each shard has two locks: one for the process
that fetches it, and a shared one for its readers. Fetching and reading do not wait for each other, and eviction takes
only shards that nobody reads or fetches. Not here: the time at which a shard is needed (streaming), its content
(snapshots).
"""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from ml_assets.data.snapshots.split_reader import Archive, Shard, verify_file
from resources.files import locked, open_lock
from resources.job.errors import StorageFailed

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
