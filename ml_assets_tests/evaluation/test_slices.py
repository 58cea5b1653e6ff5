"""Slices are what their column says, each row in exactly one of each cut."""

import re
from datetime import UTC, date, datetime

import polars as pl
import pytest
import yaml

from ml_assets.model.evaluation.comparison.holdout_rows import (
    SliceKey,
    require_slices,
    slice_rows,
    with_values_of,
)
from ml_assets.model.evaluation.metrics.row_weights import EvaluationInputError
from ml_assets.model.evaluation.spec import EvaluationSpec, SliceBy

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
    with pytest.raises(EvaluationInputError, match=r"'carrier' .* origin, hour"):
        found(SliceBy(column="carrier"))


def test_month_of_a_number_is_refused() -> None:
    with pytest.raises(EvaluationInputError, match="'hour' is Int64,"):
        found(SliceBy(column="hour", by="month"))


TYPED = pl.DataFrame(
    {
        "country": ["NO", "SE"],
        "rainy": [True, False],
        "hour": [6, 23],
        "lanes": pl.Series([2.0, 2.5], dtype=pl.Float32),
        "day": [date(2013, 11, 1), date(2013, 12, 1)],
    }
)


def gates_on(column: str, value: object, by: str = "value") -> EvaluationSpec:
    gate = {
        "name": "g",
        "metric": "auc",
        "at_least": 0.5,
        "slice": {"month" if by == "month" else column: value},
    }
    return EvaluationSpec.model_validate(
        {"objective": "binary", "slices": [{"column": column, "by": by}], "gates": [gate]}
    )


@pytest.mark.parametrize(
    ("written", "by", "text"),
    [
        ("{country: 'NO'}", "value", "NO"),
        ("{rainy: true}", "value", "true"),
        ("{rainy: 'false'}", "value", "false"),
        ("{hour: 6}", "value", "6"),
        ("{hour: 6.0}", "value", "6"),
        ("{lanes: 2}", "value", "2.0"),
        ("{lanes: 2.5}", "value", "2.5"),
        ("{day: 2013-11-01}", "value", "2013-11-01"),
        ("{day: '2013-11-01'}", "value", "2013-11-01"),
        ("{day: 2013-11}", "month", "2013-11"),
        ("{country: '*'}", "value", "*"),
    ],
)
def test_a_gate_finds_its_slice_by_the_columns_type(written: str, by: str, text: str) -> None:
    ((column, value),) = yaml.safe_load(written).items()
    spec = gates_on(column, value, by)
    require_slices(spec, TYPED)
    (gate,) = with_values_of(spec, TYPED.schema).gates
    assert gate.sliced == ("month" if by == "month" else column, text)
    assert text == "*" or SliceKey(gate.sliced[0], text) in slice_rows(TYPED, spec.sliced_by)


@pytest.mark.parametrize(
    ("written", "by", "said"),
    [
        ("{country: NO}", "value", "country=False, which YAML reads as bool; country is of type String"),
        ("{country: 47}", "value", "write '47' in quotes"),
        ("{rainy: 1}", "value", "rainy is of type Boolean, so no row can match"),
        ("{hour: '6'}", "value", "hour is of type Int64"),
        ("{hour: 6.5}", "value", "hour is of type Int64"),
        ("{hour: true}", "value", "hour is of type Int64"),
        ("{day: 2013-11-01}", "month", "month is a month such as '2013-11'"),
        (
            "{country: DK}",
            "value",
            "the window has no such row: the gate would never be checked. country has NO, SE",
        ),
    ],
)
def test_a_slice_that_can_never_match_is_refused(written: str, by: str, said: str) -> None:
    ((column, value),) = yaml.safe_load(written).items()
    with pytest.raises(EvaluationInputError, match=re.escape(said)):
        require_slices(gates_on(column, value, by), TYPED)
