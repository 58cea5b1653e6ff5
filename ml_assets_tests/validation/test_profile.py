"""A profile is JSON, depends on the rows and not on their order, and counts every row once."""

import json
import math
import random
from datetime import date

import polars as pl
from hypothesis import example, given
from hypothesis import strategies as st

from ml_assets.data.validation.profile import BUCKETS, FEW, LONGEST, bucket, completeness, profile
from ml_assets_tests.validation.flights_table import day

numbers = st.lists(st.none() | st.floats(width=64) | st.integers(0, 5).map(float), max_size=80)


@given(numbers, st.randoms())
@example([0.0, None, -0.0], random.Random(1))
@example([1.7976931348623157e308] * 3, random.Random(1))  # their sum is infinite, which JSON cannot say
@example([math.inf, -math.inf, math.nan], random.Random(1))
def test_profile_depends_on_rows_not_on_their_order(values: list[float | None], draw: random.Random) -> None:
    names = ["a" if value is None else "b" for value in values]
    rows = list(zip(values, names, strict=True))
    shuffled = sorted(rows, key=lambda _: draw.random())
    types = {"x": pl.Float64, "name": pl.String}
    one, other = (pl.DataFrame(some, schema=types, orient="row") for some in (rows, shuffled))
    assert json.dumps(profile(one), allow_nan=False) == json.dumps(profile(other), allow_nan=False)


@given(numbers)
def test_every_row_of_a_number_column_is_counted_once(values: list[float | None]) -> None:
    column = profile(pl.DataFrame({"x": values}, schema={"x": pl.Float64}))["columns"]["x"]
    counted = sum(n for _, n in column.get("values", [])) + sum(column.get("counts", []))
    assert counted + column["nulls"] + column.get("infinite", 0) == len(values)
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if finite:
        assert (column["min"], column["max"]) == (min(finite), max(finite))
    edges = column.get("edges", [])
    assert edges == sorted(set(edges))
    assert "counts" not in column or len(column["counts"]) == len(edges) + 1


@given(st.lists(st.none() | st.text(max_size=2), max_size=80))
def test_every_row_of_a_string_column_is_counted_once(values: list[str | None]) -> None:
    column = profile(pl.DataFrame({"x": values}, schema={"x": pl.String}))["columns"]["x"]
    assert sum(n for _, n in column["values"]) + column["others"] + column["nulls"] == len(values)
    assert column["distinct"] == len({value for value in values if value is not None})


@given(st.lists(st.text(max_size=2 * LONGEST), unique=True), st.integers(0, 3))
@example([], 0)
@example([f"{number:08x}" for number in range(3 * FEW)], 1)
@example([f"{number:08x}" for number in range(10_050)], 2)
@example(["", "a", "ü" * LONGEST, "ü" * (LONGEST + 1), *(chr(0x3000 + n) * n for n in range(1, FEW + 2))], 2)
def test_texts_are_in_the_buckets_of_their_checksums(texts: list[str], more: int) -> None:
    """The most frequent ones are listed, of equally frequent ones the first in the alphabet."""
    times = {text: 1 + place % (more + 1) for place, text in enumerate(texts)}
    rows = [text for text, count in times.items() for _ in range(count)]
    column = profile(pl.DataFrame({"text": pl.Series(rows, dtype=pl.String)}))["columns"]["text"]
    counted = sorted(
        ((count, text) for text, count in times.items()), key=lambda one: (-one[0], one[1].encode())
    )
    shown = [text if len(text) <= LONGEST else None for _, text in counted]
    listed = [(value if len(value) <= LONGEST else None, count) for value, count in column["values"]]
    assert listed == [(text, count) for text, (count, _) in zip(shown, counted, strict=True)][:FEW]
    if len(texts) > FEW:
        places = [0] * BUCKETS
        for count, text in counted:
            if len(text) <= LONGEST:
                places[bucket(text)] += count
        found: list[int] = column["buckets"]
        assert all(have >= least for have, least in zip(found, places, strict=True))
        assert sum(found) - sum(places) == sum(count for count, text in counted if len(text) > LONGEST)


def test_quantiles_split_evenly_and_finer_in_the_tails() -> None:
    column = profile(pl.DataFrame({"x": range(1000)}))["columns"]["x"]
    assert column["counts"] == [10, 40, 50, *[100] * 8, 50, 40, 10]
    assert column["mean"] == 499.5


def test_profile_of_a_day_has_every_column_in_order() -> None:
    frame = day(date(2013, 1, 1))
    profiled = profile(frame)
    assert list(profiled["columns"]) == frame.columns
    assert profiled["columns"]["carrier"] == {
        "nulls": 0,
        "distinct": 3,
        "values": [["AA", 8], ["B6", 8], ["UA", 8]],
        "others": 0,
    }
    assert profiled["columns"]["scheduled"] == {
        "nulls": 0,
        "min": "2013-01-01T08:00:00Z",
        "max": "2013-01-01T08:23:00Z",
    }
    assert completeness(profiled)["delay"] == 20 / 24
    assert profile(frame.head(0))["rows"] == 0
    assert completeness(profile(frame.head(0)))["delay"] == 1.0


def test_types_without_a_distribution_are_counted_for_completeness() -> None:
    frame = pl.DataFrame({"many": [[1], None], "nothing": [None, None], "picture": [b"\x89", None]})
    many = {"nulls": 1, "fewest_items": 1, "most_items": 1}
    expected = {"many": many, "nothing": {"nulls": 2}, "picture": {"nulls": 1}}
    assert profile(frame)["columns"] == expected


def test_long_texts_are_cut_and_still_told_apart() -> None:
    """A manifest was larger than its data: 24 whole texts of each column."""
    texts = [f"{'long ' * 10_000}{n}" for n in range(3)]
    column = profile(pl.DataFrame({"x": [*texts, texts[0], "short"]}))["columns"]["x"]
    values = [value for value, _ in column["values"]]
    assert column["distinct"] == len(set(values)) == 4
    assert "short" in values
    assert max(map(len, values)) <= LONGEST + 11
    assert [rows for _, rows in column["values"]] == [2, 1, 1, 1]


def test_a_hidden_column_shows_its_nulls_alone() -> None:
    frame = pl.DataFrame({"a": [1.5, None], "b": ["x", "y"], "c": [date(2024, 1, 1)] * 2})
    assert profile(frame, hidden=["a", "b", "c"])["columns"] == {
        "a": {"nulls": 1, "hidden": True},
        "b": {"nulls": 0, "hidden": True},
        "c": {"nulls": 0, "hidden": True},
    }
