"""Shards of a snapshot on this machine: brought when they are asked for, checked, and deleted to make room for others.

The ranks of a machine share the folder, so that none brings what another has. Two locks a shard say who brings it (one)
and who reads it (many); neither waits for the other, and what is read or on its way is not deleted. Not here: which
shards are needed when (streaming), what is in one (snapshots).
"""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from ml_assets.snapshots.split_reader import Archive, Shard, verify_file
from resources.files import locked, open_lock
from resources.job.errors import StorageFailed

_COMING = ".coming"
_LONG_AGO = 10 * 365 * 86_400.0
_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 60.0
"""For others to let go of what they read, where there is no room."""


class ShardCache:
    """The folder `folder`, of at most `limit` bytes. Safe for threads and processes.

    `fetch(file, path)` brings a file of the snapshot to `path`; what it raises reaches whoever asked for the shard.
    """

    def __init__(self, folder: Path, limit: int, fetch: Callable[[str, Path], None]) -> None:
        self.folder, self._limit, self._fetch = folder, limit, fetch
        self._locks, self._rooms, self._incoming = (
            folder / name for name in (".locks", ".rooms", ".incoming")
        )
        for place in (self._locks, self._rooms, self._incoming):
            place.mkdir(parents=True, exist_ok=True)

    def bring(self, shard: Shard) -> None:
        """Have the files of `shard` here, unless others push them out again before anybody reads them.

        Raises `ShardChanged` where one is not what the manifest says, `StorageFailed` where no room can be made, and
        what `fetch` raises.
        """
        if self._has(shard):
            return
        with locked(self._locks / (shard.path + _COMING)):
            if not self._has(shard):  # or another rank, or thread, was faster
                for file in shard.files:
                    self._bring(file)

    def hold(self, shard: Shard) -> int:
        """Have the files of `shard` here until `let_go` is called with the answer. Raises what `bring` raises."""
        while True:
            held = open_lock(self._locks / shard.path, shared=True)
            if self._has(shard):
                os.utime(self.folder / shard.path)
                return held
            os.close(held)
            self.bring(shard)

    def let_go(self, shard: Shard, held: int) -> None:
        """`shard` is read, for now: it goes before those that wait to be read."""
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
                left.unlink()  # of a process that was killed: whoever brings this shard holds its lock
            self._fetch(file.path, incoming)
            verify_file(incoming, file)
            with locked(self._locks / "room"):  # who counts sees it once: on its way, or here
                incoming.replace(self.folder / file.path)
                room.unlink()
        finally:
            incoming.unlink(missing_ok=True)
            room.unlink(missing_ok=True)

    def _reserve(self, room: Path, size: int) -> None:
        """Make `room` a file that says this many bytes without having them."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with locked(self._locks / "room"):
                if self._make_room(size):
                    with room.open("wb") as file:
                        file.truncate(size)
                    return
            if time.monotonic() > deadline:
                raise StorageFailed(
                    f"{self.folder} may hold {self._limit} bytes of shards and all of them are being read: raise "
                    "resources.shard_cache"
                )
            time.sleep(_LOOK_SECONDS)

    def _make_room(self, size: int) -> bool:
        """Delete what was let go longest ago until `size` more bytes fit; False where they do not."""
        files = {path: path.stat() for path in self.folder.iterdir() if path.is_file()}
        surplus = size - self._limit + sum(stat.st_size for stat in files.values())
        for room in self._rooms.iterdir():
            with suppress(FileNotFoundError):  # it will not arrive
                surplus += room.stat().st_size
        for path in sorted(files, key=lambda path: files[path].st_mtime):
            if surplus <= 0:
                break
            if path.suffix == ".arrow":
                surplus -= self._delete(path.name)
        return surplus <= 0

    def _delete(self, shard: str) -> int:
        """The bytes of the files of a shard, which are gone; 0 where somebody reads or brings it."""
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
