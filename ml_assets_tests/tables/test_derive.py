"""Derived partitions: which can be built from what stands on main, and what the function is given."""

import json
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.data.tables.cadence import Cadence, CadenceKind
from ml_assets.data.tables.declared import DeclaredTable, DeclaredTables, InputTable
from ml_assets.data.tables.derive import derive, plan
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming
from ml_assets.data.tables.user_code import FeatureFunctionError
from ml_assets_tests.tables import orders_table
from ml_assets_tests.tables.orders_table import FIRST, ORDERS, OrdersTable, day, days, keys

DAILY = Cadence("daily", FIRST)
SHOPS = orders_table.spec(name="shops", cadence=Cadence("none"))
TABLES = DeclaredTables(DeclaredTable.of(spec) for spec in (orders_table.spec(), SHOPS))


def _orders(upto: int, lookback: int = 1) -> InputTable:
    cadence = Cadence("daily", FIRST, FIRST + timedelta(upto - 1))
    return InputTable(table=ORDERS, cadence=cadence, lookback=lookback)


def sums(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Amount per day, with that of the day before."""
    per_day = (
        inputs[ORDERS]
        .group_by(pl.col("ordered_at").dt.date().alias("partition_date"))
        .agg(pl.col("amount").sum())
        .sort("partition_date")
    )
    before = per_day.select(pl.col("partition_date") + timedelta(1), pl.col("amount").alias("before"))
    joined = per_day.join(before, on="partition_date", how="left", maintain_order="left")
    return joined.filter(pl.col("partition_date").is_between(first, last))


def _build(orders: OrdersTable, wanted: list[str], function=sums, lookback: int = 1) -> dict[str, Incoming]:
    reader = TableReader.at(orders.store)
    inputs = [_orders(30, lookback)]
    possible = plan(reader, orders.ledger, TABLES, inputs, wanted, DAILY)
    found = derive(reader, orders.ledger, inputs, possible.ranges, DAILY, function, "partition_date")
    return {one.key: one for one in found}


# Which inputs a partition needs


@given(
    st.dates(date(2014, 1, 1), date(2016, 1, 1)), st.integers(0, 5), st.sampled_from(["weekly", "monthly"])
)
def test_a_week_or_month_needs_all_its_days_and_those_of_its_lookback(
    day: date, lookback: int, kind: CadenceKind
) -> None:
    own = Cadence(kind, date(2013, 1, 1))
    read = InputTable(table=ORDERS, cadence=DAILY, lookback=lookback, read_by=own)
    key = own.key_of(day)
    first, _ = own.bounds(own.window(key, lookback + 1)[0])
    last = own.bounds(key)[1]
    wanted = [(first + timedelta(n)).isoformat() for n in range((last - first).days + 1)]
    assert list(read.needed_for(key)) == wanted


@given(st.dates(date(2014, 1, 1), date(2016, 1, 1)), st.integers(0, 5))
def test_a_day_needs_only_weeks_that_are_over(day: date, lookback: int) -> None:
    weeks = Cadence("weekly", date(2012, 1, 1))
    read = InputTable(table=ORDERS, cadence=weeks, lookback=lookback, read_by=DAILY)
    needed = read.needed_for(day.isoformat())
    assert len(needed) == lookback + 1
    ends = [weeks.bounds(key)[1] for key in needed]
    assert all(timedelta(0) < day - end <= timedelta(7 * (n + 1)) for n, end in enumerate(reversed(ends)))


def test_a_finer_or_coarser_input_without_its_history_is_named() -> None:
    """Keys that the table cannot have are needed all the same, so that the guard refuses it by name."""
    late = Cadence("daily", date(2013, 1, 9))
    weekly = Cadence("weekly", FIRST)
    read = InputTable(table=ORDERS, cadence=late, lookback=2, read_by=weekly)
    assert read.needed_for("2013-01-07")[:2] == ("2013-01-07", "2013-01-08")
    weeks = InputTable(table=ORDERS, cadence=weekly, lookback=2, read_by=DAILY)
    assert weeks.needed_for("2013-01-02") == ("2012-12-24",)


@given(at=st.integers(0, 29), lookback=st.integers(0, 40))
def test_a_partition_needs_itself_and_its_lookback(at: int, lookback: int) -> None:
    """The lookback ends where the input table begins."""
    needed = _orders(30, lookback).needed_for(keys(30)[at])
    assert needed == tuple(keys(30)[max(0, at - lookback) : at + 1])


def test_a_table_without_partitions_is_needed_whole() -> None:
    assert InputTable(table="datasets/shops", cadence=Cadence("none")).needed_for("2013-01-05") == ("all",)


def test_a_key_the_input_cannot_have_is_asked_for_and_so_found_missing(orders: OrdersTable) -> None:
    beyond = keys(1, start=40)
    possible = plan(TableReader.at(orders.store), orders.ledger, TABLES, [_orders(30)], beyond, DAILY)
    assert possible.missing == {ORDERS: tuple(beyond)}


# What can be built


def test_neighbours_are_built_together_and_a_gap_parts_them(orders: OrdersTable) -> None:
    orders.publish(days(10))
    wanted = [*keys(3), *keys(2, start=5)]
    possible = plan(TableReader.at(orders.store), orders.ledger, TABLES, [_orders(10)], wanted[::-1], DAILY)
    assert possible.ranges == (tuple(keys(3)), tuple(keys(2, start=5)))
    assert possible.refused == {}
    assert possible.missing == {}


def test_weeks_in_a_row_are_neighbours(orders: OrdersTable) -> None:
    weekly = Cadence("weekly", date(2013, 1, 7))
    mondays = weekly.keys(date(2013, 1, 7), date(2013, 2, 3))
    possible = plan(TableReader.at(orders.store), orders.ledger, TABLES, [], mondays, weekly)
    assert possible.ranges == (tuple(mondays),)


def test_a_hole_in_the_input_refuses_all_that_look_back_on_it(orders: OrdersTable) -> None:
    present = days(8)
    hole = keys(8)[3]
    del present[hole]
    orders.publish(present)
    possible = plan(
        TableReader.at(orders.store), orders.ledger, TABLES, [_orders(8, lookback=2)], keys(8), DAILY
    )
    assert possible.ranges == (tuple(keys(3)), tuple(keys(2, start=6)))
    assert possible.refused == dict.fromkeys(keys(3, start=3), f"{ORDERS} {hole} is missing")
    assert possible.missing == {ORDERS: (hole,)}


def test_a_rejected_input_is_refused_and_not_called_missing(
    orders: OrdersTable,
) -> None:
    """Refused although main holds an older version."""
    orders.publish(days(3))
    bad = keys(3)[1]
    orders.publish({bad: day(bad).drop("amount")}, run="run00002")
    possible = plan(TableReader.at(orders.store), orders.ledger, TABLES, [_orders(3)], keys(3), DAILY)
    assert possible.refused == dict.fromkeys(keys(2, start=1), f"{ORDERS} {bad} is rejected")
    assert possible.missing == {}
    assert possible.ranges == ((keys(3)[0],),)


def test_every_input_table_is_named_in_a_refusal(orders: OrdersTable) -> None:
    shops = InputTable(table="datasets/shops", cadence=Cadence("none"))
    possible = plan(
        TableReader.at(orders.store), orders.ledger, TABLES, [_orders(2, 0), shops], keys(1), DAILY
    )
    assert list(possible.refused) == keys(1)
    lacking = possible.refused[keys(1)[0]].split(", ")
    assert lacking == [f"{ORDERS} {keys(1)[0]} is missing", f"{shops.table} all is missing"]
    assert possible.missing == {ORDERS: (keys(1)[0],), "datasets/shops": ("all",)}


# What is built


def test_the_function_is_called_once_a_range_with_all_it_needs(orders: OrdersTable, tmp_path: Path) -> None:
    orders.publish(days(9))
    calls = tmp_path / "calls.jsonl"

    def watched(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
        read = inputs[ORDERS].collect()["ordered_at"].dt.date().unique().sort().to_list()
        with calls.open("a") as file:
            print(json.dumps([str(first), str(last), *map(str, read)]), file=file)
        return sums(inputs, first, last)

    _build(orders, [*keys(2, start=2), keys(9)[8]], watched)
    january = [str(date(2013, 1, n)) for n in range(1, 10)]
    assert [json.loads(line) for line in calls.read_text().splitlines()] == [
        [january[2], january[3], *january[1:4]],
        [january[8], january[8], *january[7:9]],
    ]


def test_a_range_gives_what_single_days_give(orders: OrdersTable) -> None:
    """The manifest of each day records its own inputs."""
    orders.publish(days(6))
    together = _build(orders, keys(6))
    digests = TableReader.at(orders.store).digests(ORDERS)
    for at, key in enumerate(keys(6)):
        (alone,) = _build(orders, [key]).values()
        assert isinstance(alone.data, pl.DataFrame)
        assert isinstance(together[key].data, pl.DataFrame)
        assert alone.data.equals(together[key].data)
        needed = keys(6)[max(0, at - 1) : at + 1]
        assert together[key].inputs == {ORDERS: {name: digests[name] for name in needed}}


def test_a_day_the_function_has_no_rows_for_is_an_empty_partition(orders: OrdersTable) -> None:
    orders.publish(days(3))
    second = date.fromisoformat(keys(3)[1])

    def sparse(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
        return sums(inputs, first, last).filter(pl.col("partition_date") != second)

    built = _build(orders, keys(3), sparse)
    assert [one.data.height for one in built.values() if isinstance(one.data, pl.DataFrame)] == [1, 0, 1]
    assert built[keys(3)[1]].data.columns == built[keys(3)[0]].data.columns


def test_rows_nobody_asked_for_are_an_error_that_says_how_to_filter(orders: OrdersTable) -> None:
    orders.publish(days(4))

    def eager(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
        return sums(inputs, first - timedelta(1), last)

    here = rf"test_derive\.py:{eager.__code__.co_firstlineno}: for partitions "
    with pytest.raises(FeatureFunctionError, match=rf"{here}.* 2013-01-02: filter "):
        _build(orders, keys(2, start=2), eager)


@pytest.mark.parametrize(
    "column",
    [pl.col("partition_date").alias("day"), pl.col("partition_date").cast(pl.String)],
    ids=["absent", "text"],
)
def test_an_answer_without_its_days_is_an_error_that_names_the_column(
    orders: OrdersTable, column: pl.Expr
) -> None:
    orders.publish(days(1))

    def undated(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
        return sums(inputs, first, last).select(column, "amount")

    with pytest.raises(FeatureFunctionError, match=r"return .*'partition_date' of type Date"):
        _build(orders, keys(1), undated)


def _deep(first: date) -> int:
    return 1 // (first - first).days


def test_a_row_without_its_day_is_an_error_that_counts_such_rows(orders: OrdersTable) -> None:
    orders.publish(days(2))

    def lagged(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
        return sums(inputs, first, last).with_columns(pl.col("partition_date").shift(1))

    with pytest.raises(FeatureFunctionError, match=r"'partition_date' .* 1 of the 2 rows"):
        _build(orders, keys(2), lagged)


class Builder:
    """A feature function that is an object."""

    def __call__(self, inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
        """Raise in a function of the same folder."""
        raise ValueError(_deep(first))


def test_an_error_of_a_function_names_the_innermost_line_of_its_folder(orders: OrdersTable) -> None:
    orders.publish(days(1))
    line = _deep.__code__.co_firstlineno + 1
    with pytest.raises(
        FeatureFunctionError, match=rf"test_derive\.py:{line}: Builder raised ZeroDivisionError: "
    ):
        _build(orders, keys(1), Builder())


def test_a_panic_of_polars_is_an_error_like_any_other(orders: OrdersTable) -> None:
    orders.publish(days(1))

    def panics(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
        raise pl.exceptions.PanicException("out of bounds")

    with pytest.raises(FeatureFunctionError, match="panics raised PanicException: "):
        _build(orders, keys(1), panics)


def test_a_function_that_exits_does_not_end_the_run(orders: OrdersTable) -> None:
    """With code 0 the command would end as if it had succeeded."""
    orders.publish(days(1))

    def leaves(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
        raise SystemExit(0)

    with pytest.raises(FeatureFunctionError, match="leaves raised SystemExit: 0"):
        _build(orders, keys(1), leaves)


@pytest.mark.parametrize("error", [ConnectionError, TimeoutError])
def test_errors_that_may_be_gone_at_the_next_attempt_keep_their_type(
    orders: OrdersTable, error: type[Exception]
) -> None:
    orders.publish(days(1))

    def away(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
        raise error("no answer")

    with pytest.raises(error, match="no answer"):
        _build(orders, keys(1), away)
