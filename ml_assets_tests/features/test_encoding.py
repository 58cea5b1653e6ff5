"""Fitted state: what it remembers, what it does to rows it never saw, and when its digest changes."""

import random

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.features.encoding import UNKNOWN, EncodingError, FittedState, fit

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


def test_numbers_are_encoded_raw_with_nan_where_missing() -> None:
    numeric, _ = fit(FRAME, ["delay", "late"], []).encode(FRAME)
    assert numeric.dtype == np.float32
    np.testing.assert_array_equal(numeric, [[1, 1], [np.nan, 0], [3, np.nan], [8, 1]])


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
    (state,) = fit(pl.DataFrame({"x": [0.1] * 7}), ["x"], []).numeric
    assert state.scale == 1.0


def test_json_brings_back_an_equal_state() -> None:
    state = fit(FRAME, ["delay", "late"], ["carrier"], min_count=1)
    again = FittedState.from_json(state.to_json())
    assert again == state
    assert again.digest == state.digest


@given(values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=40), seed=st.randoms())
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
    assert one.numeric[0].mean == pytest.approx(other.numeric[0].mean, rel=1e-5, abs=1e-6)


def test_the_digest_changes_with_what_was_fitted() -> None:
    base = fit(FRAME, ["delay"], ["carrier"], 1).digest
    assert fit(FRAME.head(3), ["delay"], ["carrier"], 1).digest != base
    assert fit(FRAME, ["delay"], ["carrier"], 2).digest != base


def test_a_missing_column_is_named() -> None:
    with pytest.raises(EncodingError, match=r"\['speed'\] are missing"):
        fit(FRAME, ["speed"], [])
    with pytest.raises(EncodingError, match=r"\['carrier'\] are missing"):
        fit(FRAME, [], ["carrier"]).encode(FRAME.drop("carrier"))


def test_words_cannot_be_numeric() -> None:
    with pytest.raises(EncodingError, match="'carrier' is String, not a number"):
        fit(FRAME, ["carrier"], [])


def test_a_column_without_any_value_is_refused() -> None:
    with pytest.raises(EncodingError, match="no value in the training rows"):
        fit(pl.DataFrame({"x": [None, None]}, schema={"x": pl.Float32}), ["x"], [])


def test_infinite_numbers_are_refused() -> None:
    with pytest.raises(EncodingError, match="infinite"):
        fit(pl.DataFrame({"x": [1.0, float("inf")]}), ["x"], [])
