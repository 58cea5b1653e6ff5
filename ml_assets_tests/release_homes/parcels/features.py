"""The features of features/parcels: facts that are known about a parcel when it is handed in."""

from collections.abc import Mapping
from datetime import date, timedelta

import polars as pl

from ml_assets.data.features.rolling import window_sums

READ = ["id", "counter", "weight", "handed_in_at", "arrived_at", "late"]


def build(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.DataFrame:
    """Return one row per parcel of the days `first`..`last`."""
    parcels = inputs["datasets/parcels"].select(READ).collect()
    rows = parcels.with_columns(pl.col("handed_in_at").dt.date().alias("partition_date")).filter(
        pl.col("partition_date").is_between(first, last)
    )
    rows = window_sums(
        rows,
        parcels,
        by=["counter"],
        at="handed_in_at",
        known_at="arrived_at",
        sums=["late"],
        windows={"1d": timedelta(days=1)},
        prefix="counter",
    )
    return rows.select(
        "id",
        "partition_date",
        pl.col("handed_in_at").alias("predicted_at"),
        "counter",
        pl.col("weight").cast(pl.Float32),
        pl.col("counter_1d_n").cast(pl.Float32),
        pl.col("counter_1d_late").cast(pl.Float32),
        pl.col("late").cast(pl.Int8),
        pl.col("arrived_at").alias("label_known_at"),
    )
