"""Features known on Monday morning about the week that starts: plans, and the four weeks before."""

from collections.abc import Mapping
from datetime import date, timedelta

import polars as pl

LAGS = (1, 2, 3, 4)
"""Weeks back. The table's `lookback` in defs.yaml is the largest of them."""


def sales_features(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """One row per (week, store, product) of the weeks `first`..`last`, as known at the week's start.

    Promotion and price are planned ahead; units are known when their week is closed. Lags the source does
    not have yet are null.
    """
    sales = inputs["datasets/sales"]
    rows = sales.filter(pl.col("week").is_between(first, last))
    for lag in LAGS:
        earlier = sales.select(
            pl.col("week") + timedelta(weeks=lag), "store", "product", pl.col("units").alias(f"units_{lag}w")
        )
        rows = rows.join(earlier, on=["week", "store", "product"], how="left", maintain_order="left")
    year_angle = pl.col("week").dt.ordinal_day() * (2 * 3.141592653589793 / 365.25)
    return rows.select(
        pl.col("week").alias("partition_date"),
        "store",
        "product",
        pl.col("week").cast(pl.Datetime("us", "UTC")).alias("predicted_at"),
        pl.col("promotion").cast(pl.Float32),
        pl.col("price").cast(pl.Float32),
        year_angle.sin().cast(pl.Float32).alias("season_sin"),
        year_angle.cos().cast(pl.Float32).alias("season_cos"),
        *(pl.col(f"units_{lag}w").cast(pl.Float32) for lag in LAGS),
        pl.mean_horizontal(f"units_{lag}w" for lag in LAGS).cast(pl.Float32).alias("units_mean_4w"),
        pl.col("units").cast(pl.Float32),
        pl.col("closed_at").alias("label_known_at"),
    )
