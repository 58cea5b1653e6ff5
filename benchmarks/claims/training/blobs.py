"""Feeding blobs: our archives beside torch's DataLoader over files, the archives read in order, and a plain copy.

Pictures of 48 KB as bytes (3 x 128 x 128 numbers), shuffled, in batches of 64; every way ends in one tensor per batch.
Decoding is the same for all and costs nothing: the measurement is finding, reading and stacking. All files are in the
page cache.
"""

import tarfile
import tempfile
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks._report import Result, emit, interleave, parse_args
from ml_assets.data.snapshots.builder import build_snapshot
from ml_assets.data.snapshots.partitions import store_partitions
from ml_assets.data.snapshots.row_choice import choose_rows
from ml_assets.data.snapshots.spec import Cutoffs, InputColumns, RowSpec, Split
from ml_assets.data.snapshots.split_reader import Snapshot, SourceValues
from ml_assets.model.training.data.batches import SplitReader
from ml_assets.model.training.data.order import RowOrder
from ml_assets.model.training.data.prefetcher import Prefetcher

SHAPE, BATCH, LANES = (3, 128, 128), 64, 8
LEAST_FASTER = 1
"""Least speed beside the faster DataLoader. In the page cache, files are as fast as archives; on disks and in stores
they are slow.
"""
DAYS = ("2024-01-01", "2024-01-02", "2024-01-03")
"""One partition for each split."""


def decode(content: bytes) -> np.ndarray:
    """Return the picture."""
    return np.frombuffer(content, dtype=np.uint8).reshape(SHAPE)


def write_snapshot(folder: Path, pictures: np.ndarray) -> Snapshot:
    """Write `pictures` to train on, and a few of them for validation and holdout."""
    few = 8
    which = [*range(len(pictures)), *range(2 * few)]
    days = [*([DAYS[0]] * len(pictures)), *([DAYS[1]] * few), *([DAYS[2]] * few)]
    table = pl.DataFrame(
        {
            "x": np.zeros(len(which), dtype=np.float32),
            "label": np.zeros(len(which), dtype=np.int8),
            "date": [date.fromisoformat(day) for day in days],
            "picture": pl.Series([pictures[i].tobytes() for i in which], dtype=pl.Binary),
        }
    ).with_columns(known=pl.lit(datetime(2024, 1, 4, tzinfo=UTC)).cast(pl.Datetime("us", "UTC")))
    spec = RowSpec(
        partition="date",
        label="label",
        label_known_at="known",
        cutoffs=Cutoffs.all_at(datetime(2024, 2, 1, tzinfo=UTC)),
        blob="picture",
    )
    with tempfile.TemporaryDirectory() as stored:
        chosen = choose_rows(
            store_partitions(table, spec.partition, Path(stored)),
            Split(train=DAYS[:1], validation=DAYS[1:2], holdout=DAYS[2:]),
            spec,
            InputColumns(numeric=("x",)),
            into=folder,
        )
        source = SourceValues(table="features/benchmark")
        return build_snapshot(chosen, source=source, into=folder, shard_bytes=16 * 2**20)


class Files(Dataset[torch.Tensor]):
    """Write a file per blob, as data sets of pictures come."""

    def __init__(self, folder: Path, pictures: np.ndarray) -> None:
        self._paths = [folder / f"{i}.bin" for i in range(len(pictures))]
        for path, picture in zip(self._paths, pictures, strict=True):
            path.write_bytes(picture.tobytes())

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(decode(self._paths[index].read_bytes()).copy())


def feed_epoch(reader: SplitReader, order: RowOrder) -> None:
    """Read an epoch on the only rank, from the middle of one."""
    first = order.steps_per_epoch // 2
    with Prefetcher(order, reader, 0, 1, first) as prefetcher:
        for step in range(first, first + order.steps_per_epoch):
            blob = prefetcher.merged(step).blob
            if blob is not None:
                blob[0, 0, 0, 0].item()


def loader_epoch(loader: DataLoader[torch.Tensor]) -> None:
    """Read an epoch with torch's own loader."""
    for batch in loader:
        batch[0, 0, 0, 0].item()


def tar_epoch(snapshot: Snapshot) -> None:
    """Read each archive from beginning to end, in batches, as libraries do that read tar."""
    batch: list[np.ndarray] = []
    for shard in snapshot.shards_of("train"):
        if shard.blobs is None:
            continue
        with tarfile.open(snapshot.folder / shard.blobs.path) as archive:
            for member in archive:
                file = archive.extractfile(member)
                batch.append(decode(file.read() if file else b""))
                if len(batch) == BATCH:
                    torch.from_numpy(np.stack(batch))[0, 0, 0, 0].item()
                    batch.clear()


def copy_epoch(pictures: np.ndarray) -> None:
    """Copy each batch's part into one buffer, in order: the limit of the memory."""
    room = np.empty((BATCH, *SHAPE), dtype=np.uint8)
    for first in range(0, len(pictures), BATCH):
        part = pictures[first : first + BATCH]
        room[: len(part)] = part


def main() -> int:
    """Measure and decide."""
    arguments = parse_args(__doc__)
    count, rounds = (512, 2) if arguments.quick else (4096, 5)
    pictures = np.random.default_rng(0).integers(0, 256, (count, *SHAPE), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as temporary:
        (Path(temporary) / "files").mkdir()
        snapshot = write_snapshot(Path(temporary) / "snapshots", pictures)
        files = Files(Path(temporary) / "files", pictures)
        reader = SplitReader(snapshot, "train", torch.device("cpu"), decode)
        order = RowOrder(shard_units=reader.shard_units, global_batch=BATCH, seed=1, lanes=LANES)
        loaders = {
            "DataLoader(files), no workers": DataLoader(files, BATCH, shuffle=True),
            "DataLoader(files), 2 workers": DataLoader(
                files, BATCH, shuffle=True, num_workers=2, persistent_workers=True
            ),
        }
        ways: dict[str, Callable[[], object]] = {
            "ours": lambda: feed_epoch(reader, order),
            "tarfile in order, not shuffled": lambda: tar_epoch(snapshot),
            "memcpy in order": lambda: copy_epoch(pictures),
            **{name: lambda loader=loader: loader_epoch(loader) for name, loader in loaders.items()},
        }
        rates = {name: count / timing.median for name, timing in interleave(ways, rounds).items()}
    ours, best = rates.pop("ours"), max(rates[name] for name in loaders)
    return emit(
        Result(
            name=f"blobs fed: {count:,} of 48 KB, shuffled, exact place",
            value=ours,
            unit="blobs/s",
            peers=rates,
            ratio=ours / best,
            bar=f"≥ {LEAST_FASTER} x the faster DataLoader",
            ok=ours >= LEAST_FASTER * best,
        ),
        json=arguments.json,
    )


if __name__ == "__main__":
    raise SystemExit(main())
