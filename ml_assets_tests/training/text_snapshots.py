"""Rows with a text each, for tests of blobs: a snapshot of them, and a job that learns to continue them."""

import zlib
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl

from ml_assets.data.snapshots.builder import build_snapshot
from ml_assets.data.snapshots.spec import InputColumns, RowSpec
from ml_assets.data.snapshots.split_reader import Snapshot, SourceValues
from ml_assets.extras.drills.fixture import FIRST_DAY, ROW_SPEC
from ml_assets_tests.snapshots.chosen_rows import chosen_rows
from ml_assets_tests.training.small_jobs import split_of

SPEC = RowSpec(
    partition=ROW_SPEC.partition,
    label=ROW_SPEC.label,
    label_known_at=ROW_SPEC.label_known_at,
    cutoffs=ROW_SPEC.cutoffs,
    blob="text",
)
TOKENS = 20


def text_of(row: int) -> bytes:
    """The tokens of a row: counting up from some number, with a slip here and there."""
    chance = np.random.default_rng(row)
    tokens = (chance.integers(0, 64) + np.arange(TOKENS) + (chance.random(TOKENS) < 0.1)) % 64
    return tokens.astype(np.uint8).tobytes()


def stored(row: int) -> bytes:
    """The blob of a row, of another length each."""
    return zlib.compress(text_of(row), level=1) + bytes(row % 7)


def text_table(days: int = 10, rows_a_day: int = 30) -> pl.DataFrame:
    """`days` partitions; the label says nothing."""
    rows = days * rows_a_day
    dates = [FIRST_DAY + timedelta(days=row // rows_a_day) for row in range(rows)]
    known_at = pl.col("date").cast(pl.Datetime("us", "UTC")) + pl.duration(hours=30)
    return pl.DataFrame(
        {
            "date": dates,
            "label": np.zeros(rows, dtype=np.int8),
            "length": np.arange(rows, dtype=np.float32),
            "text": pl.Series([stored(row) for row in range(rows)], dtype=pl.Binary),
        }
    ).with_columns(known_at.alias("label_known_at"))


def text_snapshot(into: Path, table: pl.DataFrame | None = None, shard_bytes: int = 60_000) -> Snapshot:
    """Several shards to train on."""
    table = text_table() if table is None else table
    chosen = chosen_rows(table, split_of(table), SPEC, InputColumns(numeric=("length",)))
    return build_snapshot(
        chosen, source=SourceValues(table="features/small"), into=into, shard_bytes=shard_bytes
    )
