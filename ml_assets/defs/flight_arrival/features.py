"""Features of `flight_arrival`: those of `flight_departures` that say most, with the class of the arrival as label."""

from collections.abc import Mapping
from datetime import date

import polars as pl

from ml_assets.defs.flights.features import flight_departures

NUMERIC = (
    "departure_minute",
    "block_minutes",
    "distance",
    "departures_that_hour",
    "wind_speed",
    "precip",
    "visib",
    "rain_6h",
    "carrier_24h_delay",
    "dest_24h_delay",
    "slot_28d_delay",
    "number_28d_delay",
    "origin_3h_departure_delay",
    "origin_3h_waiting",
    "tail_last_delay",
)
"""Numeric features, float32, in stored order."""

CATEGORICAL = ("carrier", "origin", "dest", "weekday", "departure_hour")
"""Categorical features, strings."""

KEY = ("partition_date", "carrier", "flight", "origin")

EARLY, LATE, VERY_LATE = -15, 15, 60
"""Minutes behind schedule beyond which a flight is early, late and very late."""


def flight_arrivals(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.DataFrame:
    """One row per flight scheduled on the local dates `first`..`last`, sorted by key.

    `inputs` are those of `flight_departures`. The label `arrival` is early, on time, late or very late; null
    where the flight did not arrive.
    """
    delay = pl.col("arr_delay")
    arrival = pl.when(delay > VERY_LATE).then(pl.lit("very late")).when(delay > LATE).then(pl.lit("late"))
    arrival = (
        arrival.when(delay < EARLY).then(pl.lit("early")).when(delay.is_not_null()).then(pl.lit("on time"))
    )
    outcomes = inputs["datasets/flights"].select(
        pl.col("flight_date").alias("partition_date"), *KEY[1:], arrival.alias("arrival")
    )
    outcomes = outcomes.collect()
    rows = flight_departures(inputs, first, last).join(outcomes, on=KEY, how="left", maintain_order="left")
    return rows.select(
        *KEY,
        *(name for name in CATEGORICAL if name not in KEY),
        "predicted_at",
        *NUMERIC,
        "arrival",
        "label_known_at",
    )
