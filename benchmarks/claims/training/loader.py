"""Feeding rows: our lanes beside torch's DataLoader and a plain copy, and the cost of feeding for a training step.

A million rows of 30 float32 and a label, shuffled, in batches of 4,096. Every way reads one number of each batch. Ours
reads a snapshot as a training does, by the prefetcher's thread; the step alone decides the place of every row. Other
libraries with these rows: `make bench ARGS=loader_libraries`.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, date, datetime
from itertools import count, islice, repeat
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks._report import Result, emit, interleave, parse_args
from ml_assets.data.snapshots.builder import SHARD_BYTES, build_snapshot
from ml_assets.data.snapshots.partitions import store_partitions
from ml_assets.data.snapshots.row_choice import choose_rows
from ml_assets.data.snapshots.spec import Cutoffs, InputColumns, RowSpec, Split
from ml_assets.data.snapshots.split_reader import Snapshot, SourceValues, open_snapshot
from ml_assets.model.training.data.batches import Batch, SplitReader
from ml_assets.model.training.data.order import RowOrder
from ml_assets.model.training.data.prefetcher import Prefetcher

COLUMNS, BATCH, LANES = 30, 4096, 8
LEAST_FASTER = 20
LEAST_SHARE = 0.98
DAYS = (date(2024, 1, 1), date(2024, 1, 2), date(2024, 1, 3))
"""One partition for each split."""


def write_snapshot(folder: Path, rows: int, shard_bytes: int = SHARD_BYTES) -> Snapshot:
    """Write `rows` training rows with a label that can be learned, and a few rows for validation and holdout."""
    chance = np.random.default_rng(0)
    few = 1000
    numbers = chance.normal(size=(rows + 2 * few, COLUMNS)).astype(np.float32)
    names = [f"x{column}" for column in range(COLUMNS)]
    table = pl.DataFrame({name: numbers[:, i] for i, name in enumerate(names)}).with_columns(
        label=pl.Series(numbers[:, 0] > 0).cast(pl.Int8),
        date=pl.Series(np.repeat(np.array(DAYS, dtype="datetime64[D]"), (rows, few, few))),
        known=pl.lit(datetime(2024, 1, 4, tzinfo=UTC)).cast(pl.Datetime("us", "UTC")),
    )
    spec = RowSpec(
        partition="date",
        label="label",
        label_known_at="known",
        cutoffs=Cutoffs.all_at(datetime(2024, 2, 1, tzinfo=UTC)),
    )
    days = [str(day) for day in DAYS]
    with tempfile.TemporaryDirectory() as stored:
        chosen = choose_rows(
            store_partitions(table, spec.partition, Path(stored)),
            Split(train=(days[0],), validation=(days[1],), holdout=(days[2],)),
            spec,
            InputColumns(numeric=tuple(names)),
            into=folder,
        )
        source = SourceValues(table="features/small")
        return build_snapshot(chosen, source=source, into=folder, shard_bytes=shard_bytes)


def open_training(snapshot: Snapshot) -> tuple[SplitReader, RowOrder]:
    """Return the training split as a rank sees it."""
    reader = SplitReader(snapshot, "train", torch.device("cpu"))
    return reader, RowOrder(shard_units=reader.shard_units, global_batch=BATCH, seed=1, lanes=LANES)


def feed_epoch(reader: SplitReader, order: RowOrder, *, by_lane: bool = False) -> None:
    """Read an epoch on the only rank, from the middle of one: the start position costs nothing."""
    first = order.steps_per_epoch // 2
    with Prefetcher(order, reader, 0, 1, first) as prefetcher:
        for step in range(first, first + order.steps_per_epoch):
            for batch in prefetcher.by_lane(step) if by_lane else (prefetcher.merged(step),):
                batch.numeric[0, 0].item()


def loader_epoch(loader: DataLoader[tuple[torch.Tensor, ...]]) -> None:
    """Read an epoch with torch's own loader."""
    for numeric, _ in loader:
        numeric[0, 0].item()


def copy_epoch(numbers: np.ndarray) -> None:
    """Copy each slice of a batch's size into one buffer, in order: the limit of the memory."""
    room = np.empty((BATCH, COLUMNS), dtype=np.float32)
    for first in range(0, len(numbers), BATCH):
        part = numbers[first : first + BATCH]
        room[: len(part)] = part
        room[0, 0].item()


