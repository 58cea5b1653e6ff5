"""Point-in-time joins return the same rows as a loop over all pairs, and refuse ambiguous input."""

import random
from datetime import timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.data.features.point_in_time import PointInTimeError, join_as_of
from ml_assets_tests.features.event_tables import asked, at_hour, events, facts, hours, keys

Row = tuple[str | None, int | None]
Fact = tuple[str | None, int | None, int | None, int]
"""Key, hour of the event, hour at which it became known, value."""

JOIN: dict[str, Any] = {"by": ["key"], "at": "at", "event_at": "happened_at", "known_at": "known_at"}


def newest_known(
    row: Row, known: list[Fact], tolerance: int | None, strict: bool
) -> tuple[int | None, int | None, int | None]:
    """Return the hours and the value of the fact that counts for `row`, found by looking at every fact."""
    key, at = row
    best: tuple[int, int, int] | None = None
    for fact_key, happened, hour, value in known:
        if key is None or at is None or happened is None or hour is None or fact_key != key:
            continue
        is_known = max(happened, hour) < at if strict else max(happened, hour) <= at
        is_fresh = tolerance is None or at - happened <= tolerance
        if is_known and is_fresh and (best is None or (happened, hour, value) > best):
            best = (happened, hour, value)
    return best or (None, None, None)


@given(
    rows=st.lists(st.tuples(keys, hours), max_size=12),
    known=st.lists(st.tuples(keys, hours, hours, st.integers(0, 9)), max_size=14, unique=True),
    tolerance=st.none() | st.integers(0, 6),
    strict=st.booleans(),
)
def test_a_join_finds_what_a_loop_over_all_pairs_finds(
    rows: list[Row], known: list[Fact], tolerance: int | None, strict: bool
) -> None:
    joined = join_as_of(
        asked(rows),
        events(known),
        **JOIN,
        tolerance=None if tolerance is None else timedelta(hours=tolerance),
        strict=strict,
        tiebreak=["value"],
    )
    expected = [newest_known(row, known, tolerance, strict) for row in rows]
    assert joined["value"].to_list() == [value for _, _, value in expected]
    assert joined.select("key", "at").equals(asked(rows)), "rows keep their order"
    assert joined["happened_at"].to_list() == [at_hour(hour) for hour, _, _ in expected]
    assert joined["known_at"].to_list() == [at_hour(hour) for _, hour, _ in expected]


@given(
    rows=st.lists(st.tuples(keys, hours), max_size=8),
    known=st.lists(
        st.tuples(keys, hours, hours, st.integers(0, 9)), max_size=8, unique_by=lambda fact: fact[:3]
    ),
    seed=st.randoms(use_true_random=False),
)
def test_the_order_of_facts_does_not_matter(rows: list[Row], known: list[Fact], seed: random.Random) -> None:
    shuffled = list(known)
    seed.shuffle(shuffled)
    one, other = (join_as_of(asked(rows), events(some), **JOIN) for some in (known, shuffled))
    assert one.equals(other)


def test_a_late_correction_of_an_old_event_does_not_hide_a_newer_one() -> None:
    known = events([("a", 1, 2, 10), ("a", 4, 5, 40), ("a", 1, 8, 11)])
    asks = asked([("a", 3), ("a", 6), ("a", 9)])
    assert join_as_of(asks, known, **JOIN)["value"].to_list() == [10, 40, 40]


def test_a_correction_counts_from_the_moment_it_was_known() -> None:
    known = events([("a", 4, 5, 40), ("a", 4, 8, 41)])
    asks = asked([("a", 7), ("a", 8)])
    assert join_as_of(asks, known, **JOIN)["value"].to_list() == [40, 41]


def test_an_event_of_the_future_does_not_count_even_if_known() -> None:
    known = events([("a", 4, 5, 40), ("a", 9, 5, 90)])
    assert join_as_of(asked([("a", 6), ("a", 9)]), known, **JOIN)["value"].to_list() == [40, 90]


def test_tolerance_counts_from_the_event() -> None:
    known = events([("a", 1, 6, 10)])
    asks = asked([("a", 6), ("a", 7)])
    joined = join_as_of(asks, known, **JOIN, tolerance=timedelta(hours=5))
    assert joined["value"].to_list() == [10, None]


def test_a_fact_known_exactly_at_prediction_time_counts_unless_strict() -> None:
    rows, known = asked([("a", 5)]), events([("a", 3, 4, 1), ("a", 4, 5, 2)])
    assert join_as_of(rows, known, **JOIN)["value"].to_list() == [2]
    assert join_as_of(rows, known, **JOIN, strict=True)["value"].to_list() == [1]


def test_facts_with_one_time_name_it_twice() -> None:
    known = facts([("a", 4, 1), ("a", 6, 2)])
    by = JOIN | {"event_at": "known_at"}
    assert join_as_of(asked([("a", 5)]), known, **by)["value"].to_list() == [1]


@pytest.mark.parametrize("tiebreak", [[], ["value"]])
def test_a_draw_between_facts_is_refused(tiebreak: list[str]) -> None:
    known = events([("a", 3, 4, 1), ("b", 3, 4, 1), ("a", 3, 4, 1)])
    with pytest.raises(PointInTimeError, match=r"^1 facts .*`tiebreak`"):
        join_as_of(asked([("a", 5)]), known, **JOIN, tiebreak=tiebreak)


def test_equal_facts_of_different_keys_are_no_draw() -> None:
    known = events([("a", 3, 4, 1), ("b", 3, 4, 1)])
    assert join_as_of(asked([("b", 5)]), known, **JOIN)["value"].to_list() == [1]


def test_columns_that_would_be_overwritten_are_refused() -> None:
    rows = asked([("a", 5)]).with_columns(value=1)
    with pytest.raises(PointInTimeError, match="rename or drop"):
        join_as_of(rows, events([("a", 4, 4, 1)]), **JOIN)


@pytest.mark.filterwarnings("error")
def test_nothing_is_warned_about() -> None:
    join_as_of(asked([("b", 5), ("a", 1)]), events([("a", 4, 4, 1)]), **JOIN)


def test_without_a_key_the_newest_event_counts_for_every_row() -> None:
    known = events([("a", 1, 2, 10), ("a", 4, 5, 40), ("a", 1, 8, 11)]).drop("key")
    without: dict[str, Any] = JOIN | {"by": []}
    joined = join_as_of(asked([(None, 9)]).drop("key"), known, **without)
    assert joined["value"].to_list() == [40]
    assert joined.schema["known_at"] == pl.Datetime("us", "UTC")
