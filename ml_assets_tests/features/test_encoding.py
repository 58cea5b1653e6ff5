"""Fitted state: what it remembers, what it does to rows it never saw, and when its digest changes."""

import random
import re

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.data.features.encoding import UNKNOWN, EncodingError, FittedState, fit, require_columns

WHOLE = [
    pl.Int8,
    pl.Int16,
    pl.Int32,
    pl.Int64,
    pl.Int128,
    pl.UInt8,
    pl.UInt16,
    pl.UInt32,
    pl.UInt64,
    pl.UInt128,
]
NUMBERS = [*WHOLE, pl.Float16, pl.Float32, pl.Float64, pl.Boolean, pl.Decimal(12, 2)]
FRAME = pl.DataFrame(
    {
        "delay": [1.0, None, 3.0, 8.0],
        "late": [True, False, None, True],
        "carrier": ["UA", None, "DL", "UA"],
    }
)


def test_missing_numbers_become_the_median_and_count_in_mean_and_scale() -> None:
    (delay,) = fit(FRAME, ["delay"], []).numeric
    assert delay.fill == 3.0
    assert delay.mean == 3.75
    assert delay.scale == pytest.approx(np.std([1, 3, 3, 8]), rel=1e-6)
    assert delay.standardised_fill == pytest.approx(-0.75 / delay.scale, rel=1e-6)


def test_numbers_are_standardised_with_nan_where_missing() -> None:
    state = fit(FRAME, ["delay", "late"], [])
    numeric, _ = state.encode(FRAME)
    assert numeric.dtype == np.float32
    raw = np.array([[1, 1], [np.nan, 0], [3, np.nan], [8, 1]])
    mean, scale = ([getattr(column, name) for column in state.numeric] for name in ("mean", "scale"))
    np.testing.assert_allclose(numeric, (raw - mean) / scale, rtol=1e-6)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("values", [[0, 1, 1, 0], [1, None, 0, 1]], ids=["all known", "one missing"])
def test_a_number_is_that_of_polars_in_each_type(values: list[int | None], dtype: pl.DataType) -> None:
    state = fit(FRAME, ["delay"], [])
    column = pl.Series("delay", values).cast(dtype)
    numeric, _ = state.encode(column.to_frame())
    expected = state.numeric[0].standardised(column.cast(pl.Float64).fill_null(float("nan")).to_numpy())
    np.testing.assert_array_equal(numeric[:, 0], expected)


@pytest.mark.parametrize(
    ("offset", "spread"),
    [(0, 1), (1e-7, 5e-8), (1e9, 1), (1.38e9, 0.5), (-1e15, 2), (0, 1e-300), (1e38, 1e37), (0, 1e300)],
)
def test_numbers_of_any_size_come_out_around_zero_and_one(offset: float, spread: float) -> None:
    """A scale next to the mean was taken for rounding, and float32 before centring lost the values."""
    column = np.random.default_rng(0).normal(offset, spread, 2000)
    (numbers,) = fit(pl.DataFrame({"x": column}), ["x"], []).encode(pl.DataFrame({"x": column}))[0].T
    expected = (column - offset) / spread
    np.testing.assert_allclose(numbers, expected, atol=0.1)
    assert len(np.unique(numbers)) >= 0.999 * len(np.unique(column))


def test_whole_numbers_that_differ_by_one_keep_their_difference() -> None:
    seconds = pl.DataFrame({"at": range(1_388_000_000, 1_388_001_000)})
    (numbers,) = fit(seconds, ["at"], []).encode(seconds)[0].T
    assert len(np.unique(numbers)) == 1000
    assert numbers.std() == pytest.approx(1, rel=1e-4)


@given(
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=30),
    dtype=st.sampled_from([pl.Float32, pl.Float64]),
    later=st.floats(allow_nan=False),
)
def test_numbers_are_finite_or_refused(values: list[float], dtype: type[pl.DataType], later: float) -> None:
    frame = pl.DataFrame({"x": values}, schema={"x": dtype})
    try:
        state = fit(frame, ["x"], [])
    except EncodingError as error:
        assert (error.fault, error.columns) == ("outlier", ("x",))  # noqa: PT017
        return
    numbers, _ = state.encode(frame)
    assert np.isfinite(numbers).all()
    # Half of the values that differ from the median remain other numbers than the median.
    others = frame["x"].cast(pl.Float64).to_numpy()
    differ = others != np.median(others)
    if differ.any() and state.numeric[0].scale != 1.0:
        distances = np.abs(numbers[differ, 0].astype(np.float64) - state.numeric[0].standardised_fill)
        assert np.median(distances) > 0
    assert np.abs(numbers).max() <= len(values) or state.numeric[0].scale == 1.0
    try:
        assert np.isfinite(state.encode(pl.DataFrame({"x": [later]}))[0]).all()
    except EncodingError as error:
        assert (error.fault, error.columns) == ("float32", ("x",))  # noqa: PT017


def test_what_float32_cannot_hold_is_refused_by_column_and_value() -> None:
    state = fit(FRAME, ["delay"], [])
    for far in (float("inf"), -1e300):
        with pytest.raises(EncodingError, match=re.escape(f"{far:g} in 1 of 2 rows")) as refused:
            state.encode(pl.DataFrame({"delay": [1.0, far]}))
        assert (refused.value.fault, refused.value.columns) == ("float32", ("delay",))
    with pytest.raises(EncodingError, match="-1e\\+308 to 1e\\+308") as refused:
        fit(pl.DataFrame({"x": [-1e308, 1e308, 1e308]}), ["x"], [])
    assert (refused.value.fault, refused.value.columns) == ("range", ("x",))


