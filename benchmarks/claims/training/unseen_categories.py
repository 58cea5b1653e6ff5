"""Predictions for categories that training never saw: category dropout beside leaving the column out.

Synthetic shops with their own effects. On the last days half of the rows belong to new shops. The networks are like
that of the scaffold and are trained by the platform's loop; the log loss is that of the holdout:

* platform: the unknown id begins as the mean of the others and is trained by the default `category_dropout`
* neither: it keeps its random weights, without dropout
* column left out; mean: the mean label of the training rows
"""

# pyright: reportPrivateImportUsage=false
# (the annotations of torch are partial)

import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import distributed, nn

from benchmarks._report import Result, emit, parse_args
from ml_assets.data.snapshots.builder import build_snapshot
from ml_assets.data.snapshots.partitions import store_partitions
from ml_assets.data.snapshots.row_choice import choose_rows
from ml_assets.data.snapshots.spec import Cutoffs, InputColumns, RowSpec, split_by_time
from ml_assets.data.snapshots.split_reader import InputSpec, SourceValues
from ml_assets.model.training.data.rowlog import RowLog
from ml_assets.model.training.loop import fit
from ml_assets.model.training.process.group import Group
from ml_assets.model.training.process.heartbeat import Heartbeat
from ml_assets.model.training.process.stop import StopRequest
from ml_assets.model.training.run import prepare
from ml_assets.model.training.step.load import predict
from resources.job.job import TrainingJob
from resources.job.training_settings import TrainingSettings

CASES = ((300, 5), (1_000, 12), (6_000, 40), (30_000, 100))
"""Number of training rows, and of their shops."""
SEEDS = 8
BATCH = 128
LEAST_EPOCHS, LEAST_STEPS = 6, 200
TRAIN_DAYS, VALIDATION_DAYS, HOLDOUT_DAYS = 10, 2, 8
MODEL = "benchmarks.claims.training.unseen_categories.build"
START = date(2024, 1, 1)
ROW_SPEC = RowSpec(
    partition="date",
    label="label",
    label_known_at="label_known_at",
    cutoffs=Cutoffs.all_at(datetime(2024, 12, 31, tzinfo=UTC)),
)
MOST_WORSE_UNSEEN = 0.01
"""Largest loss in nats on unseen shops beyond that without the column, as the mean over seeds."""
MOST_WORSE_SEEN = 0.01
"""Largest loss in nats that known shops may pay for it."""


class Shops(nn.Module):
    """A network of numbers and embedded categories with one hidden layer, as in the scaffold's `model.py`."""

    category_plan = ("embeddings.*",)

    def __init__(self, inputs: InputSpec, spare: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size + spare, 3) for size in inputs.cardinalities)
        width = len(inputs.numeric) + 3 * len(inputs.cardinalities)
        self.layers = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        looked_up = [table(category[:, i]) for i, table in enumerate(self.embeddings)]
        return self.layers(torch.cat([numeric, *looked_up], dim=1)).squeeze(1)


