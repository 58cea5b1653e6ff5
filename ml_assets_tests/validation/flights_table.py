"""A small table of flights for these tests: its contract, and days that keep it."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import polars as pl
import yaml

from ml_assets.data.validation.contract import Contract

CARRIERS = ["AA", "B6", "UA"]

CONTRACT_YAML = """
primary_key: [carrier, flight, scheduled]
event_time: scheduled
event_time_zone: America/New_York
columns:
  - {name: scheduled, dtype: datetime}
  - {name: carrier, dtype: string, isin: [AA, B6, UA]}
  - {name: flight, dtype: int64, ge: 1}
  - {name: tail, dtype: string, pattern: "N[0-9]+", nullable: true}
  - {name: ticket, dtype: int32, unique: true}
  - {names: [delay, distance], dtype: float64, ge: -100, le: 5000, nullable: true}
  - {name: speed, dtype: float32}
"""


def contract(**changes: Any) -> Contract:
    """The contract, with some of its top-level settings changed."""
    return Contract.model_validate(yaml.safe_load(CONTRACT_YAML) | changes)


def day(first: date, rows: int = 24) -> pl.DataFrame:
    """A day that keeps the contract; its first event is at 08:00 UTC."""
    start = datetime(first.year, first.month, first.day, 8, tzinfo=UTC)
    return pl.DataFrame(
        {
            "scheduled": [start + timedelta(minutes=row) for row in range(rows)],
            "carrier": [CARRIERS[row % 3] for row in range(rows)],
            "flight": [100 + row for row in range(rows)],
            "tail": [None if row % 5 == 0 else f"N{row}" for row in range(rows)],
            "ticket": list(range(rows)),
            "delay": [None if row % 7 == 0 else float(row) for row in range(rows)],
            "distance": [500.0] * rows,
            "speed": [400.0] * rows,
        },
        schema_overrides={
            "scheduled": pl.Datetime("us", "UTC"),
            "tail": pl.String,
            "ticket": pl.Int32,
            "delay": pl.Float64,
            "speed": pl.Float32,
        },
    )


def days(count: int) -> dict[str, pl.DataFrame]:
    """Return `count` clean days, from 2013-01-01 on."""
    return {str(one): day(one) for one in (date(2013, 1, 1) + timedelta(days=n) for n in range(count))}


def bounds(keys: Any) -> dict[str, tuple[date, date]]:
    """Return the bounds of each day."""
    return {key: (date.fromisoformat(key), date.fromisoformat(key)) for key in keys}
