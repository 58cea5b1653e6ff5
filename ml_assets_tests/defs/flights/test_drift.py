"""Drift on the real year, with the policy that the tables declare: few yellow days, and planted shifts found."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import numpy as np
import polars as pl
import pytest

from ml_assets.data.validation.drift_rule import DriftRule
from ml_assets.data.validation.profile import profile
from ml_assets.data.validation.table_drift import PastAndNow, Shifts
from ml_assets.defs.flights import features
from ml_assets_tests.defs.flights.flights_specs import dataset, flight_departures

Days = Mapping[str, pl.DataFrame]
Profiles = Mapping[str, Mapping[str, Any]]
pytestmark = pytest.mark.nightly


def drifting(profiles: Profiles, key: str, before: Sequence[str], rule: DriftRule) -> set[str]:
    """Return the columns that drift on day `key`, by their distribution or by their mean."""
    by_shape = PastAndNow(profiles).compare(key, before[-rule.window :], rule)
    means = rule.given_others
    assert means is not None
    by_mean = Shifts(profiles).compare(key, before[-means.window :], means, rule)
    shapes = () if by_shape is None else by_shape.drifting
    return {one.column for one in (*shapes, *(() if by_mean is None else by_mean.shifting))}


def yellow(days: Days, rule: DriftRule) -> list[str]:
    keys, means = sorted(days), rule.given_others
    assert means is not None
    profiles = {key: profile(days[key]) for key in keys}
    by_shape, by_mean = PastAndNow(profiles), Shifts(profiles)
    found: list[str] = []
    for place, key in enumerate(keys):
        before = keys[max(0, place - means.window) : place]
        shapes = by_shape.compare(key, before[-rule.window :], rule)
        shifts = by_mean.compare(key, before, means, rule)
        if (shapes is not None and shapes.drifting) or (shifts is not None and shifts.shifting):
            found.append(key)
    return found


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


def found_of_trials(days: Days, columns: Sequence[str]) -> float:
    """Move one column by half a standard deviation on each tenth day from March on; return the share that is found."""
    keys = sorted(days)
    profiles = {key: profile(days[key]) for key in keys}
    found: list[bool] = []
    for place in range(59, 364, 10):
        key, before = keys[place], keys[:place]
        for name in columns:
            past = pl.concat([days[one][name] for one in before[-28:]]).cast(pl.Float64)
            half = float(np.nanstd(past.fill_null(np.nan).to_numpy())) / 2
            moved = days[key].with_columns(pl.col(name).cast(pl.Float64) + half)
            known = {one: profiles[one] for one in before[-70:]}
            found.append(name in drifting(known | {key: profile(moved)}, key, before, DriftRule()))
    return sum(found) / len(found)


def test_a_shift_is_found_the_same_day_in_flights(flights_by_day: Days) -> None:
    """Arrival delays are the exception: their own storms are larger."""
    numbers = flights_by_day["2013-01-01"].select(pl.selectors.numeric()).columns
    assert found_of_trials(flights_by_day, [one for one in numbers if one != "arr_delay"]) >= 0.95


def test_a_shift_is_found_the_same_day_in_weather_that_is_related(weather_by_day: Days) -> None:
    """Nothing in the table says how much wind or pressure a day must have."""
    assert found_of_trials(weather_by_day, ["dewp", "humid", "temp", "precip"]) >= 0.5