def test_nulls_and_words_never_seen_are_unknown() -> None:
    state = fit(FRAME, [], ["carrier"], min_count=1)
    _, category = state.encode(pl.DataFrame({"carrier": ["DL", "UA", "ZZ", None]}))
    assert category.dtype == np.int32
    assert category.tolist() == [[1], [2], [UNKNOWN], [UNKNOWN]]
    assert state.categorical[0].cardinality == 3


def test_rare_words_stay_out_of_the_vocabulary() -> None:
    assert fit(FRAME, [], ["carrier"], min_count=2).categorical[0].vocabulary == ("UA",)


def test_a_vocabulary_may_be_empty() -> None:
    _, category = fit(FRAME, [], ["carrier"], min_count=99).encode(FRAME)
    assert category.tolist() == [[UNKNOWN]] * 4


def test_a_constant_column_is_not_divided_by_zero() -> None:
    for values in ([0.1] * 7, [0.3, 0.1 + 0.2, 0.3], [5]):  # the second differ by rounding alone
        (state,) = fit(pl.DataFrame({"x": values}), ["x"], []).numeric
        assert (state.mean, state.scale) == (values[0], 1.0)


def test_json_brings_back_an_equal_state() -> None:
    state = fit(FRAME, ["delay", "late"], ["carrier"], min_count=1)
    again = FittedState.from_json(state.to_json())
    assert again == state
    assert again.digest == state.digest


@pytest.mark.parametrize("marker", [1e300, -1e300, 2.0**63, 1e12, -999_999_999_999])
def test_one_value_beside_which_all_others_vanish_is_refused(marker: float) -> None:
    """A missing marker of 1e300 made every other row the same number, without a word."""
    values = [*np.random.default_rng(1).random(1000), marker]
    with pytest.raises(EncodingError, match=re.escape(f"column 'x' holds {marker:g} in the training rows")):
        fit(pl.DataFrame({"x": values}), ["x"], [])


@pytest.mark.parametrize("rare", [[0.0] * 999 + [1.0], [0.0] * 900 + [1.0] * 99 + [1e5], [1e9, 1e9 + 1] * 9])
def test_rare_and_heavy_tailed_values_are_no_markers(rare: list[float]) -> None:
    fit(pl.DataFrame({"x": rare}), ["x"], [])


def test_columns_are_looked_up_once_however_many_there_are() -> None:
    """2,000 columns took 7 s for each shard: every look-up made a list of all columns."""

    class Counting(pl.DataFrame):
        looks = 0

        @property
        def columns(self) -> list[str]:
            type(self).looks += 1
            return super().columns

        @property
        def schema(self) -> pl.Schema:
            type(self).looks += 1
            return super().schema

    names = [f"c{i}" for i in range(50)]
    require_columns(Counting({name: [1.0] for name in names}), names, [])
    assert Counting.looks <= 2


@given(
    values=st.lists(st.integers(-(10**9), 10**9).map(lambda n: n / 1000), min_size=2, max_size=40),
    seed=st.randoms(),
)
def test_the_order_of_rows_does_not_change_the_vocabulary_or_median(
    values: list[float], seed: random.Random
) -> None:
    words = [str(int(value) % 5) for value in values]
    order = list(range(len(values)))
    seed.shuffle(order)
    frame = pl.DataFrame({"x": values, "w": words})
    one, other = fit(frame, ["x"], ["w"], 1), fit(frame[order], ["x"], ["w"], 1)
    assert one.categorical == other.categorical
    assert one.numeric[0].fill == other.numeric[0].fill
    mean, scale = one.numeric[0].mean, one.numeric[0].scale
    assert mean == pytest.approx(other.numeric[0].mean, abs=1e-5 * scale)
    assert scale == pytest.approx(other.numeric[0].scale, rel=1e-5)


def test_the_digest_changes_with_what_was_fitted() -> None:
    base = fit(FRAME, ["delay"], ["carrier"], 1).digest
    assert fit(FRAME.head(3), ["delay"], ["carrier"], 1).digest != base
    assert fit(FRAME, ["delay"], ["carrier"], 2).digest != base


def test_a_missing_column_is_named() -> None:
    with pytest.raises(EncodingError) as refused:
        fit(FRAME, ["speed"], [])
    assert (refused.value.fault, refused.value.columns) == ("missing", ("speed",))
    with pytest.raises(EncodingError) as refused:
        fit(FRAME, [], ["carrier"]).encode(FRAME.drop("carrier"))
    assert (refused.value.fault, refused.value.columns) == ("missing", ("carrier",))


def test_words_cannot_be_numeric() -> None:
    with pytest.raises(EncodingError, match="String") as refused:
        fit(FRAME, ["carrier"], [])
    assert (refused.value.fault, refused.value.columns) == ("type", ("carrier",))


def test_a_column_without_any_value_is_refused() -> None:
    with pytest.raises(EncodingError) as refused:
        fit(pl.DataFrame({"x": [None, None]}, schema={"x": pl.Float32}), ["x"], [])
    assert (refused.value.fault, refused.value.columns) == ("no value", ("x",))


def test_whole_numbers_that_float64_rounds_are_refused() -> None:
    """Ids near 1e18 all became one number."""
    for dtype, value in ((pl.Int64, -(2**53) - 1), (pl.UInt64, 2**64 - 1)):
        with pytest.raises(EncodingError, match=r"2\^53") as refused:
            fit(pl.DataFrame({"order": pl.Series([1, value], dtype=dtype)}), ["order"], [])
        assert (refused.value.fault, refused.value.columns) == ("whole numbers", ("order",))


def test_infinite_numbers_are_refused() -> None:
    with pytest.raises(EncodingError, match="infinite"):
        fit(pl.DataFrame({"x": [1.0, float("inf")]}), ["x"], [])
