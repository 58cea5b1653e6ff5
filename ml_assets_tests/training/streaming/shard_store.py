"""Shards of a snapshot for tests: a store that hands them out, and what of them lies in a folder."""

import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ml_assets.data.snapshots.split_reader import Shard


class ShardStore:
    """Hands out the files of a snapshot, and counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []

    def fetch(self, file: str, path: Path) -> None:
        self.asked.append(file)
        path.write_bytes((self.folder / file).read_bytes())


def size_of(shard: Shard) -> int:
    return sum(file.bytes for file in shard.files)


def room_for(shards: tuple[Shard, ...], count: float) -> int:
    return round(count * max(map(size_of, shards)))


@contextmanager
def nothing_comes_or_goes(folder: Path) -> Generator[None]:
    with (folder / ".locks" / "room").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def lies_in(folder: Path) -> int:
    with nothing_comes_or_goes(folder):
        return sum(path.stat().st_size for path in folder.glob("*") if path.is_file())


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.arrow")}
