"""Features known when an advertisement is shown: its own columns, and clicks of three days by advertiser and site."""

from collections.abc import Mapping
from datetime import date, timedelta

import polars as pl

NUMBERS = [f"n{i:02}" for i in range(1, 14)]
CATEGORICAL = [f"c{i:02}" for i in range(1, 27)]
RATES = {"site": "c05", "advertiser": "c15"}
"""Name of the features of past days → category whose rows they count."""
NUMERIC = [*NUMBERS, *(f"{name}_{what}" for name in RATES for what in ("shown", "clicked"))]
DAYS = 3
"""Days before. The table's `lookback` in defs.yaml."""


def click_features(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """One row for each advertisement shown on the days `first` to `last`. Integers are counted in any order."""
    log = inputs["datasets/clicks"]
    rows = log.filter(pl.col("day").is_between(first, last))
    for name, category in RATES.items():
        counts = (
            log.group_by("day", category)
            .agg(pl.len().alias("shown"), pl.col("clicked").sum().alias("clicked"))
            .select(pl.col("day"), category, "shown", "clicked")
        )
        past = (
            pl.concat(
                [counts.with_columns(pl.col("day") + timedelta(days=one)) for one in range(1, DAYS + 1)]
            )
            .group_by("day", category)
            .agg(
                pl.col("shown").sum().cast(pl.Float32).alias(f"{name}_shown"),
                pl.col("clicked").sum().cast(pl.Float32).alias(f"{name}_clicked"),
            )
        )
        rows = rows.join(past, on=["day", category], how="left", maintain_order="left")
    return rows.select(
        pl.col("day").alias("partition_date"),
        "row",
        pl.col("shown_at").alias("predicted_at"),
        *(pl.col(name).cast(pl.Float32) for name in NUMERIC),
        *CATEGORICAL,
        pl.col("clicked").cast(pl.Int8),
        pl.col("closed_at").alias("label_known_at"),
    )
