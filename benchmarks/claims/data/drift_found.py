"""Days of the demo that drift marks yellow, and planted shifts that it finds the same day, with the declared policy.

A trial moves the mean of one number by half a standard deviation, up or down, on a real day, in all rows. It counts as
found if the column is named. The peer is the comparison of distributions alone: `given_others: off`. Each table is
measured on all of its days; trials are on each seventh day from 29 January on.
"""

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np
import polars as pl

from benchmarks._report import Result, emit, parse_args
from ml_assets.data.validation.drift_rule import DriftRule
from ml_assets.data.validation.profile import profile
from ml_assets.data.validation.table_drift import PastAndNow, Shifts
from ml_assets.defs.flights import features, source

DAYS = [date(2013, 1, 1) + timedelta(n) for n in range(365)]
RULE = DriftRule()
FOUND, YELLOW = 0.95, 0.05

Profiles = Mapping[str, Mapping[str, Any]]


def tables() -> dict[str, dict[str, pl.DataFrame]]:
    """Return table → day → rows, of the demo's year."""
    flights = {str(day): source.read_flights(day) for day in DAYS}
    weather = {str(day): source.read_weather(day) for day in DAYS}
    inputs = {
        "datasets/flights": pl.concat(flights.values()).lazy(),
        "datasets/weather": pl.concat(weather.values()).lazy(),
        "datasets/planes": source.read_planes().lazy(),
        "datasets/airports": source.read_airports().lazy(),
    }
    rows = features.flight_departures(inputs, DAYS[0], DAYS[-1]).lazy().collect()
    by_day = rows.partition_by("partition_date", as_dict=True)
    return {
        "datasets/flights": flights,
        "datasets/weather": weather,
        "features/flight_departures": {str(key[0]): day for key, day in by_day.items()},
    }


class Compared:
    """Profiles of a table, decoded once."""

    def __init__(self, profiles: Profiles) -> None:
        self._by_shape, self._by_mean = PastAndNow(profiles), Shifts(profiles)

    def named(self, key: str, past: Sequence[str]) -> tuple[set[str], set[str]]:
        """Return the columns of `key` that drift by their distribution, and by their mean, against `past`."""
        assert RULE.given_others is not None
        shapes = self._by_shape.compare(key, past[-RULE.window :], RULE)
        means = self._by_mean.compare(key, past[-RULE.given_others.window :], RULE.given_others, RULE)
        return (
            {one.column for one in (shapes.drifting if shapes else ())},
            {one.column for one in (means.shifting if means else ())},
        )


def trials(
    days: Mapping[str, pl.DataFrame], keys: Sequence[str], place: int
) -> dict[str, tuple[str, pl.DataFrame]]:
    """Return trial → moved column, and the rows of the day with it."""
    now = days[keys[place]]
    made: dict[str, tuple[str, pl.DataFrame]] = {}
    for name in now.select(pl.selectors.numeric()).columns:
        past = pl.concat([days[key][name] for key in keys[place - 28 : place]]).cast(pl.Float64)
        values = past.fill_null(np.nan).to_numpy()
        values = values[np.isfinite(values)]
        if not len(values) or values.std() == 0 or now[name].null_count() == now.height:
            continue
        for sign in (1, -1):
            half = sign * values.std() / 2
            half = round(half) if now[name].dtype.is_integer() else half
            made[f"trial {name} {sign}"] = name, now.select(pl.col(name).cast(pl.Float64) + half)
    return made


def measure(*, quick: bool) -> list[Result]:
    """Return two claims about each table."""
    results: list[Result] = []
    for table, days in tables().items():
        keys = sorted(days)
        profiles = {key: profile(days[key]) for key in keys}
        every = Compared(profiles)
        yellow = {
            key: every.named(key, keys[max(0, place - 70) : place])
            for place, key in list(enumerate(keys))[:: 30 if quick else 1]
        }
        by_shape, by_both = 0, 0
        count = 0
        for place in range(28, 365, 70 if quick else 7):
            past = keys[max(0, place - 70) : place]
            planted = trials(days, keys, place)
            whole = profiles[keys[place]]
            moved = {
                trial: {**whole, "columns": {**whole["columns"], **profile(rows)["columns"]}}
                for trial, (_, rows) in planted.items()
            }
            one_day = Compared({**{key: profiles[key] for key in past}, **moved})
            found = {trial: one_day.named(trial, past) for trial in moved}
            count += len(found)
            by_shape += sum(planted[trial][0] in one[0] for trial, one in found.items())
            by_both += sum(planted[trial][0] in one[0] | one[1] for trial, one in found.items())
        share = sum(bool(a or b) for a, b in yellow.values()) / len(yellow)
        alone = sum(bool(a) for a, _ in yellow.values()) / len(yellow)
        results += [
            Result(
                name=f"{table}: days that are yellow, of {len(yellow)}",
                value=share,
                unit="of the days",
                peers={"distributions alone": alone},
                bar=f"≤ {YELLOW:.0%}",
                ok=quick or share <= YELLOW,
            ),
            Result(
                name=f"{table}: shifts by half a standard deviation found the same day, {count} trials",
                value=by_both / count,
                unit="of the trials",
                peers={"distributions alone": by_shape / count},
                bar=f"≥ {FOUND:.0%}",
                ok=quick or by_both / count >= FOUND,
            ),
        ]
    return results


if __name__ == "__main__":
    arguments = parse_args(__doc__)
    raise SystemExit(emit(measure(quick=arguments.quick), json=arguments.json))
