"""Features of `flight_delay`: facts that are known two hours before a flight's scheduled departure.

Here: one pure function over tables of the lake, and the names of what it adds. Not here: reading or writing,
and what is fitted on training rows (`ml_assets.data.features.encoding`).

Known when: the timetable long before, with the aircraft assigned (the source names the aircraft that flew: a
swap in the last two hours is taken as known); a departure at `departed_at`; an arrival at `landed_at`; a
weather report at `known_at`. Other flights are read only through windows by those moments (`history`) or
`join_as_of`, never by date.
"""

import math
from collections.abc import Mapping
from datetime import date, timedelta

import polars as pl

from ml_assets.data.features.point_in_time import join_as_of
from ml_assets.data.features.rolling import window_sums
from ml_assets.defs.flights import history, rotation

LOOKBACK_DAYS = 32
"""Days of flights needed before the first day asked for; `lookback` in defs.yaml. The longest window is 28
days by the moment a fact became known, which is at most 3 days after the date of its flight; one more because
some predictions are made the evening before. The first days of the source simply have less history."""

WEATHER_LOOKBACK_DAYS = 1
"""Days of weather needed before the first day asked for."""

LEAD = timedelta(hours=2)
"""A prediction is made this long before scheduled departure."""

LATE_MINUTES = 15
"""A flight is late if it arrives more than this after schedule."""

_TIMETABLE = (
    "departure_minute",
    "departure_sin",
    "departure_cos",
    "arrival_minute",
    "arrival_sin",
    "arrival_cos",
    "block_minutes",
    "distance",
    "departures_that_hour",
    "own_departures_that_hour",
    "departures_that_day",
)
_PLACE = ("dest_latitude", "dest_longitude")
_AIRCRAFT = ("seats", "plane_age")
_WEATHER = (
    "temp",
    "dewp",
    "humid",
    "wind_speed",
    "wind_gust",
    "wind_north",
    "wind_east",
    "precip",
    "pressure",
    "visib",
    "weather_age",
    "temp_trend",
    "pressure_trend",
    "rain_6h",
    "fog_6h",
)
_LAST = ("tail_last_delay", "tail_idle", "number_last_delay")

NUMERIC = (*_TIMETABLE, *_PLACE, *_AIRCRAFT, *_WEATHER, *history.NUMERIC, *_LAST, *rotation.NUMERIC)
"""Numeric features, float32, in stored order. Nothing in them says which season it is: one year of data has
each season once, so a model would only learn which months were bad in 2013."""

CATEGORICAL = ("carrier", "origin", "dest", "manufacturer", "engine", "weekday", "departure_hour")
"""Categorical features, strings."""

_FLIGHTS = (
    "flight_date",
    "carrier",
    "flight",
    "origin",
    "dest",
    "tailnum",
    "distance",
    "sched_dep_time",
    "sched_arr_time",
    "dep_delay",
    "arr_delay",
    "scheduled_departure_at",
    "scheduled_arrival_at",
    "departed_at",
    "landed_at",
    "outcome_known_at",
)
"""Columns of `datasets/flights` that the features read. A change in another column makes no feature stale."""

_REPORTS = (
    "origin",
    "observed_at",
    "known_at",
    "temp",
    "dewp",
    "humid",
    "precip",
    "pressure",
    "visib",
    "wind_speed",
    "wind_dir",
    "wind_gust",
)
"""Columns of `datasets/weather` that the features read."""

_WEATHER_TOLERANCE = timedelta(hours=7)
"""Age of the oldest observation that counts; it was known for six of these hours."""
_TREND = timedelta(hours=3)
_STRONGEST_WIND = 150.0
"""Miles per hour. More than that is a broken sensor (1,048 on 12 February)."""
_FOG_MILES = 3.0
_FULL_CIRCLE = 2 * math.pi