def measure_rates(snapshot: Snapshot, rounds: int) -> list[Result]:
    """Return the rows per second of every way."""
    reader, order = open_training(snapshot)
    rows = snapshot.read("train")
    data = TensorDataset(torch.from_numpy(rows.numeric.copy()), torch.from_numpy(rows.label.copy()))
    loaders = {
        "DataLoader(TensorDataset), no workers": DataLoader(data, BATCH, shuffle=True),
        "DataLoader(TensorDataset), 2 workers": DataLoader(
            data, BATCH, shuffle=True, num_workers=2, persistent_workers=True
        ),
    }
    ways: dict[str, Callable[[], object]] = {
        "merged": lambda: feed_epoch(reader, order),
        "by lane": lambda: feed_epoch(reader, order, by_lane=True),
        "memcpy in order": lambda: copy_epoch(rows.numeric),
        **{name: lambda loader=loader: loader_epoch(loader) for name, loader in loaders.items()},
    }
    rates = {name: order.units / timing.median for name, timing in interleave(ways, rounds).items()}
    best = max(rates[name] for name in loaders)
    peers = {name: rate for name, rate in rates.items() if name not in ("merged", "by lane")}
    return [
        Result(
            name=f"rows fed, {what}: {order.units:,} x {COLUMNS} float32, shuffled, exact place",
            value=rates[way],
            unit="rows/s",
            peers=peers,
            ratio=rates[way] / best,
            bar=f"≥ {LEAST_FASTER} x the faster DataLoader",
            ok=rates[way] >= LEAST_FASTER * best,
        )
        for way, what in (("merged", "a batch a step"), ("by lane", f"{LANES} lanes a step"))
    ]


class Stepper:
    """Train a small network, by hand, on one thread."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(1)
        self.model = nn.Sequential(
            nn.Linear(COLUMNS, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)

    def seconds(self, batches: Iterable[Batch]) -> float:
        """Return the wall seconds of a step for each of `batches`."""
        start = time.perf_counter()
        for batch in batches:
            output = self.model(batch.numeric).squeeze(1)
            loss = nn.functional.binary_cross_entropy_with_logits(output, batch.label)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return time.perf_counter() - start


def step_shares(folder: Path, rank: int, world_size: int, blocks: int, steps: int) -> list[float]:
    """Return for each block the steps per second with `rank`'s real prefetcher over those with one batch repeated."""
    reader, order = open_training(open_snapshot(folder))
    stepper = Stepper()

    shares: list[float] = []
    with Prefetcher(order, reader, rank, world_size, 0) as prefetcher:
        fed = map(prefetcher.merged, count())
        one = next(fed)
        stepper.seconds(repeat(one, steps))
        for _ in range(blocks):
            # A B B A: a steady drift disturbs both alike.
            a = stepper.seconds(islice(fed, steps))
            b = stepper.seconds(repeat(one, 2 * steps))
            shares.append(b / (a + stepper.seconds(islice(fed, steps))))
    return shares


def measure_steps(folder: Path, world_size: int, blocks: int, steps: int) -> Result:
    """Run as many processes as ranks, at the same time."""
    with ProcessPoolExecutor(world_size, mp_context=get_context("spawn")) as pool:
        asked = [
            pool.submit(step_shares, folder, rank, world_size, blocks, steps) for rank in range(world_size)
        ]
        shares = [share for answer in asked for share in answer.result()]
    median = statistics.median(shares)
    return Result(
        name=f"steps/s fed over steps/s with one batch repeated, {world_size} ranks on this machine",
        value=median,
        unit="x",
        peers={"least of all blocks": min(shares), "most": max(shares)},
        bar=f"≥ {LEAST_SHARE}",
        ok=median >= LEAST_SHARE,
    )


def main() -> int:
    """Measure both claims."""
    arguments = parse_args(__doc__)
    rows, rounds, blocks = (200_000, 2, 4) if arguments.quick else (1_000_000, 5, 20)
    with tempfile.TemporaryDirectory() as temporary:
        snapshot = write_snapshot(Path(temporary), rows)
        results = measure_rates(snapshot, rounds)
        results += [
            measure_steps(snapshot.folder, world_size, blocks, steps=15 * world_size) for world_size in (1, 2)
        ]
    return emit(results, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
