"""Three years of readings of 1,000 devices, their daily features, and a pipeline that trains from them."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

HERE = "benchmarks.claims.data._backfill_tables"
FIRST = date(2021, 1, 1)
DEVICES, SENSORS = 1_000, 10
PER_DEVICE = 100
"""Readings of a device on one day."""
ROW_BYTES = 8 + 4 + 8 * SENSORS
READINGS, DAILY = "datasets/readings", "features/daily"
MODEL = "next_day"


def read_readings(day: date) -> pl.DataFrame:
    """Return 100,000 rows, 9.2 MB in memory; their values do not compress well, as those of real sensors."""
    draw = np.random.default_rng(day.toordinal())
    rows = DEVICES * PER_DEVICE
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    step = timedelta(days=1) / PER_DEVICE
    at = pl.Series([midnight + n * step for n in range(PER_DEVICE)], dtype=pl.Datetime("us", "UTC"))
    values = draw.normal(size=(SENSORS, rows))
    return pl.DataFrame(
        {
            "at": at[np.repeat(np.arange(PER_DEVICE), DEVICES)],
            "device": pl.Series(np.tile(np.arange(DEVICES, dtype=np.int32), PER_DEVICE)),
            **{f"sensor_{n}": values[n] for n in range(SENSORS)},
        }
    )


def daily(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Return one row per device and day: means of the day before, and the mean of the first sensor as the label."""
    readings = inputs[READINGS].with_columns(pl.col("at").dt.date().alias("partition_date"))
    means = readings.group_by("partition_date", "device").agg(
        pl.col(f"sensor_{n}").mean().cast(pl.Float32) for n in range(SENSORS)
    )
    before = means.select(
        pl.col("partition_date") + timedelta(days=1), "device", pl.exclude("partition_date", "device")
    )
    labels = means.select("partition_date", "device", pl.col("sensor_0").alias("label"))
    return (
        labels.filter(pl.col("partition_date").is_between(first, last))
        .join(before, on=["partition_date", "device"], how="left")
        .with_columns(
            pl.col("partition_date").cast(pl.Datetime("us", "UTC")).alias("predicted_at"),
            (pl.col("partition_date") + timedelta(days=1))
            .cast(pl.Datetime("us", "UTC"))
            .alias("label_known_at"),
        )
    )


def build(inputs: Any) -> Any:
    """Return a linear model; `forward(numeric [B, F], category [B, 0]) -> [B]`."""
    import torch
    from torch import nn

    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = nn.Linear(len(inputs.numeric), 1)

        def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
            return self.slope(numeric).squeeze(1)

    return Linear()


def components(days: int) -> dict[str, dict[str, Any]]:
    """Return the attributes of the three components, as in a `defs.yaml`, for `days` partitions."""
    partitions = {
        "cadence": "daily",
        "start": FIRST.isoformat(),
        "end": (FIRST + timedelta(days - 1)).isoformat(),
    }
    sensors = [f"sensor_{n}" for n in range(SENSORS)]
    dataset = {
        "name": "readings",
        "source": {"function": f"{HERE}.read_readings"},
        "partitions": partitions,
        "contract": {
            "primary_key": ["at", "device"],
            "event_time": "at",
            "columns": [
                {"name": "at", "dtype": "datetime"},
                {"name": "device", "dtype": "int32", "ge": 0},
                {"names": sensors, "dtype": "float64", "ge": -10, "le": 10},
            ],
        },
    }
    features = {
        "name": "daily",
        "function": f"{HERE}.daily",
        "inputs": [{"table": READINGS, "lookback": 1, "known_at": []}],
        "partitions": partitions,
        "labels": ["label", "label_known_at"],
        "contract": {
            "primary_key": ["partition_date", "device"],
            "columns": [
                {"name": "partition_date", "dtype": "date"},
                {"name": "device", "dtype": "int32"},
                {"name": "label", "dtype": "float32"},
                {"names": sensors, "dtype": "float32", "nullable": True},
                {"names": ["predicted_at", "label_known_at"], "dtype": "datetime"},
            ],
        },
    }
    pipeline = {
        "name": MODEL,
        "partitions": partitions,
        "features": {
            "table": DAILY,
            "numeric": sensors,
            "label": "label",
            "label_known_at": "label_known_at",
            "primary_key": ["partition_date", "device"],
        },
        "window": {"train": days - 4, "validation": 2, "holdout": 2},
        "model": {"function": f"{HERE}.build"},
        "training": {"epochs": 1, "global_batch": 1024, "learning_rate": 0.1, "device": "cpu"},
        "evaluation": {
            "objective": "regression",
            "bootstrap_unit": "partition_date",
            "gates": [{"name": "low error", "metric": "rmse", "at_most": 10.0}],
        },
    }
    return {"dataset": dataset, "features": features, "pipeline": pipeline}
