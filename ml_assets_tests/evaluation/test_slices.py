"""Slices are what their column says, each row in exactly one of each cut."""

from datetime import UTC, date, datetime

import polars as pl
import pytest

from ml_assets.evaluation.errors import EvaluationInputError
from ml_assets.evaluation.slices import SliceKey, slice_rows
from ml_assets.evaluation.spec import SliceBy

FRAME = pl.DataFrame(
    {
        "origin": ["JFK", "EWR", None, "JFK"],
        "hour": [6, 23, 6, 6],
        "date": [date(2013, 11, 1), date(2013, 12, 1), date(2013, 11, 30), date(2013, 12, 31)],
        "at": [datetime(2013, 11, 1, tzinfo=UTC)] * 4,
    }
)


def found(*cuts: SliceBy) -> dict[str, list[int]]:
    return {str(key): rows.tolist() for key, rows in slice_rows(FRAME, cuts).items()}


def test_values_and_nulls_are_slices() -> None:
    expected = {"origin=(none)": [2], "origin=EWR": [1], "origin=JFK": [0, 3]}
    assert found(SliceBy(column="origin")) == expected


def test_numbers_are_slices() -> None:
    assert found(SliceBy(column="hour")) == {"hour=23": [1], "hour=6": [0, 2, 3]}


def test_months_come_from_dates_and_datetimes() -> None:
    by_date = {"month=2013-11": [0, 2], "month=2013-12": [1, 3]}
    assert found(SliceBy(column="date", by="month")) == by_date
    assert found(SliceBy(column="at", by="month")) == {"month=2013-11": [0, 1, 2, 3]}


def test_several_cuts_stand_side_by_side() -> None:
    keys = list(slice_rows(FRAME, [SliceBy(column="hour"), SliceBy(column="date", by="month")]))
    assert keys[0] == SliceKey("hour", "23")
    assert [key.name for key in keys] == ["hour", "hour", "month", "month"]


def test_missing_column_is_named() -> None:
    with pytest.raises(EvaluationInputError, match="no column 'carrier' to slice by; it has origin, hour"):
        found(SliceBy(column="carrier"))


def test_month_of_a_number_is_refused() -> None:
    with pytest.raises(EvaluationInputError, match="'hour' is Int64, not a date"):
        found(SliceBy(column="hour", by="month"))
