"""Decimals, durations, categories, lists and vectors; lengths, null shares, dates and conditions across columns."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ml_assets.data.tables import parquet
from ml_assets.data.validation.check import check_partitions
from ml_assets.data.validation.column_types import POLARS_TYPES, polars_type, type_name
from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.profile import profile
from ml_assets.data.validation.verdict import Finding

PLAIN = [name for name in POLARS_TYPES if name != "binary"]
TYPES = st.one_of(
    st.sampled_from(sorted(POLARS_TYPES)),
    st.integers(1, 38).flatmap(
        lambda digits: st.integers(0, digits).map(lambda scale: f"decimal[{digits}, {scale}]")
    ),
    st.sampled_from(PLAIN).map(lambda inner: f"list[{inner}]"),
    st.tuples(st.sampled_from(PLAIN), st.integers(1, 4096)).map(lambda one: f"array[{one[0]}, {one[1]}]"),
)


def of(column: dict[str, Any], **more: Any) -> Contract:
    return Contract.model_validate({"columns": [{"name": "x", **column}], **more})


def findings(values: list[Any], column: dict[str, Any]) -> list[Finding]:
    """Check one column of one partition."""
    contract = of(column)
    frame = pl.DataFrame({"x": values}, schema={"x": polars_type(column["dtype"])})
    return check_partitions({"all": frame}, contract)["all"]


def failing(values: list[Any], column: dict[str, Any]) -> list[tuple[str, int]]:
    return [(one.rule, one.failing_rows) for one in findings(values, column)]


@given(TYPES)
def test_a_type_and_its_name_are_inverse(name: str) -> None:
    assert type_name(polars_type(name)) == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("strng", "did you mean 'string'"),
        ("decimal[39, 2]", "1 to 38 digits"),
        ("decimal[4, 5]", "no more of them after the point"),
        ("list[list]", "items of a list have a plain type"),
        ("array[float32, 0]", "at least one item"),
        ("array[binary, 3]", "items of a array have a plain type"),
    ],
)
def test_a_wrong_type_is_refused_with_the_right_ones(name: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message.replace("[", r"\[")):
        of({"dtype": name})


@pytest.mark.parametrize(
    ("column", "good", "bad", "rule"),
    [
        ({"dtype": "decimal[18, 4]", "ge": 0, "le": 9.5}, Decimal("9.5"), Decimal("9.5001"), "out_of_range"),
        (
            {"dtype": "duration", "ge": 0, "le": 60},
            timedelta(minutes=1),
            timedelta(seconds=-1),
            "out_of_range",
        ),
        ({"dtype": "date", "ge": date(2013, 1, 1)}, date(2013, 1, 1), date(2012, 12, 31), "out_of_range"),
        ({"dtype": "date", "ge": "2013-01-01"}, date(2013, 1, 1), date(2012, 12, 31), "out_of_range"),
        (
            {"dtype": "datetime", "le": "2013-01-01T12:00:00+02:00"},
            datetime(2013, 1, 1, 10, tzinfo=UTC),
            datetime(2013, 1, 1, 10, 0, 1, tzinfo=UTC),
            "out_of_range",
        ),
        ({"dtype": "categorical", "isin": ["a", "b"]}, "a", "c", "unknown_category"),
        ({"dtype": "categorical", "pattern": "[ab]+"}, "ab", "c", "pattern"),
        ({"dtype": "string", "min_length": 2, "max_length": 10_000}, "日本", "日", "length"),
        ({"dtype": "string", "max_length": 9_999}, "ü" * 9_999, "ü" * 10_000, "length"),
        ({"dtype": "binary", "max_length": 3}, b"abc", b"abcd", "length"),
        ({"dtype": "list[int64]", "min_length": 1}, [1], [], "length"),
        ({"dtype": "list[float32]"}, [], [1.0, float("nan")], "null"),
        ({"dtype": "array[float32, 2]"}, [1.0, 2.0], [None, 1.0], "null"),
        ({"dtype": "array[int64, 2]"}, [1, 2], None, "null"),
    ],
)
def test_rules_hold_for_every_type(column: dict[str, Any], good: Any, bad: Any, rule: str) -> None:
    assert failing([good, good], column) == []
    assert failing([good, bad, good], column) == [(rule, 1)]
    (finding,) = findings([good, bad], column)
    assert len(finding.measured) < 200
    assert all(len(one) < 200 for one in finding.examples)
    nullable = failing([good, None], column | {"nullable": True})
    assert nullable == []


@pytest.mark.parametrize(
    ("column", "more", "message"),
    [
        ({"dtype": "string", "ge": 1}, {}, "are for numbers, dates, datetimes and durations"),
        ({"dtype": "date", "ge": 5}, {}, "has to be a date such as"),
        ({"dtype": "datetime", "ge": "2013-01-01T00:00:01"}, {}, "add Z for UTC"),
        ({"dtype": "int64", "ge": date(2013, 1, 1)}, {}, "has to be a number"),
        ({"dtype": "date", "ge": date(2013, 1, 2), "le": date(2013, 1, 1)}, {}, "no value would pass"),
        ({"dtype": "int64", "max_length": 3}, {}, "are for strings, binaries and lists"),
        ({"dtype": "string", "min_length": 3, "max_length": 2}, {}, "no value would pass"),
        ({"dtype": "int64", "max_null_share": 0.1}, {}, "set `nullable`"),
        ({"dtype": "list[int64]", "unique": True}, {}, r"`unique` is not for list\[int64\]"),
        ({"dtype": "array[int64, 2]"}, {"primary_key": ["x"]}, "cannot be array"),
        ({"dtype": "int64"}, {"conditions": [{"name": "c", "expression": "x >"}]}, "write an SQL expression"),
        (
            {"dtype": "int64"},
            {"conditions": [{"name": "c", "expression": "y > 1"}]},
            "'y', which is not a column",
        ),
        ({"dtype": "int64"}, {"conditions": [{"name": "c", "expression": "1 > 0"}]}, "reads no column"),
        (
            {"dtype": "int64"},
            {"conditions": [{"name": "c", "expression": "x + 1"}]},
            "is int64, not true or false",
        ),
        (
            {"dtype": "int64"},
            {"conditions": [{"name": "c", "expression": "max(x) > 1"}]},
            "sees one row alone",
        ),
        (
            {"dtype": "int64"},
            {"conditions": [{"name": "c", "expression": "x > sum(x) OVER (PARTITION BY x)"}]},
            "sees one row alone",
        ),
        ({"dtype": "string"}, {"conditions": [{"name": "c", "expression": "x > 1"}]}, "cannot be evaluated"),
        ({"dtype": "int64"}, {"foreign_keys": [{"columns": ["y"], "table": "datasets/a"}]}, "names 'y'"),
        (
            {"dtype": "binary"},
            {"foreign_keys": [{"columns": ["x"], "table": "datasets/a"}]},
            "cannot be binary",
        ),
    ],
)
def test_rules_without_sense_are_refused(column: dict[str, Any], more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        of(column, **more)


def test_too_many_nulls_are_a_finding_about_the_partition() -> None:
    """A NaN is a missing value."""
    column = {"dtype": "float64", "nullable": True, "max_null_share": 0.5}
    assert failing([1.0, float("nan"), None, 2.0], column) == []
    (finding,) = findings([1.0, float("nan"), None], column)
    assert (finding.rule, finding.measured.split(" ")[0], finding.limit) == (
        "null_share",
        "66.67%",
        "at most 50.00%",
    )


FLIGHTS: dict[str, Any] = {
    "primary_key": ["flight"],
    "columns": [
        {"name": "flight", "dtype": "int64"},
        {"name": "departure", "dtype": "int64"},
        {"name": "arrival", "dtype": "int64", "nullable": True, "sensitive": True},
    ],
    "conditions": [
        {
            "name": "arrives_later",
            "expression": "arrival >= departure",
            "description": "No flight goes back in time.",
        }
    ],
}


def test_a_condition_names_its_rows_and_hides_sensitive_values() -> None:
    """A null passes, as in SQL."""
    frame = pl.DataFrame({"flight": [1, 2, 3], "departure": [5, 5, 5], "arrival": [6, 1, None]})
    (finding,) = check_partitions({"a": frame}, Contract.model_validate(FLIGHTS))["a"]
    assert (finding.rule, finding.column, finding.failing_rows) == ("condition", "arrival, departure", 1)
    assert finding.examples == ("arrival=(hidden), departure=5 in row 1 (flight=2)",)
    assert FLIGHTS["conditions"][0]["description"].rstrip(".") in finding.explanation


def test_a_digest_changes_with_new_rules_alone() -> None:
    plain = of({"dtype": "string"})
    assert of({"dtype": "string", "max_length": None}).contract_digest == plain.contract_digest
    changed = [
        of({"dtype": "string", "max_length": 3}),
        of({"dtype": "string"}, conditions=[{"name": "c", "expression": "x > 'a'"}]),
        of({"dtype": "string"}, foreign_keys=[{"columns": ["x"], "table": "datasets/a"}]),
        of({"dtype": "categorical"}),
    ]
    assert len({one.contract_digest for one in [plain, *changed]}) == 5
    assert of({"dtype": "date", "ge": "2013-01-01"}).contract_digest == (
        of({"dtype": "date", "ge": date(2013, 1, 1)}).contract_digest
    )
    spaced, tight = of({"dtype": "decimal[18, 4]"}), of({"dtype": "decimal[18,4]"})
    assert spaced.schema_hash == tight.schema_hash


def test_rows_of_every_type_give_equal_bytes_in_any_order() -> None:
    rows = {
        "x": [1, 1, 1],
        "price": [Decimal("1.5"), Decimal("-0.25"), None],
        "took": [timedelta(seconds=1), None, timedelta(days=-1)],
        "kind": ["b", "a", None],
        "words": [["x"], [], None],
        "vector": [[1.0, 2.0], [0.0, 1.0], None],
    }
    types = {
        "x": "int64", "price": "decimal[18, 4]", "took": "duration", "kind": "categorical", "words": "list[string]",
        "vector": "array[float32, 2]",
    }  # fmt: skip
    frame = pl.DataFrame(rows, schema={name: polars_type(dtype) for name, dtype in types.items()})
    turned = parquet.canonical(frame.reverse(), ["x"])
    (content,) = parquet.encode(parquet.canonical(frame, ["x"]))
    assert list(parquet.encode(turned)) == [content]
    assert pl.read_parquet(content).schema == frame.schema
    columns = profile(frame)["columns"]
    assert (columns["price"]["min"], columns["took"]["max"]) == (-0.25, 1.0)
    assert columns["kind"]["distinct"] == 2
    assert columns["vector"] == {"nulls": 1, "fewest_items": 2, "most_items": 2}


def test_rows_that_differ_in_a_vector_alone_have_one_order() -> None:
    frame = pl.DataFrame(
        {"x": [1, 1], "v": [[2.0], [1.0]]}, schema={"x": pl.Int64(), "v": pl.Array(pl.Float32, 1)}
    )
    assert list(parquet.encode(parquet.canonical(frame, ["x"]))) == list(
        parquet.encode(parquet.canonical(frame.reverse(), ["x"]))
    )
