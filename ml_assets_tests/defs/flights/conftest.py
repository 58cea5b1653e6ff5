"""The real year, read once per test process."""

from collections.abc import Mapping
from datetime import date, timedelta

import polars as pl
import pytest

from ml_assets.defs.flights import source

DAYS = [date(2013, 1, 1) + timedelta(days=i) for i in range(365)]


@pytest.fixture(scope="session")
def flights_by_day() -> Mapping[str, pl.DataFrame]:
    """Partition key → flights, as ingested."""
    return {str(day): source.read_flights(day) for day in DAYS}


@pytest.fixture(scope="session")
def weather_by_day() -> Mapping[str, pl.DataFrame]:
    """Partition key → weather, as ingested."""
    return {str(day): source.read_weather(day) for day in DAYS}


@pytest.fixture(scope="session")
def year(
    flights_by_day: Mapping[str, pl.DataFrame], weather_by_day: Mapping[str, pl.DataFrame]
) -> Mapping[str, pl.DataFrame]:
    """All inputs of the feature function, whole."""
    return {
        "datasets/flights": pl.concat(flights_by_day.values()),
        "datasets/weather": pl.concat(weather_by_day.values()),
        "datasets/planes": source.read_planes(),
        "datasets/airports": source.read_airports(),
    }
