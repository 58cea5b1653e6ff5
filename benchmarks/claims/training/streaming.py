"""A training whose shards arrive while it runs, beside one that downloads them all first.

The store is a folder behind a throttle: a fixed number of bytes per second for each of four connections, as a network
would allow. Both train an epoch of a million rows of 30 float32 with a small network, on one thread. The cache of the
first has room for a third of the shards.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from benchmarks._report import Result, emit, interleave, parse_args
from benchmarks.claims.training.loader import BATCH, LANES, Stepper, write_snapshot
from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.data.batches import Batch, SplitReader
from ml_assets.model.training.data.order import RowOrder
from ml_assets.model.training.data.prefetcher import Prefetcher
from ml_assets.model.training.data.streaming import ShardCache, StreamedShards

BYTES_A_SECOND = 8 * 2**20
CONNECTIONS = 4
MOST_TIME, MOST_BEFORE_FIRST = 1.0, 0.5


class Store:
    """Store of the shards of a snapshot, behind a throttle."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot, self._folder = snapshot, snapshot.folder

    def fetch(self, file: str, path: Path) -> None:
        """Download one file, no faster than a connection allows."""
        start = time.monotonic()
        shutil.copyfile(self._folder / file, path)
        time.sleep(max(0.0, start + path.stat().st_size / BYTES_A_SECOND - time.monotonic()))


def batches(reader: SplitReader) -> Iterator[Batch]:
    """Return the batches of an epoch, for the only rank."""
    order = RowOrder(shard_units=reader.shard_units, global_batch=BATCH, seed=1, lanes=LANES)
    with Prefetcher(order, reader, 0, 1, 0) as prefetcher:
        yield from map(prefetcher.merged, range(order.steps_per_epoch))


class Trainings:
    """Result of a way to train an epoch, with its wait for the first batch."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shards = store.snapshot.shards_of("train")
        self.first: dict[str, float] = {}

    def come(self) -> None:
        """Train while the shards arrive."""
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            room = (2 * LANES + 2) * max(shard.bytes for shard in self._shards)
            cache = ShardCache(Path(place), room, self._store.fetch)
            streamed = StreamedShards(self._store.snapshot, self._shards, cache, held=LANES + 1)
            reader = SplitReader(self._store.snapshot, "train", torch.device("cpu"), streamed=streamed)
            self._train("come", start, reader)

    def staged(self) -> None:
        """Download all shards first, then train."""
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(CONNECTIONS) as connections:
            paths = [shard.path for shard in self._shards]
            list(connections.map(lambda path: self._store.fetch(path, Path(place) / path), paths))
            # Read from their source: the same files, checked when they were written.
            self._train("staged", start, SplitReader(self._store.snapshot, "train", torch.device("cpu")))

    def _train(self, way: str, start: float, reader: SplitReader) -> None:
        stepper, epoch = Stepper(), batches(reader)
        first = next(epoch)
        self.first[way] = time.monotonic() - start
        stepper.seconds([first])
        stepper.seconds(epoch)


def main() -> int:
    """Measure and decide."""
    arguments = parse_args(__doc__)
    rows, rounds = (200_000, 1) if arguments.quick else (1_000_000, 3)
    with tempfile.TemporaryDirectory() as temporary:
        # About fifty shards, for any number of rows.
        snapshot = write_snapshot(Path(temporary), rows, shard_bytes=rows * 124 // 54)
        trainings = Trainings(Store(snapshot))
        timings = interleave({"come": trainings.come, "staged": trainings.staged}, rounds)
    come, staged = timings["come"].median, timings["staged"].median
    rate = f"{BYTES_A_SECOND * CONNECTIONS / 2**20:.0f} MiB/s, a third of the shards at once"
    return emit(
        [
            Result(
                name=f"an epoch whose shards come while it trains, {rate}",
                value=come,
                unit="s",
                peers={"all downloaded first": staged},
                ratio=come / staged,
                bar=f"≤ {MOST_TIME} x downloading all first",
                ok=come <= MOST_TIME * staged,
            ),
            Result(
                name="until its first batch",
                value=trainings.first["come"],
                unit="s",
                peers={"all downloaded first": trainings.first["staged"]},
                ratio=trainings.first["come"] / trainings.first["staged"],
                bar=f"≤ {MOST_BEFORE_FIRST} x downloading all first",
                ok=trainings.first["come"] <= MOST_BEFORE_FIRST * trainings.first["staged"],
            ),
        ],
        json=arguments.json,
    )


if __name__ == "__main__":
    raise SystemExit(main())
