"""Snapshot of a wide feature table: time per byte with 3,000 columns beside 100 columns.

Both tables have the same rows of random numbers. Measured: choosing rows, fitting and writing the shards, in seconds of
this process's CPU time, so that other work on the machine does not count.
"""

import tempfile
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks._report import Result, emit, parse_args
from ml_assets.data.snapshots.builder import build_snapshot
from ml_assets.data.snapshots.partitions import store_partitions
from ml_assets.data.snapshots.row_choice import choose_rows
from ml_assets.data.snapshots.spec import Cutoffs, InputColumns, RowSpec, split_by_time
from ml_assets.data.snapshots.split_reader import SourceValues

FEW, MANY = 100, 3_000
"""Columns of the two tables."""
DAYS, FIRST = 20, date(2024, 1, 1)
MOST = 2.0
"""Bar: time per byte of the wide table, as a multiple of that of the narrow one."""


def table_of(rows: int, columns: int) -> pl.DataFrame:
    """Return `rows` rows over 20 days with `columns` numbers, float32."""
    random = np.random.default_rng(columns)
    days = [FIRST + timedelta(days=i * DAYS // rows) for i in range(rows)]
    return pl.DataFrame(
        {
            "date": days,
            "label": random.integers(0, 2, rows).astype(np.float32),
            "label_known_at": [datetime(2024, 12, 1, tzinfo=UTC)] * rows,
            **{f"x{i}": random.standard_normal(rows, dtype=np.float32) for i in range(columns)},
        }
    )


def seconds_of(rows: int, columns: int) -> float:
    """Return the CPU seconds of one snapshot."""
    table, names = table_of(rows, columns), [f"x{i}" for i in range(columns)]
    spec = RowSpec(
        partition="date",
        label="label",
        label_known_at="label_known_at",
        cutoffs=Cutoffs.all_at(datetime(2025, 1, 1, tzinfo=UTC)),
    )
    keys = table["date"].unique().sort().cast(pl.String).to_list()
    source = SourceValues(table="features/wide", columns=("label",), partitions={"2024-01-01": "0" * 32})
    with tempfile.TemporaryDirectory() as folder:
        partitions = store_partitions(table, spec.partition, Path(folder) / "table")
        split, inputs = (
            split_by_time(keys, train=16, validation=2, holdout=2),
            InputColumns(numeric=tuple(names)),
        )
        began = time.process_time()
        chosen = choose_rows(partitions, split, spec, inputs, into=Path(folder) / "snapshots")
        build_snapshot(chosen, source=source, into=Path(folder) / "snapshots")
        return time.process_time() - began


def main() -> int:
    """Measure both tables in turn, and print the ratio of their times per byte; return the exit status."""
    args = parse_args(__doc__)
    rows, rounds = (20_000, 1) if args.quick else (100_000, 2)
    seconds_of(1_000, FEW)  # imports
    few, many = (
        min(seconds_of(rows, columns) / (rows * columns * 4) for _ in range(rounds))
        for columns in (FEW, MANY)
    )
    return emit(
        [
            Result(
                name=f"snapshot of {MANY:,} columns × {rows:,} rows, CPU time",
                value=round(1e9 * many, 2),
                unit="ns a byte",
                peers={f"{FEW} columns": round(1e9 * few, 2)},
                ratio=round(many / few, 2),
                bar=f"≤ {MOST:g} × the time per byte of {FEW} columns",
                ok=many <= MOST * few,
            )
        ],
        json=args.json,
    )


if __name__ == "__main__":
    raise SystemExit(main())
