"""A small daily pipeline for these tests: machines of a plant report each hour what they made.

Here: the source system, whose days a test can spoil; the feature and model functions a specification names;
the specifications as `defs.yaml` would have them. What runs them lives in `installation.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import numpy as np
import polars as pl

MACHINES = ["drill", "lathe", "mill", "press"]
HOURS = range(6, 18)
FIRST, LAST = date(2024, 1, 1), date(2024, 3, 31)
HERE = "ml_assets_tests.components.readings_pipeline"

READINGS, FEATURES = "datasets/readings", "features/shifts"
MODEL = "throughput"
TRAIN, VALIDATION, HOLDOUT = 10, 2, 6
WINDOW = TRAIN + VALIDATION + HOLDOUT


def days(count: int, start: int = 0) -> list[str]:
    """Consecutive partition keys from day `start` of the table on."""
    return [(FIRST + timedelta(start + n)).isoformat() for n in range(count)]


@dataclass
class Source:
    """The system that the readings come from. A test changes what it answers, then mends it."""

    spoiled: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = field(default_factory=dict)
    """Day → what its rows go through before they are handed out; it may raise."""
    latest: date = LAST
    asked: list[str] = field(default_factory=list)
    """Days in the order they were read."""

    def mend(self) -> None:
        """Reset the source to its first state."""
        self.__init__()


SOURCE = Source()


def read_readings(day: date) -> pl.DataFrame:
    """One row per machine and hour. `load` is planned ahead; `made` is known at the end of the day (UTC)."""
    SOURCE.asked.append(day.isoformat())
    draw = np.random.default_rng([5, day.toordinal()])
    cells = [(machine, hour) for machine in MACHINES for hour in HOURS]
    load = np.round(draw.random(len(cells)), 3)
    level = np.array([10.0 + 2 * MACHINES.index(machine) for machine, _ in cells])
    midnight = datetime.combine(day, time(), UTC)
    rows = pl.DataFrame(
        {
            "at": [midnight + timedelta(hours=hour) for _, hour in cells],
            "machine": [machine for machine, _ in cells],
            "load": load,
            "made": np.round(level + 20 * load + draw.normal(0, 0.5, len(cells)), 3),
            "closed_at": [midnight + timedelta(days=1)] * len(cells),
        }
    )
    spoil = SOURCE.spoiled.get(day.isoformat())
    return spoil(rows) if spoil else rows


def latest() -> date:
    """Return the latest day that is closed."""
    return SOURCE.latest


def shifts(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Return the plan for an hour, and the machine's output in that hour of the day before."""
    readings = inputs[READINGS].with_columns(pl.col("at").dt.date().alias("partition_date"))
    yesterday = readings.select(
        pl.col("at") + timedelta(days=1), "machine", pl.col("made").alias("made_yesterday")
    )
    rows = readings.filter(pl.col("partition_date").is_between(first, last))
    return rows.join(yesterday, on=["at", "machine"], how="left").select(
        "partition_date",
        "at",
        "machine",
        pl.col("at").dt.truncate("1d").alias("predicted_at"),
        pl.col("load").cast(pl.Float32),
        pl.col("made_yesterday").cast(pl.Float32),
        pl.col("made").cast(pl.Float32),
        pl.col("closed_at").alias("label_known_at"),
    )


def build(inputs: Any, *, start: float = 18.0) -> Any:
    """A linear model; `forward(numeric [B, F] float32, category [B, C] int64) -> [B]`, or `[B, classes]`."""
    import torch
    from torch import nn

    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.level = nn.Embedding(inputs.cardinalities[0], inputs.outputs)
            self.slope = nn.Linear(len(inputs.numeric), inputs.outputs)
            nn.init.constant_(self.level.weight, start)

        def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
            return (self.level(category[:, 0]) + self.slope(numeric)).squeeze(1)

    return Linear()


PARTITIONS = {"cadence": "daily", "start": FIRST.isoformat(), "end": LAST.isoformat()}

DATASET: dict[str, Any] = {
    "name": "readings",
    "description": "What each machine made in each hour.",
    "owners": ["team:plant"],
    "source": {
        "function": f"{HERE}.read_readings",
        "latest": f"{HERE}.latest",
        "watch": {"every_seconds": 30, "enabled": True},
    },
    "partitions": PARTITIONS,
    "contract": {
        "primary_key": ["at", "machine"],
        "event_time": "at",
        "columns": [
            {"name": "at", "dtype": "datetime"},
            {"name": "machine", "dtype": "string", "isin": MACHINES},
            {"name": "load", "dtype": "float64", "ge": 0, "le": 1},
            {"name": "made", "dtype": "float64", "ge": 0},
            {"name": "closed_at", "dtype": "datetime"},
        ],
    },
}

FEATURE_TABLE: dict[str, Any] = {
    "name": "shifts",
    "function": f"{HERE}.shifts",
    "inputs": [
        {"table": READINGS, "lookback": 1, "known_at": [{"column": "closed_at", "columns": ["made"]}]}
    ],
    "partitions": PARTITIONS,
    "labels": ["made", "label_known_at"],
    "automation_condition": "on_valid_inputs",
    "contract": {
        "primary_key": ["at", "machine"],
        "columns": [
            {"name": "partition_date", "dtype": "date"},
            {"name": "at", "dtype": "datetime"},
            {"name": "machine", "dtype": "string"},
            {"name": "predicted_at", "dtype": "datetime"},
            {"name": "load", "dtype": "float32", "ge": 0, "le": 1},
            {"name": "made_yesterday", "dtype": "float32", "nullable": True},
            {"name": "made", "dtype": "float32", "le": 100},
            {"name": "label_known_at", "dtype": "datetime"},
        ],
    },
}

PIPELINE: dict[str, Any] = {
    "name": MODEL,
    "partitions": PARTITIONS,
    "features": {
        "table": FEATURES,
        "numeric": ["load", "made_yesterday"],
        "categorical": ["machine"],
        "label": "made",
        "label_known_at": "label_known_at",
        "primary_key": ["at", "machine"],
    },
    "window": {"train": TRAIN, "validation": VALIDATION, "holdout": HOLDOUT},
    "model": {"function": f"{HERE}.build"},
    "training": {
        "epochs": 3,
        "global_batch": 16,
        "learning_rate": 0.5,
        "workers": 2,
        "device": "cpu",
        "log_every_steps": 10,
    },
    "evaluation": {
        "objective": "regression",
        "bootstrap_unit": "partition_date",
        "draws": 100,
        "min_slice_rows": 20,
        "slices": ["machine"],
        "baseline": {"groups": ["machine"]},
        "gates": [
            {"name": "beats the baseline", "metric": "rmse", "better_than": "baseline"},
            {"name": "far better than before", "metric": "rmse", "better_than": "champion", "margin": "30%"},
        ],
    },
    "schedule": {"cron": "0 3 * * *", "latest": f"{HERE}.latest"},
}
