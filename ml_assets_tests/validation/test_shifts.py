"""Means given the other columns: a shift is found in columns that move by themselves, and named; nothing else is."""

import base64
from typing import Any

import numpy as np
import polars as pl
from threadpoolctl import threadpool_info

from ml_assets.data.validation.drift_rule import DriftRule, GivenOthers
from ml_assets.data.validation.profile import COLUMNS, ROWS, correlations, profile
from ml_assets.data.validation.table_drift import PastAndNow, Shifts, TableShifts
from resources.threads import one_blas_thread

WINDOW = 70
RELATED = {"temp", "dewp"}
Draw = np.random.Generator


def a_day(draw: Draw, rows: int = 300) -> pl.DataFrame:
    """Weather whose level differs from day to day, as in `temp`, and columns that follow from it."""
    temp = 10 * draw.normal() + 3 * draw.normal(size=rows)
    dewp = temp - 5 - 4 * draw.random() - draw.random(rows)
    humid = 80 - 4 * (temp - dewp) + draw.normal(size=rows)
    rain = np.where(draw.random(rows) < 0.05 * (draw.random() < 0.2), draw.gamma(2, 2, rows), 0.0)
    return pl.DataFrame(
        {"temp": temp, "dewp": dewp, "humid": humid, "rain": rain, "steady": draw.normal(size=rows)}
    )


def compared(days: list[pl.DataFrame], **policy: Any) -> TableShifts | None:
    """Compare the last of `days` with those before it."""
    profiles = {f"{number:04d}": profile(one) for number, one in enumerate(days)}
    *past, now = profiles
    return Shifts(profiles).compare(now, past[-WINDOW:], GivenOthers.model_validate(policy), DriftRule())


def distribution_drifts(days: list[pl.DataFrame]) -> bool:
    profiles = {f"{number:04d}": profile(one) for number, one in enumerate(days)}
    *past, now = profiles
    found = PastAndNow(profiles).compare(now, past[-28:], DriftRule())
    return found is not None and bool(found.drifting)


def shifting(found: TableShifts | None) -> list[str]:
    assert found is not None
    return [one.column for one in found.shifting]


def test_a_shift_that_the_days_themselves_hide_is_found_the_same_day() -> None:
    """Nobody can tell which of the related columns moved: a temperature too high is a dew point too low."""
    draw = np.random.default_rng(1)
    past = [a_day(draw) for _ in range(WINDOW)]
    for moved, named in (("temp", RELATED), ("dewp", RELATED), ("steady", {"steady"})):
        half = float(pl.concat(past)[moved].std()) / 2  # pyright: ignore[reportArgumentType] - a number
        for _ in range(5):
            days = [*past, a_day(draw).with_columns(pl.col(moved) + half)]
            found = shifting(compared(days))
            assert len(found) == 1
            assert set(found) <= named
            assert moved == "steady" or not distribution_drifts(days)


def test_unchanged_days_stay_quiet() -> None:
    """At most one of twenty days may be yellow, from the first day on that has a past of fourteen."""
    draw = np.random.default_rng(2)
    profiles = {f"{number:04d}": profile(a_day(draw)) for number in range(200)}
    keys, policy = list(profiles), GivenOthers()
    shifts = Shifts(profiles)
    found = [
        shifts.compare(key, keys[max(0, n - WINDOW) : n], policy, DriftRule()) for n, key in enumerate(keys)
    ]
    assert [one is None for one in found[:15]] == [True] * 14 + [False]
    assert sum(bool(one and one.shifting) for one in found) <= 0.05 * len(found)


def test_a_lasting_shift_becomes_the_past_after_a_tenth_of_the_window() -> None:
    draw = np.random.default_rng(3)
    days = [a_day(draw) for _ in range(WINDOW)]
    yellow: list[bool] = []
    for _ in range(10):
        days.append(a_day(draw).with_columns(pl.col("steady") + 1))
        yellow.append("steady" in shifting(compared(days)))
    assert yellow == [True] * 7 + [False] * 3


def test_a_constant_column_is_left_out_and_an_ignored_one_explains_nothing() -> None:
    draw = np.random.default_rng(4)
    profiles = {f"{number:04d}": profile(a_day(draw)) for number in range(30)}
    *past, now = profiles
    rule = DriftRule(ignore=("temp",))
    found = Shifts(profiles).compare(now, past, GivenOthers(), rule)
    assert found is not None
    assert {one.column for one in found.columns} == {"dewp", "humid", "steady"}