def flight_departures(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.DataFrame:
    """One row per flight scheduled on the local dates `first`..`last`, sorted by key.

    `inputs` holds `datasets/flights` from `LOOKBACK_DAYS` before `first`, `datasets/weather` from
    `WEATHER_LOOKBACK_DAYS` before, and `datasets/planes` and `datasets/airports` whole. The answer has
    `partition_date`, the key, `predicted_at` (UTC), `CATEGORICAL`, `NUMERIC`, the label `late` (0 or 1; null
    where the flight did not arrive) and `label_known_at` (UTC). A range gives the same bytes as its days one
    by one.
    """
    flights = inputs["datasets/flights"].select(_FLIGHTS).collect()
    flights = flights.with_columns(
        (pl.col("scheduled_departure_at") - LEAD).alias("predicted_at"),
        (pl.col("sched_dep_time") // 100).cast(pl.String).str.zfill(2).alias("departure_hour"),
        (pl.col("arr_delay") > LATE_MINUTES).alias("late"),
        (pl.col("dep_delay") > LATE_MINUTES).alias("left_late"),
    )
    rows = flights.filter(pl.col("flight_date").is_between(first, last))
    rows = _with_timetable(rows)
    rows = _with_aircraft(rows, inputs["datasets/planes"])
    rows = _with_place(rows, inputs["datasets/airports"])
    rows = _with_weather(rows, inputs["datasets/weather"].select(_REPORTS).collect())
    rows = history.with_history(rows, flights)
    rows = _with_last_flights(rows, flights)
    rows = rotation.with_rotation(rows, flights)
    return rows.select(
        pl.col("flight_date").alias("partition_date"),
        *CATEGORICAL[:1],
        "flight",
        *CATEGORICAL[1:],
        "tailnum",
        "predicted_at",
        *(pl.col(name).cast(pl.Float32) for name in NUMERIC),
        pl.col("late").cast(pl.Int8),
        pl.col("outcome_known_at").alias("label_known_at"),
    ).sort("partition_date", "carrier", "flight", "origin")


def _with_timetable(rows: pl.DataFrame) -> pl.DataFrame:
    day = ["origin", "flight_date"]
    return rows.with_columns(
        _minute_of_day("sched_dep_time").alias("departure_minute"),
        _minute_of_day("sched_arr_time").alias("arrival_minute"),
        pl.col("flight_date").dt.to_string("%a").alias("weekday"),
        (pl.col("scheduled_arrival_at") - pl.col("scheduled_departure_at"))
        .dt.total_minutes()
        .alias("block_minutes"),
        pl.len().over(*day, "departure_hour").alias("departures_that_hour"),
        pl.len().over(*day, "departure_hour", "carrier").alias("own_departures_that_hour"),
        pl.len().over(day).alias("departures_that_day"),
    ).with_columns(*_on_a_circle("departure", 24 * 60), *_on_a_circle("arrival", 24 * 60))


def _with_aircraft(rows: pl.DataFrame, planes: pl.LazyFrame) -> pl.DataFrame:
    aircraft = planes.select(
        "tailnum",
        "seats",
        "engine",
        pl.col("year").alias("built"),
        # The register spells some makers in several ways that share the first word.
        pl.col("manufacturer").str.extract(r"^(\w+)"),
    ).collect()
    age = (pl.col("flight_date").dt.year() - pl.col("built")).alias("plane_age")
    return rows.join(aircraft, on="tailnum", how="left", maintain_order="left").with_columns(age)


def _with_place(rows: pl.DataFrame, airports: pl.LazyFrame) -> pl.DataFrame:
    places = airports.select(
        pl.col("faa").alias("dest"),
        pl.col("lat").alias("dest_latitude"),
        pl.col("lon").alias("dest_longitude"),
    ).collect()
    return rows.join(places, on="dest", how="left", maintain_order="left")


def _with_weather(rows: pl.DataFrame, weather: pl.DataFrame) -> pl.DataFrame:
    speed = pl.when(pl.col("wind_speed") <= _STRONGEST_WIND).then(pl.col("wind_speed"))
    direction = pl.col("wind_dir") * (_FULL_CIRCLE / 360)
    reports = weather.select(
        "origin",
        "observed_at",
        "known_at",
        *("temp", "dewp", "humid", "precip", "pressure", "visib"),
        speed.alias("wind_speed"),
        (speed * direction.cos()).alias("wind_north"),
        (speed * direction.sin()).alias("wind_east"),
        pl.col("wind_gust").fill_null(0.0),  # reported only when there are gusts
    )
    before = reports.select(
        "origin",
        pl.col("observed_at").alias("observed_before"),
        pl.col("known_at").alias("known_before"),
        pl.col("temp").alias("temp_before"),
        pl.col("pressure").alias("pressure_before"),
    )
    rows = join_as_of(
        rows,
        reports,
        by=["origin"],
        at="predicted_at",
        event_at="observed_at",
        known_at="known_at",
        tolerance=_WEATHER_TOLERANCE,
    ).with_columns((pl.col("predicted_at") - _TREND).alias("earlier"))
    rows = join_as_of(
        rows,
        before,
        by=["origin"],
        at="earlier",
        event_at="observed_before",
        known_at="known_before",
        tolerance=_WEATHER_TOLERANCE,
    ).with_columns(
        _hours("observed_at", "predicted_at").alias("weather_age"),
        (pl.col("temp") - pl.col("temp_before")).alias("temp_trend"),
        (pl.col("pressure") - pl.col("pressure_before")).alias("pressure_trend"),
    )
    wet = weather.select(
        "origin",
        pl.col("known_at").alias("wet_at"),
        (pl.col("precip") * 100).round().cast(pl.Int64).alias("rain"),  # hundredths of an inch
        (pl.col("visib") < _FOG_MILES).alias("fog"),
    )
    return window_sums(
        rows,
        wet,
        by=["origin"],
        at="predicted_at",
        known_at="wet_at",
        sums=["rain", "fog"],
        windows={"6h": timedelta(hours=6)},
        prefix="weather",
    ).rename({"weather_6h_rain": "rain_6h", "weather_6h_fog": "fog_6h"})


def _with_last_flights(rows: pl.DataFrame, flights: pl.DataFrame) -> pl.DataFrame:
    """The newest arrival of the same aircraft and of the same flight number, no older than the windows."""
    arrivals = flights.select(
        *("tailnum", "carrier", "flight", "origin"),
        pl.col("landed_at").alias("last_landed_at"),
        pl.col("scheduled_departure_at").alias("last_scheduled_at"),
        *(pl.col(name).alias(f"last_{name}") for name in ("flight", "carrier", "origin")),
        pl.col("arr_delay").clip(*history.DELAY_LIMITS).alias("last_delay"),
    )
    # Two at one moment: the one that set out later, then the last by its key.
    order = ["last_scheduled_at", "last_flight", "last_carrier", "last_origin"]
    extra = ["last_landed_at", *order]
    same_aircraft = arrivals.select("tailnum", *extra, pl.col("last_delay").alias("tail_last_delay"))
    same_number = arrivals.select(
        "carrier", "flight", "origin", *extra, pl.col("last_delay").alias("number_last_delay")
    )
    for facts, by in ((same_aircraft, ["tailnum"]), (same_number, ["carrier", "flight", "origin"])):
        rows = join_as_of(
            rows.drop(extra, strict=False),
            facts,
            by=by,
            at="predicted_at",
            event_at="last_landed_at",
            known_at="last_landed_at",
            tolerance=history.LONGEST,
            tiebreak=order,
        )
        if by == ["tailnum"]:
            rows = rows.with_columns(_hours("last_landed_at", "predicted_at").alias("tail_idle"))
    return rows


def _minute_of_day(clock: str) -> pl.Expr:
    return pl.col(clock).cast(pl.Int32) // 100 * 60 + pl.col(clock) % 100


def _on_a_circle(name: str, period: float) -> tuple[pl.Expr, pl.Expr]:
    angle = pl.col(f"{name}_minute") * (_FULL_CIRCLE / period)
    return angle.sin().alias(f"{name}_sin"), angle.cos().alias(f"{name}_cos")


def _hours(earlier: str, later: str) -> pl.Expr:
    return (pl.col(later) - pl.col(earlier)).dt.total_minutes() / 60
