"""The declared contracts hold on every real day, and the declarations say what the functions need."""

from collections.abc import Mapping
from datetime import date, timedelta

import polars as pl
import pytest

from ml_assets.data.tables.user_code import building
from ml_assets.data.validation.check import check_partitions
from ml_assets.data.validation.contract import schema_drift
from ml_assets.data.validation.volume import VolumePast, volume_findings
from ml_assets.defs.flights import features, source
from ml_assets_tests.defs.flights.flights_specs import dataset, flight_departures

Days = Mapping[str, pl.DataFrame]


def bounds(days: Days) -> dict[str, tuple[date, date]]:
    return {day: (date.fromisoformat(day), date.fromisoformat(day)) for day in days}


def complaints(days: Days, contract: object) -> list[object]:
    found = check_partitions(days, contract, bounds=bounds(days))
    return [finding for findings in found.values() for finding in findings]


def test_every_day_of_flights_keeps_the_contract(flights_by_day: Days) -> None:
    assert complaints(flights_by_day, dataset("flights").contract) == []


def test_every_day_of_weather_keeps_the_contract(weather_by_day: Days) -> None:
    assert complaints(weather_by_day, dataset("weather").contract) == []


@pytest.mark.parametrize("name", ["planes", "airports", "airlines"])
def test_the_slow_tables_keep_their_contracts(name: str) -> None:
    table = {"all": getattr(source, f"read_{name}")()}
    assert check_partitions(table, dataset(name).contract) == {"all": []}


@pytest.mark.parametrize(
    ("first", "count"),
    [(date(2013, 12, 1), 31), pytest.param(date(2013, 1, 1), 365, marks=pytest.mark.nightly)],
)
def test_every_day_of_features_keeps_the_contract(
    year: Mapping[str, pl.DataFrame], first: date, count: int
) -> None:
    spec = flight_departures()
    rows = building(features.flight_departures)(year, first, date(2013, 12, 31))
    assert not schema_drift(spec.contract, rows)
    assert list(spec.contract.names) == rows.columns, "stored in the order the function gives"
    days = {str(key[0]): part for key, part in rows.partition_by("partition_date", as_dict=True).items()}
    assert len(days) == count
    assert complaints(days, spec.contract) == []


def test_seven_days_of_flights_are_unusual_and_none_blocks(flights_by_day: Days) -> None:
    rule = dataset("flights").volume
    rows = {day: len(frame) for day, frame in flights_by_day.items()}
    found = volume_findings(rows, VolumePast(), rule)
    assert [day for day, finding in found.items() if finding.blocks] == []
    assert list(found) == [
        "2013-05-26",
        "2013-07-04",
        "2013-09-01",
        "2013-11-28",
        "2013-11-29",
        "2013-12-24",
        "2013-12-25",
    ]


def test_no_day_of_weather_is_refused_for_its_volume(weather_by_day: Days) -> None:
    rule = dataset("weather").volume
    rows = {day: len(frame) for day, frame in weather_by_day.items()}
    findings = volume_findings(rows, VolumePast(), rule).values()
    assert [finding for finding in findings if finding.blocks] == []


def test_the_declared_lookback_is_what_the_function_needs() -> None:
    lookback = {section.table: section.lookback for section in flight_departures().inputs}
    assert lookback["datasets/flights"] == features.LOOKBACK_DAYS
    assert lookback["datasets/weather"] == features.WEATHER_LOOKBACK_DAYS


def test_outcomes_are_known_within_the_slack_of_the_lookback(year: Mapping[str, pl.DataFrame]) -> None:
    """Longest window + this slack + one evening is `LOOKBACK_DAYS`."""
    slack = timedelta(days=features.LOOKBACK_DAYS) - features.history.LONGEST - timedelta(days=1)
    flights = year["datasets/flights"]
    midnight = pl.col("flight_date").cast(pl.Datetime("us")).dt.replace_time_zone("America/New_York")
    known = pl.max_horizontal("outcome_known_at", "departed_at")
    assert flights.select((known - midnight.dt.convert_time_zone("UTC")).max()).item() < slack
