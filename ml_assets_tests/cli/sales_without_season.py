"""Another feature function of `store_demand`, as somebody may edit it: the season counts for nothing."""

from collections.abc import Mapping
from datetime import date

import polars as pl

from ml_assets.defs.store_demand.features import sales_features


def without_season(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Return the features of `store_demand` with a constant season."""
    return sales_features(inputs, first, last).with_columns(pl.lit(0.0, pl.Float32).alias("season_sin"))
