"""A wide feature table and a model of 28 of its 128 columns, trained on four partitions and evaluated on windows.

A window's index is written without the shards of a training set, of which an evaluation reads only those of validation.
So the windows may be larger than a training set that this machine could train on.
"""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

HERE = "benchmarks.claims.evaluation._wide_window"
TABLE, MODEL = "features/wide", "wide"
FIRST = date(2021, 1, 1)
ROWS = 50_000
"""Rows of a partition."""
CHUNK_BYTES = 2**28
"""Bytes that are published at a time."""
NUMBERS = [f"x{n:03}" for n in range(120)]
READ = NUMBERS[:22]
"""Numbers that the model reads. With category, slice, label, its time, weight and date: 28 columns."""
VALIDATION, HOLDOUT = 2, 4
"""Partitions. They stay the same in all windows; the training rows grow."""
DECLARED: dict[str, Any] = {
    "name": MODEL,
    "partitions": {"cadence": "daily", "start": FIRST.isoformat()},
    "features": {
        "table": TABLE,
        "numeric": READ,
        "categorical": ["shop"],
        "label": "label",
        "label_known_at": "known_at",
        "weight": "weight",
        "primary_key": ["partition_date", "row"],
    },
    "model": {"function": f"{HERE}.build"},
    "training": {"epochs": 1, "global_batch": 1024, "learning_rate": 0.1, "device": "cpu"},
    "evaluation": {
        "objective": "regression",
        "bootstrap_unit": "partition_date",
        "min_blocks": 3,
        "slices": ["region"],
        "baseline": {"groups": ["region", "shop"]},
        "explanations": {},
        "gates": [{"name": "beats the baseline", "metric": "rmse", "better_than": "baseline"}],
    },
}


def build(inputs: Any) -> Any:
    """Return a linear model; `forward(numeric [B, F], category [B, C]) -> [B]`."""
    import torch
    from torch import nn

    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = nn.Linear(len(inputs.numeric), 1)
            self.level = nn.Embedding(inputs.cardinalities[0], 1)

        def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
            return (self.slope(numeric) + self.level(category[:, 0])).squeeze(1)

    return Linear()


def keys_of(partitions: int) -> list[str]:
    """Return the keys of the first partitions."""
    return [(FIRST + timedelta(n)).isoformat() for n in range(partitions)]


def partition(number: int) -> pl.DataFrame:
    """Return one partition: 128 columns, 25 MB of Parquet, since random numbers do not compress."""
    draw = np.random.default_rng(number)
    day = FIRST + timedelta(number)
    values = draw.standard_normal((len(NUMBERS), ROWS), dtype=np.float32)
    shop, region = draw.integers(0, 400, ROWS), draw.integers(0, 8, ROWS)
    return pl.DataFrame(
        {
            "partition_date": pl.repeat(day, ROWS, dtype=pl.Date, eager=True),
            "row": np.arange(ROWS),
            "known_at": pl.repeat(datetime(day.year, day.month, day.day, 12, tzinfo=UTC), ROWS, eager=True),
            "label": (values[0] - values[1] + draw.standard_normal(ROWS)).astype(np.float32),
            "weight": draw.integers(1, 4, ROWS).astype(np.float32),
            "shop": pl.Series(shop, dtype=pl.Int64).cast(pl.String),
            "region": pl.Series(region, dtype=pl.Int64).cast(pl.String),
            "seller": draw.integers(0, 10**9, ROWS),
            **dict(zip(NUMBERS, values, strict=True)),
        }
    )


def spec_of(train: int, validation: int = VALIDATION, holdout: int = HOLDOUT) -> Any:
    """Return the pipeline with these partitions in its window."""
    from ml_assets.model.steps.spec import PipelineSpec

    window = {"train": train, "validation": validation, "holdout": holdout}
    return PipelineSpec.model_validate({**DECLARED, "window": window})


