"""Point-in-time joins return the same rows as a loop over all pairs, and refuse ambiguous input."""

import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.features.point_in_time import PointInTimeError, join_as_of
from ml_assets_tests.features.event_tables import asked, facts, hours, keys

Row = tuple[str | None, int | None]
Fact = tuple[str | None, int | None, int]


def newest_known(
    row: Row, known: list[Fact], tolerance: int | None, strict: bool
) -> tuple[int | None, int | None]:
    """Hour and value of the fact that counts for `row`, found by looking at every fact."""
    best: tuple[int, int] | None = None
    key, at = row
    for fact_key, hour, value in known:
        if None in (key, at, fact_key, hour) or fact_key != key:
            continue
        age = at - hour
        is_known = age > 0 if strict else age >= 0
        if is_known and (tolerance is None or age <= tolerance) and (best is None or (hour, value) > best):
            best = (hour, value)
    return best or (None, None)


@given(
    rows=st.lists(st.tuples(keys, hours), max_size=12),
    known=st.lists(st.tuples(keys, hours, st.integers(0, 9)), max_size=12, unique=True),
    tolerance=st.none() | st.integers(0, 6),
    strict=st.booleans(),
)
def test_a_join_finds_what_a_loop_over_all_pairs_finds(
    rows: list[Row], known: list[Fact], tolerance: int | None, strict: bool
) -> None:
    joined = join_as_of(
        asked(rows),
        facts(known),
        by=["key"],
        at="at",
        known_at="known_at",
        tolerance=None if tolerance is None else timedelta(hours=tolerance),
        strict=strict,
        tiebreak=["value"],
    )
    expected = [newest_known(row, known, tolerance, strict) for row in rows]
    assert joined["value"].to_list() == [value for _, value in expected]
    assert joined.select("key", "at").equals(asked(rows)), "rows keep their order"
    found = facts([("a", hour, 0) for hour, _ in expected])["known_at"]
    assert joined["known_at"].to_list() == found.to_list()


@given(
    rows=st.lists(st.tuples(keys, hours), max_size=8),
    known=st.lists(
        st.tuples(keys, hours, st.integers(0, 9)), max_size=8, unique_by=lambda fact: (fact[0], fact[1])
    ),
    seed=st.randoms(use_true_random=False),
)
def test_the_order_of_facts_does_not_matter(rows: list[Row], known: list[Fact], seed: random.Random) -> None:
    shuffled = list(known)
    seed.shuffle(shuffled)
    one, other = (
        join_as_of(asked(rows), facts(some), by=["key"], at="at", known_at="known_at")
        for some in (known, shuffled)
    )
    assert one.equals(other)


def test_a_fact_known_exactly_at_prediction_time_counts_unless_strict() -> None:
    rows, known = asked([("a", 5)]), facts([("a", 4, 1), ("a", 5, 2)])
    by = {"by": ["key"], "at": "at", "known_at": "known_at"}
    assert join_as_of(rows, known, **by)["value"].to_list() == [2]
    assert join_as_of(rows, known, **by, strict=True)["value"].to_list() == [1]


def test_a_draw_between_facts_is_refused() -> None:
    known = facts([("a", 4, 1), ("a", 4, 2)])
    with pytest.raises(PointInTimeError, match="tiebreak"):
        join_as_of(asked([("a", 5)]), known, by=["key"], at="at", known_at="known_at")


def test_a_draw_that_tiebreak_leaves_is_refused() -> None:
    known = facts([("a", 4, 1), ("a", 4, 1)])
    with pytest.raises(PointInTimeError, match="so their order is unknown"):
        join_as_of(asked([("a", 5)]), known, by=["key"], at="at", known_at="known_at", tiebreak=["value"])


def test_columns_that_would_be_overwritten_are_refused() -> None:
    rows = asked([("a", 5)]).with_columns(value=1)
    with pytest.raises(PointInTimeError, match="rename or drop"):
        join_as_of(rows, facts([("a", 4, 1)]), by=["key"], at="at", known_at="known_at")


@pytest.mark.filterwarnings("error")
def test_nothing_is_warned_about() -> None:
    join_as_of(asked([("b", 5), ("a", 1)]), facts([("a", 4, 1)]), by=["key"], at="at", known_at="known_at")
