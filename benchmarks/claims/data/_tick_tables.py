"""A dataset of ten years of days, its feature table, and a home that holds both: what a sensor looks at each minute."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from ml_assets.components import Dataset, FeatureTable
from ml_assets.data.tables.declared import NOTHING_DECLARED
from ml_assets.data.tables.publish.publish import publish
from ml_assets.data.tables.spec import Incoming, PublishingRun, TableSpec
from resources.platform import Platform
from resources.settings import Settings

HERE = "benchmarks.claims.data._tick_tables"
FIRST = date(2014, 1, 1)
READINGS, DAILY = "datasets/readings", "features/daily"
NEWEST: list[date] = [FIRST]
"""Day that the source calls its latest; one element, so that a benchmark can change it."""


def read(day: date) -> pl.DataFrame:
    """Return two rows."""
    return rows(day, 0.0)


def rows(day: date, value: float) -> pl.DataFrame:
    """Return the rows of a day with a value of its readings."""
    at = [datetime.combine(day, time(hour), UTC) for hour in (6, 18)]
    return pl.DataFrame(
        {"at": at, "value": [value, value + 1]}, schema_overrides={"at": pl.Datetime("us", "UTC")}
    )


def latest() -> date:
    """Return the latest day of the source."""
    return NEWEST[0]


def days(count: int) -> list[date]:
    """Return the first days of the table."""
    return [FIRST + timedelta(days=number) for number in range(count)]


COLUMNS = [{"name": "at", "dtype": "datetime"}, {"name": "value", "dtype": "float64"}]
FEATURE_COLUMNS: list[dict[str, Any]] = [
    {"name": "at", "dtype": "datetime"},
    {"name": "partition_date", "dtype": "date"},
    {"names": ["predicted_at", "label_known_at"], "dtype": "datetime"},
    {"names": ["label", "number"], "dtype": "float32"},
]


def dataset(source: dict[str, Any] | None = None) -> Dataset:
    """Return the dataset, from `source` or from `read`."""
    section = source or {"function": f"{HERE}.read", "latest": f"{HERE}.latest"}
    attributes = {
        "name": "readings",
        "source": {**section, "watch": {}},
        "partitions": {"cadence": "daily", "start": FIRST.isoformat()},
        "contract": {"primary_key": ["at"], "event_time": "at", "columns": COLUMNS},
    }
    return Dataset(Dataset.spec_type.model_validate(attributes))


def features(inputs: Any, first: date, last: date) -> pl.LazyFrame:
    """Return the readings of the days with the columns of a feature table, whatever the name of the input."""
    (readings,) = inputs.values()
    rows = readings.with_columns(pl.col("at").dt.date().alias("partition_date"))
    return rows.filter(pl.col("partition_date").is_between(first, last)).select(*feature_columns())


def feature_columns() -> list[pl.Expr]:
    """Return the columns of a feature table of the readings."""
    return [
        pl.col("at"),
        pl.col("at").dt.date().alias("partition_date"),
        pl.col("at").dt.truncate("1d").alias("predicted_at"),
        (pl.col("at").dt.truncate("1d") + timedelta(days=1)).alias("label_known_at"),
        pl.col("value").cast(pl.Float32).alias("label"),
        pl.col("value").cast(pl.Float32).alias("number"),
    ]


def feature_table() -> FeatureTable:
    """Return the feature table of the readings."""
    attributes = {
        "name": "daily",
        "function": f"{HERE}.features",
        "inputs": [{"table": READINGS, "lookback": 0, "known_at": []}],
        "partitions": {"cadence": "daily", "start": FIRST.isoformat()},
        "labels": ["label", "label_known_at"],
        "contract": {"primary_key": ["at"], "columns": FEATURE_COLUMNS},
    }
    return FeatureTable(FeatureTable.spec_type.model_validate(attributes))


def fill(
    platform: Platform,
    table: TableSpec,
    keys: Sequence[date],
    value: float = 0.0,
    columns: Sequence[pl.Expr] = (),
) -> None:
    """Publish days of a table, which must all land, with `columns` of the readings, or all."""
    incoming = [
        Incoming(key=day.isoformat(), data=rows(day, value).select(*(columns or [pl.all()]))) for day in keys
    ]
    run = PublishingRun(run_id=f"fill-{value}")
    result = publish(platform.lake, platform.ledger, table, incoming, run, NOTHING_DECLARED)
    if result.rejected or result.failed:
        raise SystemExit(f"{table.table}: {result.rejected} {result.failed}")


def home_with(folder: Path, count: int) -> Platform:
    """Return a home whose dataset and feature table have `count` days."""
    platform = Platform(Settings(home=folder))
    fill(platform, dataset().table, days(count))
    return platform