def publish_partitions(platform: Any, partitions: int) -> None:
    """Publish the first partitions of the table that main does not have yet."""
    from ml_assets.data.tables.cadence import Cadence
    from ml_assets.data.tables.declared import NOTHING_DECLARED
    from ml_assets.data.tables.publish.publish import publish_in_chunks
    from ml_assets.data.tables.reader import TableReader
    from ml_assets.data.tables.spec import Incoming, PublishingRun, TableSpec
    from ml_assets.data.validation.contract import Contract
    from ml_assets.data.validation.volume import VolumeRule

    types = {"partition_date": "date", "known_at": "datetime", "row": "int64", "seller": "int64"}
    types |= {"shop": "string", "region": "string", "label": "float32", "weight": "float32"}
    described = [{"name": name, "dtype": types.get(name, "float32")} for name in partition(0).columns]
    table = TableSpec(
        kind="features",
        name="wide",
        contract=Contract.model_validate({"primary_key": ["partition_date", "row"], "columns": described}),
        cadence=Cadence("daily", FIRST),
        volume=VolumeRule(),
        code_version="v1",
    )
    known = set(TableReader.at(platform.lake).keys(TABLE))

    def incoming() -> Iterator[Incoming]:
        for number, key in enumerate(keys_of(partitions)):
            if key not in known:
                yield Incoming(key=key, data=partition(number))

    run = PublishingRun(run_id="run")
    for found in publish_in_chunks(
        platform.lake, platform.ledger, table, incoming(), run, NOTHING_DECLARED, CHUNK_BYTES
    ):
        if found.rejected:
            raise SystemExit(f"rejected: {found.rejected}")


class Silent:
    """Page that shows nothing."""

    def info(self, text: str) -> None:
        """Show nothing."""

    def warning(self, text: str) -> None:
        """Show nothing."""

    def observe(self, step: int, numbers: Any) -> None:
        """Show nothing."""


def train_small(platform: Any) -> tuple[Any, Any]:
    """Train on the first four partitions; return the training set and the trained model."""
    from ml_assets.data.tables.reader import TableReader
    from ml_assets.model.steps.snapshot import take_snapshot
    from ml_assets.model.steps.train import train_model
    from ml_assets.model.steps.values import ValidatedWindow

    small, keys = spec_of(2, 1, 1), tuple(keys_of(4))
    commit = TableReader.at(platform.lake).commit_id
    window = ValidatedWindow(commit=commit, table=TABLE, keys=keys, stale={}, inputs=(), declared="")
    training_set, _ = take_snapshot(small, platform, keys[-1], window, "run")
    return training_set, train_model(small, platform, training_set, Silent(), run_id="run", resources={})


def window_of(platform: Any, training_set: Any, partitions: int, folder: Path) -> tuple[Any, Any]:
    """Return the pipeline and the training set of a window of the first partitions. All their rows are taken."""
    from ml_assets.data.snapshots.builder import write_index
    from ml_assets.data.snapshots.split_reader import (
        FITTED,
        MANIFEST,
        SPLITS,
        PartitionIndex,
        Shard,
        open_snapshot,
    )
    from ml_assets.data.tables.reader import TableReader
    from ml_assets.model.steps.identity import settings_digest
    from ml_assets.model.steps.snapshot import row_choice, source_values

    spec, keys = spec_of(partitions - VALIDATION - HOLDOUT), keys_of(partitions)
    reader = TableReader.at(platform.lake)
    split, _ = row_choice(spec, keys)
    small = open_snapshot(Path(training_set.job.snapshot))
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(small.folder / FITTED, folder)
    first, indexes, shards = 0, [], []
    for name in SPLITS:
        rows = len(getattr(split, name)) * ROWS
        indexes.append(write_index(folder, name, [np.arange(first, first + rows)]))
        if (
            name == "validation"
        ):  # the step measures the loss of the weights again, on the rows of the training
            shards += small.shards_of(name)
            for shard in small.shards_of(name):
                shutil.copy(small.folder / shard.path, folder)
        else:
            shards.append(Shard(split=name, path=f"{name}.arrow", sha256="", rows=rows, bytes=0))
        first += rows
    snapshot = replace(
        small,
        folder=folder,
        source=source_values(spec, reader, TABLE, keys),
        split_config_hash=split.config_hash,
        index=tuple(
            PartitionIndex(key=key, split=split.split_of[key], rows=ROWS, excluded={}) for key in keys
        ),
        splits=tuple(indexes),
        shards=tuple(shards),
    )
    (folder / MANIFEST).write_text(snapshot.to_json())
    job = replace(training_set.job, snapshot=str(folder), snapshot_digest=snapshot.digest)
    return spec, replace(
        training_set,
        job=job,
        keys=tuple(keys),
        read=snapshot.source.digest,
        settings=settings_digest(spec, job),
        source_commit=reader.commit_id,
    )
