"""Windows hold what a loop over all facts finds, and nothing older changes them."""

import random
from datetime import timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.data.features.rolling import RollingError, window_sums
from ml_assets_tests.features.event_tables import asked, facts, hours, keys

Row = tuple[str | None, int | None]
Fact = tuple[str | None, int | None, int]

WINDOWS = {"2h": timedelta(hours=2), "5h": timedelta(hours=5)}
some_rows = st.lists(st.tuples(keys, hours), max_size=12)
some_facts = st.lists(st.tuples(keys, hours, st.integers(-5, 5)), max_size=20)


def summed(rows: list[Row], known: list[Fact]) -> pl.DataFrame:
    return window_sums(
        asked(rows),
        facts(known),
        by=["key"],
        at="at",
        known_at="known_at",
        sums=["value"],
        windows=WINDOWS,
        prefix="p",
    )


@given(rows=some_rows, known=some_facts)
def test_a_window_holds_what_a_loop_over_all_facts_finds(rows: list[Row], known: list[Fact]) -> None:
    result = summed(rows, known)
    for window, length in WINDOWS.items():
        inside = [
            [
                value
                for fact_key, hour, value in known
                if None not in (key, at, hour)
                and fact_key == key
                and at - length / timedelta(hours=1) < hour <= at
            ]
            for key, at in rows
        ]
        assert result[f"p_{window}_n"].to_list() == [len(values) for values in inside]
        assert result[f"p_{window}_value"].to_list() == [sum(values) for values in inside]
    assert result.select("key", "at").equals(asked(rows)), "rows keep their order"


BEYOND = 2**63
huge = st.sampled_from([BEYOND - 1, -BEYOND, BEYOND // 2, -BEYOND // 2, 1, -1])


def test_a_sum_beyond_int64_is_refused_by_name() -> None:
    """Two maximal numbers summed to -2."""
    with pytest.raises(RollingError, match=r"^a sum .*'value'.* int64"):
        summed([("a", 5)], [("a", 5, BEYOND - 1), ("a", 5, BEYOND - 1)])
    wide = facts([("a", 5, 1)]).with_columns(value=pl.Series([BEYOND], dtype=pl.UInt64))
    with pytest.raises(RollingError, match=r"^column 'value' .* int64"):
        window_sums(
            asked([("a", 5)]),
            wide,
            by=["key"],
            at="at",
            known_at="known_at",
            sums=["value"],
            windows=WINDOWS,
            prefix="p",
        )


@given(rows=some_rows, known=st.lists(st.tuples(keys, hours, huge), max_size=12))
def test_a_window_of_huge_numbers_is_exact_or_refused(rows: list[Row], known: list[Fact]) -> None:
    expected: dict[str, list[int]] = {}
    for window, length in WINDOWS.items():
        expected[window] = [
            sum(
                value
                for fact_key, hour, value in known
                if None not in (key, at, hour)
                and fact_key == key
                and at - length / timedelta(hours=1) < hour <= at
            )
            for key, at in rows
        ]
    if any(not -BEYOND <= value < BEYOND for values in expected.values() for value in values):
        with pytest.raises(RollingError, match="beyond int64"):
            summed(rows, known)
        return
    result = summed(rows, known)
    assert {window: result[f"p_{window}_value"].to_list() for window in WINDOWS} == expected


@given(rows=some_rows, known=some_facts, seed=st.randoms(use_true_random=False))
def test_older_facts_and_their_order_do_not_matter(
    rows: list[Row], known: list[Fact], seed: random.Random
) -> None:
    earliest = min((at for _, at in rows if at is not None), default=0) - 5
    needed = [fact for fact in known if fact[1] is None or fact[1] > earliest]
    seed.shuffle(needed)
    assert summed(rows, known).equals(summed(rows, needed))


@given(rows=some_rows, known=some_facts)
def test_rows_do_not_influence_each_other(rows: list[Row], known: list[Fact]) -> None:
    one_by_one = [summed([row], known) for row in rows]
    assert summed(rows, known).equals(pl.concat([summed([], known), *one_by_one]))


def test_several_key_columns_count_together() -> None:
    rows = asked([("a", 5)]).with_columns(place=pl.lit("x"))
    known = facts([("a", 4, 1), ("a", 4, 2)]).with_columns(place=pl.Series(["x", "y"]))
    result = window_sums(
        rows,
        known,
        by=["key", "place"],
        at="at",
        known_at="known_at",
        sums=["value"],
        windows={"2h": timedelta(hours=2)},
        prefix="p",
    )
    assert result["p_2h_value"].to_list() == [1]


def test_sums_of_floats_are_refused() -> None:
    known = facts([("a", 4, 1)]).with_columns(pl.col("value").cast(pl.Float64))
    with pytest.raises(RollingError, match="whole number"):
        window_sums(
            asked([]),
            known,
            by=["key"],
            at="at",
            known_at="known_at",
            sums=["value"],
            windows={},
            prefix="p",
        )
