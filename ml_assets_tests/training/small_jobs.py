"""Small snapshots and jobs for the tests of training, and what their folders must say afterwards."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ml_assets.data.snapshots.builder import build_snapshot
from ml_assets.data.snapshots.spec import InputColumns, Split, split_by_time
from ml_assets.data.snapshots.split_reader import Snapshot, SourceValues
from ml_assets.extras.drills.fixture import CATEGORICAL, NUMERIC, ROW_SPEC, learnable_table
from ml_assets.model.training.data.rowlog import read_rows
from ml_assets_tests.snapshots.chosen_rows import chosen_rows
from resources.job.job import TrainingJob
from resources.job.training_settings import TrainingSettings

INPUTS = InputColumns(numeric=NUMERIC, categorical=CATEGORICAL)
MODELS = "ml_assets_tests.training.small_models"


def feature_table(days: int = 14, rows_a_day: int = 100) -> pl.DataFrame:
    """The drills' table, with other numbers."""
    return learnable_table(days, rows_a_day, seed=7)


def split_of(table: pl.DataFrame, validation: int = 2, holdout: int = 2) -> Split:
    """The newest days held out, the ones before for validation."""
    keys = table["date"].unique().sort().cast(pl.String).to_list()
    train = len(keys) - validation - holdout
    return split_by_time(keys, train=train, validation=validation, holdout=holdout)


SHARD_BYTES = 9_000
"""Shard size of the small snapshot, which makes three training shards of its 28 kB."""


def with_weights(table: pl.DataFrame, seed: int = 2) -> pl.DataFrame:
    """The table with a column `weight`: uneven numbers, a tenth of which are 0."""
    random = np.random.default_rng(seed)
    weight = random.exponential(30, table.height) * (random.random(table.height) > 0.1)
    return table.with_columns(pl.Series("weight", weight))


def small_snapshot(
    into: Path,
    table: pl.DataFrame | None = None,
    shard_bytes: int = SHARD_BYTES,
    weight: str | None = None,
) -> Snapshot:
    """A snapshot of `table` with several training shards."""
    table = feature_table() if table is None else table
    chosen = chosen_rows(table, split_of(table), replace(ROW_SPEC, weight=weight), INPUTS)
    source = SourceValues(table="features/small", columns=("label",), partitions={"2024-01-01": "0" * 32})
    return build_snapshot(chosen, source=source, into=into, shard_bytes=shard_bytes)


def classes_snapshot(into: Path, weight: str | None = None) -> Snapshot:
    """A snapshot of few rows whose label is one of three words; `weight` is that of `with_weights`."""
    words = pl.when(pl.col("x1") > 0.7).then(pl.lit("blue")).otherwise(pl.format("a{}", "label"))
    table = with_weights(feature_table(rows_a_day=13)).with_columns(words.alias("label"))
    spec = replace(ROW_SPEC, objective="multiclass", weight=weight)
    chosen = chosen_rows(table, split_of(table), spec, INPUTS)
    source = SourceValues(table="features/small", columns=("label",), partitions={"2024-01-01": "0" * 32})
    return build_snapshot(chosen, source=source, into=into, shard_bytes=SHARD_BYTES)


def small_job(
    snapshot: Snapshot, model: str = "tiny", objective: str = "binary", **changes: Any
) -> TrainingJob:
    """Three epochs of 40 steps on two workers; `changes` are hyperparameters or settings."""
    settings: dict[str, Any] = {
        "epochs": 3,
        "patience": 3,
        "global_batch": 26,
        "learning_rate": 0.02,
        "checkpoint_every_steps": 10,
        "log_every_steps": 1,
        "device": "cpu",
    }
    hyperparameters: dict[str, Any] = {"pace": 0.004} if model == "tiny" else {}
    for name, value in changes.items():
        (hyperparameters if name in ("pace", "nan_after", "depth", "dropout", "count") else settings)[
            name
        ] = value
    return TrainingJob(
        model="small",
        partition="2024-01-14",
        model_function=model if "." in model else f"{MODELS}.{model}",
        objective=objective,
        hyperparameters=hyperparameters,
        snapshot=str(snapshot.folder),
        snapshot_digest=snapshot.digest,
        schema_hash=snapshot.schema_hash,
        code_version="",
        seed=3,
        settings=TrainingSettings(**settings),
        decode=f"{MODELS}.read_tokens" if snapshot.inputs.blob else "",
    )


def rows_learned(folder: Path) -> Iterator[tuple[int, list[np.ndarray[Any, Any]]]]:
    """Per step, the rows of each rank that the final weights learned from: a step that was done again after a
    resume counts as its last attempt did it, with as many ranks as that one had."""
    last: dict[int, tuple[int, dict[int, np.ndarray[Any, Any]]]] = {}
    for taken in read_rows(folder):
        attempt, ranks = last.get(taken.step, (0, {}))
        if taken.attempt > attempt:
            attempt, ranks = last[taken.step] = (taken.attempt, {})
        if taken.attempt == attempt:
            ranks[taken.rank] = taken.rows
    for step in range(max(last) + 1):
        yield step, [rows for _, rows in sorted(last[step][1].items())]


def assert_each_row_once_per_epoch(folder: Path, snapshot: Snapshot, job: TrainingJob) -> None:
    """Assert that each epoch trained on each training row exactly once, and on no other row; ranks on disjoint rows."""
    expected = np.sort(snapshot.read("train").row)
    steps_per_epoch = -(-len(expected) // job.settings.global_batch)
    steps = list(rows_learned(folder))
    assert len(steps) % steps_per_epoch == 0
    for first in range(0, len(steps), steps_per_epoch):
        everything: list[np.ndarray[Any, Any]] = []
        for _, ranks in steps[first : first + steps_per_epoch]:
            assert sum(map(len, ranks)) <= job.settings.global_batch
            everything += ranks
        # Sorted they are the rows, one by one: so ranks had disjoint ones.
        assert np.array_equal(np.sort(np.concatenate(everything)), expected)


def alive(pids: Sequence[int]) -> list[int]:
    """Return those of `pids` that still run; a zombie does not count."""
    return [pid for pid in pids if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state not in "ZX"