def build(inputs: InputSpec, *, spare: int = 0) -> Shops:
    """Build the network. One `spare` row keeps the platform from setting the unknown id to the mean."""
    return Shops(inputs, spare)


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Return the mean log loss of holdout rows."""

    unseen: float
    seen: float


def table_of(rows: int, shops: int, seed: int) -> pl.DataFrame:
    """Return `rows` training rows of `shops`, and enough later rows to measure with, half of them of new shops."""
    chance = np.random.default_rng(seed)
    days = TRAIN_DAYS + VALIDATION_DAYS + HOLDOUT_DAYS
    daily = [rows // TRAIN_DAYS] * (TRAIN_DAYS + VALIDATION_DAYS)
    daily += [max(rows // TRAIN_DAYS, 500)] * HOLDOUT_DAYS
    day = np.repeat(np.arange(days), daily)
    shop = chance.integers(0, shops, len(day))
    is_new = (day >= days - HOLDOUT_DAYS) & (chance.random(len(day)) < 0.5)
    new = max(50, shops)
    shop = np.where(is_new, shops + chance.integers(0, new, len(day)), shop)
    effect = chance.normal(0, 1, shops + new)
    numbers = chance.normal(size=(len(day), 3))
    chances = 1 / (1 + np.exp(-(effect[shop] - 1 + 0.5 * numbers[:, 0])))
    midnight = datetime(START.year, START.month, START.day, tzinfo=UTC)
    return pl.DataFrame(
        {
            **{f"x{i}": numbers[:, i] for i in range(3)},
            "shop": shop.astype(str),
            "is_new": is_new,
            "date": [START + timedelta(days=int(one)) for one in day],
            "label": (chance.random(len(day)) < chances).astype(np.int8),
            "label_known_at": [midnight + timedelta(days=int(one)) for one in day],
        }
    )


def train(
    table: pl.DataFrame, folder: Path, group: Group, categorical: list[str], spare: int, dropout: float
) -> Losses:
    """Train on the first days of `table`; return the losses on the last ones."""
    keys = table["date"].unique().sort().cast(pl.String).to_list()
    split = split_by_time(keys, train=TRAIN_DAYS, validation=VALIDATION_DAYS, holdout=HOLDOUT_DAYS)
    chosen = choose_rows(
        store_partitions(table, ROW_SPEC.partition, folder / "table"),
        split,
        ROW_SPEC,
        InputColumns(numeric=("x0", "x1", "x2"), categorical=tuple(categorical)),
        into=folder / "snapshots",
    )
    snapshot = build_snapshot(chosen, source=SourceValues(table="features/small"), into=folder / "snapshots")
    steps_per_epoch = -(-chosen.rows("train") // BATCH)
    job = TrainingJob(
        model="shops",
        partition=keys[-1],
        model_function=MODEL,
        objective="binary",
        hyperparameters={"spare": spare},
        snapshot=str(snapshot.folder),
        snapshot_digest=snapshot.digest,
        schema_hash=snapshot.schema_hash,
        code_version="",
        seed=3,
        settings=TrainingSettings(
            workers=1,
            epochs=max(LEAST_EPOCHS, LEAST_STEPS // steps_per_epoch),
            patience=20,
            global_batch=BATCH,
            learning_rate=0.01,
            checkpoint_every_steps=1_000_000,
            log_every_steps=1_000_000,
            category_dropout=dropout,
        ),
    )
    run = prepare(job, folder, group)
    run.resume()
    fit(run, RowLog(folder, 1, 0), StopRequest(), Heartbeat(0))
    holdout = snapshot.read("holdout")
    scores = predict(run.model.eval(), "binary", holdout)
    return losses_of(scores, pl.concat(chosen.parts("holdout", ["is_new"])))


def losses_of(scores: NDArray[np.float64], holdout: pl.DataFrame) -> Losses:
    """Return the log loss of `scores` for rows of new and of known shops."""
    label, is_new = holdout["label"].to_numpy(), holdout["is_new"].to_numpy()
    losses = -np.log(np.where(label == 1, scores, 1 - scores))
    return Losses(unseen=float(losses[is_new].mean()), seen=float(losses[~is_new].mean()))


def measure(rows: int, shops: int, seeds: int, group: Group) -> dict[str, Losses]:
    """Return each way → its losses, means over `seeds`."""
    found: dict[str, list[Losses]] = {}
    default = TrainingSettings().category_dropout
    ways = {
        "platform": (["shop"], 0, default),
        "neither": (["shop"], 1, 0.0),
        "column left out": ([], 0, default),
    }
    for seed in range(seeds):
        table = table_of(rows, shops, seed)
        for way, settings in ways.items():
            with tempfile.TemporaryDirectory() as name:
                found.setdefault(way, []).append(train(table, Path(name), group, *settings))
        last = START + timedelta(days=TRAIN_DAYS + VALIDATION_DAYS)
        mean = table.filter(pl.col("date") < last)["label"].cast(pl.Float64).to_numpy().mean()
        holdout = table.filter(pl.col("date") >= last)
        found.setdefault("mean", []).append(losses_of(np.full(holdout.height, mean), holdout))
    return {
        way: Losses(
            unseen=statistics.mean(one.unseen for one in each), seen=statistics.mean(one.seen for one in each)
        )
        for way, each in found.items()
    }


@contextmanager
def only_rank() -> Iterator[Group]:
    """Use this process as the only rank of a job."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield Group(rank=0, world_size=1, local_rank=0, local_ranks=1, device=torch.device("cpu"))
    finally:
        distributed.destroy_process_group()


def results_of(rows: int, shops: int, losses: dict[str, Losses]) -> Iterator[Result]:
    """Yield the claims of one case: on unseen shops, and on known shops."""
    of, ours = f"{rows:,} training rows, {shops} shops", losses["platform"]
    without = losses["column left out"]
    yield Result(
        name=f"log loss of unseen shops, {of}",
        value=ours.unseen,
        unit="nats",
        peers={way: one.unseen for way, one in losses.items() if way != "platform"},
        ratio=ours.unseen / without.unseen,
        bar=f"≤ column left out + {MOST_WORSE_UNSEEN}",
        ok=ours.unseen <= without.unseen + MOST_WORSE_UNSEEN,
    )
    yield Result(
        name=f"log loss of known shops, {of}",
        value=ours.seen,
        unit="nats",
        peers={way: one.seen for way, one in losses.items() if way != "platform"},
        ratio=ours.seen / losses["neither"].seen,
        bar=f"≤ neither + {MOST_WORSE_SEEN}",
        ok=ours.seen <= losses["neither"].seen + MOST_WORSE_SEEN,
    )


def main() -> int:
    """Measure and decide."""
    arguments = parse_args(__doc__)
    torch.set_num_threads(1)
    cases, seeds = (CASES[:2], 2) if arguments.quick else (CASES, SEEDS)
    with only_rank() as group:
        results = [
            result
            for rows, shops in cases
            for result in results_of(rows, shops, measure(rows, shops, seeds, group))
        ]
    return emit(results, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