def test_a_constant_that_gets_another_value_is_not_found_elsewhere() -> None:
    """It explained the other columns by a standard deviation of nearly zero: all of them were reported."""
    draw = np.random.default_rng(8)

    def priced(price: float, first: float) -> pl.DataFrame:
        of_row = np.array([first, *[price] * 299])
        return a_day(draw).with_columns(price=of_row)

    days = [priced(1.0, 1.0001 if number == 3 else 1.0) for number in range(WINDOW)]
    assert shifting(compared([*days, priced(2.0, 2.0)])) == []


def test_a_column_that_came_later_is_compared_with_enough_of_its_past() -> None:
    draw = np.random.default_rng(9)
    days = [a_day(draw) for _ in range(WINDOW)]
    late = pl.col("steady").shuffle(3).alias("late")
    for since, is_compared in ((60, False), (50, True)):
        grown = [one if number < since else one.with_columns(late) for number, one in enumerate(days)]
        found = compared([*grown, a_day(draw).with_columns(late + 9)])
        assert ("late" in shifting(found)) == is_compared


def test_columns_with_the_same_mean_each_day_hide_no_shift() -> None:
    """The few days on which an hour or a minute is missing made every limit as large as it gets."""
    draw = np.random.default_rng(10)

    def clock(number: int) -> pl.DataFrame:
        frame = a_day(draw, 288)
        names = [f"clock{place}" for place in range(5)]
        for place, name in enumerate(names):
            values = np.arange(288.0) % (24 + place)
            if number % 35 == 7 * place:
                values[0] = 23 + place
            frame = frame.with_columns(pl.Series(name, values))
        return frame

    days = [clock(number) for number in range(WINDOW)]
    moved = clock(1).with_columns(pl.col("steady") + 2)
    assert shifting(compared([*days, moved])) == ["steady"]


def test_partitions_without_correlations_are_not_compared() -> None:
    """Profiles of an earlier form, tables with one number, and days without rows have none."""
    draw = np.random.default_rng(5)
    days = [a_day(draw) for _ in range(20)]
    assert compared([*days, days[0].select("temp")]) is None
    assert compared([*(one.select("temp") for one in days), days[0]]) is None
    assert compared([*days, days[0].clear()]) is None
    assert shifting(compared([*days, days[0].with_columns(humid=pl.lit(None, pl.Float64))])) == []
    assert compared(days[:5]) is None


def test_stored_correlations_are_those_of_the_rows() -> None:
    draw = np.random.default_rng(6)
    frame = a_day(draw, 5_000).with_columns(
        pl.when(pl.col("dewp") > 0).then("dewp"), none=pl.lit(None, pl.Float64), one=pl.lit(7)
    )
    known = correlations({one.name: one.cast(pl.Float64).to_numpy() for one in frame})
    names = known["columns"]
    assert set(names) == {one for one in frame.columns if frame[one].n_unique() > 2}
    values = frame.select(names).fill_nan(None).select(pl.all().fill_null(pl.all().mean())).to_numpy()
    expected = np.corrcoef(values.T)[np.triu_indices(len(names), 1)]
    stored = np.frombuffer(base64.b64decode(known["upper"]), "<i2") / 32767
    np.testing.assert_allclose(stored, expected, atol=2e-5)
    np.testing.assert_allclose(
        known["sd"], [frame[one].fill_nan(None).std(ddof=0) for one in names], rtol=1e-5
    )


def test_large_and_wide_partitions_are_bounded() -> None:
    draw = np.random.default_rng(7)
    wide = profile(pl.DataFrame({f"c{n}": draw.normal(size=9) for n in range(COLUMNS + 5)}))
    assert len(wide["correlations"]["columns"]) == COLUMNS
    assert len(wide["correlations"]["upper"]) < 23_000
    many = profile(a_day(draw, 3 * ROWS).with_columns(huge=pl.lit(1e308) * pl.col("steady").sign()))
    assert "huge" not in many["correlations"]["columns"]
    assert many["columns"]["huge"]["max"] == 1e308


def test_small_matrices_are_multiplied_in_one_thread() -> None:
    """Threads that wait for each other on busy processors took eight times as long, and their number decides bits."""
    before = [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
    with one_blas_thread():
        within = [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
    assert set(within) == {1}
    assert [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"] == before
