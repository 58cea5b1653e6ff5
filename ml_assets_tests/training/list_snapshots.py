"""Snapshots whose rows form lists."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from ml_assets.data.snapshots.builder import build_snapshot
from ml_assets.data.snapshots.row_choice import ChosenRows
from ml_assets.data.snapshots.split_reader import Snapshot, SourceValues
from ml_assets.extras.drills.fixture import ROW_SPEC
from ml_assets_tests.snapshots.chosen_rows import chosen_rows
from ml_assets_tests.training.small_jobs import INPUTS, feature_table, split_of

SPEC = replace(ROW_SPEC, objective="ranking", group="session")


def sessions(days: int = 14, sizes: Sequence[int] = (7, 1, 12, 3, 20), seed: int = 4) -> pl.DataFrame:
    """Each day has sessions of `sizes` rows, in mixed order. The label is higher where `x0` is high; a missing
    one is 0."""
    random = np.random.default_rng(seed)
    day = np.repeat(np.arange(len(sizes)), sizes)
    table = feature_table(days, len(day))
    number = np.concatenate([1000 * one + random.permutation(day) for one in range(days)])
    grade = (np.nan_to_num(table["x0"].to_numpy()) + random.normal(0, 0.3, table.height)).clip(0, 2).round()
    return table.with_columns(pl.Series("session", number), pl.Series("label", grade))


def chosen_lists(table: pl.DataFrame) -> ChosenRows:
    return chosen_rows(table, split_of(table), SPEC, INPUTS)


def list_snapshot(into: Path, table: pl.DataFrame | None = None, shard_bytes: int = 3_000) -> Snapshot:
    chosen = chosen_lists(sessions() if table is None else table)
    source = SourceValues(table="features/small", columns=("label",), partitions={"2024-01-01": "0" * 32})
    return build_snapshot(chosen, source=source, into=into, shard_bytes=shard_bytes)
