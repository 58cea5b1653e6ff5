"""Rows and facts meet by keys and moments that mean the same on both sides, or are refused by name."""

from collections.abc import Callable
from datetime import timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.data.features.point_in_time import MeetingError, join_as_of
from ml_assets.data.features.rolling import window_sums
from ml_assets_tests.features.event_tables import asked, facts, hours

LookUp = Callable[[pl.DataFrame, pl.DataFrame, list[str]], list[int | None]]


def counted(rows: pl.DataFrame, known: pl.DataFrame, by: list[str]) -> list[int | None]:
    """Return the number of facts that each row can know of."""
    windows = {"day": timedelta(days=1)}
    added = window_sums(
        rows, known, by=by, at="at", known_at="known_at", sums=["value"], windows=windows, prefix="p"
    )
    return added["p_day_n"].to_list()


def newest(rows: pl.DataFrame, known: pl.DataFrame, by: list[str]) -> list[int | None]:
    """The value of the newest fact each row can know of."""
    known = known if by or "key" not in known.columns else known.drop("key")
    joined = join_as_of(
        rows, known, by=by, at="at", event_at="known_at", known_at="known_at", tiebreak=["value"]
    )
    return joined["value"].to_list()


look_ups = pytest.mark.parametrize("look_up", [counted, newest])

KEYS = {
    "integers": ([pl.Int8, pl.Int32, pl.Int64, pl.UInt16, pl.UInt64], [1, 2, 3]),
    "texts": ([pl.String, pl.Categorical, pl.Enum(["a", "b", "c", "d"])], ["a", "b", "c"]),
}


@look_ups
@pytest.mark.parametrize("kind", KEYS)
@given(data=st.data())
def test_the_type_of_a_key_changes_nothing(look_up: LookUp, kind: str, data: st.DataObject) -> None:
    types, values = KEYS[kind]
    row_type, fact_type = data.draw(st.sampled_from(types)), data.draw(st.sampled_from(types))
    key = st.none() | st.sampled_from(values)
    rows = data.draw(st.lists(st.tuples(key, hours), max_size=5))
    known = data.draw(st.lists(st.tuples(key, hours, st.integers(0, 9)), max_size=8, unique=True))
    answers = [
        look_up(
            asked([(None, hour) for _, hour in rows]).with_columns(
                pl.Series("key", [key for key, _ in rows], types[0]).cast(of_rows)
            ),
            facts([(None, hour, value) for _, hour, value in known]).with_columns(
                pl.Series("key", [key for key, _, _ in known], types[0]).cast(of_facts)
            ),
            ["key"],
        )
        for of_rows, of_facts in ((types[0], types[0]), (row_type, fact_type))
    ]
    assert answers[0] == answers[1]


@look_ups
def test_a_key_that_the_rows_type_cannot_hold_matches_nothing(look_up: LookUp) -> None:
    rows = asked([("a", 5)]).with_columns(key=pl.Series([44], dtype=pl.Int8))
    known = facts([("a", 4, 7), ("a", 4, 9)]).with_columns(key=pl.Series([44, 300]))
    assert look_up(rows, known, ["key"]) == look_up(rows, known.head(1), ["key"])


@look_ups
@given(
    rows=st.lists(hours, max_size=5),
    known=st.lists(st.tuples(hours, st.integers(0, 9)), max_size=8, unique=True),
)
def test_without_a_key_all_facts_are_about_one_thing(
    look_up: LookUp, rows: list[int | None], known: list[tuple[int | None, int]]
) -> None:
    one_key = look_up(asked([("a", hour) for hour in rows]), facts([("a", *fact) for fact in known]), ["key"])
    no_key = look_up(
        asked([("a", hour) for hour in rows]).drop("key"),
        facts([("a", *fact) for fact in known]).drop("key"),
        [],
    )
    assert no_key == one_key


@look_ups
@pytest.mark.parametrize(
    ("change_rows", "change_facts", "said"),
    [
        pytest.param(
            pl.col("at").dt.cast_time_unit("ns"),
            pl.col("known_at").dt.cast_time_unit("ns"),
            "cast both to microseconds in UTC",
            id="nanoseconds of pandas",
        ),
        pytest.param(
            pl.col("at"),
            pl.col("known_at").dt.cast_time_unit("ms"),
            "cast both to microseconds in UTC",
            id="two units",
        ),
        pytest.param(
            pl.col("at").dt.replace_time_zone(None), pl.col("known_at"), "cast both to", id="no zone"
        ),
        pytest.param(pl.col("at").dt.date(), pl.col("known_at").dt.date(), "cast both to", id="days"),
        pytest.param(
            pl.lit(1).alias("key"), pl.col("key"), "the key 'key' is Int32 in the rows and String", id="keys"
        ),
    ],
)
def test_what_cannot_meet_is_refused_by_name(
    look_up: LookUp, change_rows: pl.Expr, change_facts: pl.Expr, said: str
) -> None:
    rows, known = asked([("a", 5)]), facts([("a", 4, 1)])
    rows, known = rows.with_columns(change_rows), known.with_columns(change_facts)
    with pytest.raises(MeetingError, match=said):
        look_up(rows, known, ["key"])


@look_ups
def test_a_missing_column_is_named_with_its_side(look_up: LookUp) -> None:
    with pytest.raises(MeetingError, match=r"the facts .*\['known_at'\]"):
        look_up(asked([("a", 5)]), facts([]).drop("known_at"), ["key"])
