"""Fixture of the drills: a synthetic snapshot, a job on it, and the same training without a fault.

Not here: the damage, and the checks afterwards (drills).
"""

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from ml_assets.data.snapshots.builder import build_snapshot
from ml_assets.data.snapshots.partitions import store_partitions
from ml_assets.data.snapshots.row_choice import choose_rows
from ml_assets.data.snapshots.spec import Cutoffs, InputColumns, RowSpec, split_by_time
from ml_assets.data.snapshots.split_reader import Snapshot, SourceValues
from ml_assets.foundation.code.code_version import code_version
from resources.job.job import TrainingJob, TrainingResult
from resources.job.training_settings import TrainingSettings
from resources.launcher.local import LocalLauncher

NUMERIC, CATEGORICAL = ("x0", "x1", "x2"), ("colour",)
FIRST_DAY = date(2024, 1, 1)
ROW_SPEC = RowSpec(
    partition="date",
    label="label",
    label_known_at="label_known_at",
    cutoffs=Cutoffs.all_at(datetime(2024, 12, 31, tzinfo=UTC)),
)
_DAYS, _ROWS_A_DAY, _SEED = 14, 96, 11
_MODEL = "ml_assets.extras.drills.drill_model.drill_model"
_PACE = 0.002
CHECKPOINT_EVERY_STEPS = 10


@dataclass(frozen=True)
class Fixture:
    """Folder that drills share, with the snapshot and the job."""

    folder: Path
    """Each drill trains in its own folder below. The path must be short, for sockets."""

    @cached_property
    def snapshot(self) -> Snapshot:
        """Snapshot with 960 rows to train on in several shards, 192 each to validate and to hold out."""
        table = learnable_table(_DAYS, _ROWS_A_DAY, _SEED)
        keys = table["date"].unique().sort().cast(pl.String).to_list()
        chosen = choose_rows(
            store_partitions(table, ROW_SPEC.partition, self.folder / "table"),
            split_by_time(keys, train=_DAYS - 4, validation=2, holdout=2),
            ROW_SPEC,
            InputColumns(numeric=NUMERIC, categorical=CATEGORICAL),
            into=self.folder / "snapshots",
        )
        source = SourceValues(table="features/drill", columns=("label",), partitions={"2024-01-01": "0" * 32})
        return build_snapshot(chosen, source=source, into=self.folder / "snapshots", shard_bytes=8_000)

    @cached_property
    def job(self) -> TrainingJob:
        """Job of three epochs of 40 steps on two workers, with the same bits on any number of workers."""
        return TrainingJob(
            model="drill",
            partition="2024-01-14",
            model_function=_MODEL,
            objective="binary",
            hyperparameters={"pace": _PACE},
            snapshot=str(self.snapshot.folder),
            snapshot_digest=self.snapshot.digest,
            code_version=code_version(_MODEL),
            seed=3,
            settings=TrainingSettings(
                epochs=3,
                patience=3,
                global_batch=24,
                lanes=8,
                determinism="bitwise",
                learning_rate=0.02,
                checkpoint_every_steps=CHECKPOINT_EVERY_STEPS,
                log_every_steps=1,
                device="cpu",
            ),
        )

    @cached_property
    def undisturbed(self) -> TrainingResult:
        """Return the result of the job without a fault."""
        return train_undisturbed(self.job, self.folder / "undisturbed")

    def job_with(self, **settings: float) -> TrainingJob:
        """Return the job with other values of settings that change no weights."""
        changed = replace(self.job, settings=replace(self.job.settings, **settings))
        if changed.fingerprint != self.job.fingerprint:
            raise ValueError(
                f"{', '.join(settings)} change the weights, so there is no undisturbed training to compare with"
            )
        return changed

    @property
    def rows(self) -> int:
        """Rows of the training split."""
        return sum(shard.rows for shard in self.snapshot.shards_of("train"))

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch of the job."""
        return -(-self.rows // self.job.settings.global_batch)


def train_undisturbed(job: TrainingJob, folder: Path) -> TrainingResult:
    """Train `job` in `folder` without a fault; return the result to compare a disturbed training with."""
    return LocalLauncher().run(job, folder, lambda _: None, lambda _: None)


def learnable_table(days: int, rows_a_day: int, seed: int) -> pl.DataFrame:
    """Return `days` partitions of synthetic rows: label 1 if x0 plus noise is positive, some values missing."""
    generator = np.random.default_rng(seed)
    rows = days * rows_a_day
    numeric = generator.normal(size=(rows, len(NUMERIC))).astype(np.float32)
    label = (numeric[:, 0] + generator.normal(size=rows) > 0).astype(np.int8)
    numeric[generator.random(numeric.shape) < 0.05] = np.nan
    dates = [FIRST_DAY + timedelta(days=row // rows_a_day) for row in range(rows)]
    columns = {name: numeric[:, i] for i, name in enumerate(NUMERIC)}
    columns |= {
        "colour": generator.choice(["red", "green", "blue"], size=rows),
        "date": dates,
        "label": label,
    }
    known_at = pl.col("date").cast(pl.Datetime("us", "UTC")) + pl.duration(hours=30)
    return pl.DataFrame(columns).with_columns(known_at.alias("label_known_at"))
