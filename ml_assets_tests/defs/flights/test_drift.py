"""Drift on the real year, with the policy that the tables declare: few yellow days, and planted shifts found."""

from collections.abc import Mapping
from datetime import date

import numpy as np
import polars as pl
import pytest

from ml_assets.defs.flights import features
from ml_assets.validation.drift_rule import DriftRule
from ml_assets.validation.profile import profile
from ml_assets.validation.table_drift import PastAndNow
from ml_assets_tests.defs.flights.flights_specs import dataset, flight_departures

Days = Mapping[str, pl.DataFrame]
pytestmark = pytest.mark.nightly

STEADY = ["flight", "distance", "sched_dep_time", "sched_arr_time", "air_time"]
"""Numbers whose daily mean seldom moves by half a standard deviation."""


def yellow(days: Days, rule: DriftRule) -> list[str]:
    keys = sorted(days)
    compared = PastAndNow({key: profile(days[key]) for key in keys})
    found = {
        key: compared.compare(key, keys[max(0, place - rule.window) : place], rule)
        for place, key in enumerate(keys)
    }
    return [key for key, one in found.items() if one is not None and one.drifting]


@pytest.mark.parametrize("table", ["flights", "weather"])
def test_at_most_a_twentieth_of_the_days_is_yellow(
    table: str, flights_by_day: Days, weather_by_day: Days
) -> None:
    rule = dataset(table).drift
    assert rule is not None
    found = yellow(flights_by_day if table == "flights" else weather_by_day, rule)
    assert 0 < len(found) <= 0.05 * 365


def test_at_most_a_twentieth_of_the_days_of_features_is_yellow(year: Days) -> None:
    rule = flight_departures().drift
    assert rule is not None
    inputs = {name: frame.lazy() for name, frame in year.items()}
    rows = features.flight_departures(inputs, date(2013, 1, 1), date(2013, 12, 31)).lazy().collect()
    days = {str(key[0]): part for key, part in rows.partition_by("partition_date", as_dict=True).items()}
    assert 0 < len(yellow(days, rule)) <= 0.05 * 365


def test_a_shift_of_a_steady_column_is_found_the_same_day(flights_by_day: Days) -> None:
    """Move one column by half a standard deviation on each tenth day from March on."""
    keys = sorted(flights_by_day)
    trials = {f"trial {place} {name}": (place, name) for place in range(59, 365, 10) for name in STEADY}
    profiles = {key: profile(flights_by_day[key]) for key in keys}
    for trial, (place, name) in trials.items():
        past = pl.concat([flights_by_day[key][name] for key in keys[place - 28 : place]])
        half = round(float(np.nanstd(past.cast(pl.Float64).fill_null(np.nan).to_numpy())) / 2)
        moved = flights_by_day[keys[place]].select(pl.col(name).cast(pl.Float64) + half)
        one = profiles[keys[place]]
        profiles[trial] = one | {"columns": one["columns"] | profile(moved)["columns"]}
    compared = PastAndNow(profiles)
    found = [
        name in [one.column for one in drift.drifting]
        for trial, (place, name) in trials.items()
        if (drift := compared.compare(trial, keys[place - 28 : place], DriftRule())) is not None
    ]
    assert len(found) == len(trials)
    assert sum(found) >= 0.95 * len(found)
