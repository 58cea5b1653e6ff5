"""Change of a table between two windows: partitions that came, went or changed, and the rows that differ in them."""

import polars as pl
import pytest

from ml_assets.data.tables.history.diff import PartitionChange, ReadWindow, compare_windows
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.validation.contract import Contract
from ml_assets_tests.tables.orders_table import ORDERS, RULES, OrdersTable, day, days, keys

KEY = ("ordered_at", "order")


def _window(orders: OrdersTable, wanted: list[str]) -> ReadWindow:
    return ReadWindow(reader=TableReader.at(orders.store), table=ORDERS, keys=wanted)


def test_days_and_rows_that_differ_are_counted_with_the_reason(orders: OrdersTable) -> None:
    orders.publish(days(4))
    before = _window(orders, keys(3))
    changed, other = keys(1, 1)[0], keys(1, 2)[0]
    more = day(changed, 42).with_columns(
        amount=pl.when(pl.col("order") == 7).then(999.0).otherwise(pl.col("amount"))
    )
    orders.publish({changed: more.filter(pl.col("order") != 3)}, run="run00002")
    orders.publish({other: day(other, factor=2.0)}, run="run00003", code_version="v2")
    found = compare_windows(before, _window(orders, keys(3, 1)), KEY)
    assert (found.came, found.went, found.same) == ({"2013-01-04": 40}, {"2013-01-01": 40}, 0)
    assert found.changed == (
        PartitionChange(
            key=changed,
            before=40,
            after=41,
            came=2,
            went=1,
            changed=1,
            why="rows of the source",
            columns={"amount": 1},
        ),
        PartitionChange(
            key=other, before=40, after=40, came=0, went=0, changed=40, why="code", columns={"amount": 40}
        ),
    )
    (declared,) = found.declarations
    table, _, said = declared.partition(": ")
    assert (table, said.split(" ")[1::2]) == ("datasets/orders", ["v1", "v1+v2."])


@pytest.mark.parametrize("key", [("shop",), ("ordered_at", "number"), ()])
def test_rows_are_counted_whole_if_the_key_is_not_that_of_both(
    orders: OrdersTable, key: tuple[str, ...]
) -> None:
    """The key shrank, one of its columns is new, or there is none."""
    (some,) = keys(1)
    orders.publish(days(1))
    before = _window(orders, [some])
    orders.publish({some: day(some, 42).slice(2)}, run="run00002")
    (found,) = compare_windows(before, _window(orders, [some]), key).changed
    assert (found.came, found.went, found.changed) == (2, 2, 0)


@pytest.mark.parametrize("name", ["amount_after", "key", "row", "value of amount", "amount.net"])
def test_a_column_may_have_any_name(orders: OrdersTable, name: str) -> None:
    contract = Contract.model_validate(
        {**RULES, "columns": [*RULES["columns"], {"name": name, "dtype": "float64"}]}
    )
    (some,) = keys(1)
    windows: list[ReadWindow] = []
    for value in (1.0, 2.0):
        orders.publish({some: day(some).with_columns(pl.lit(value).alias(name))}, contract=contract)
        windows.append(_window(orders, [some]))
    (found,) = compare_windows(*windows, KEY).changed
    assert (found.changed, found.columns) == (40, {name: 40})


def test_equal_windows_have_no_difference(orders: OrdersTable) -> None:
    orders.publish(days(2))
    found = compare_windows(_window(orders, keys(2)), _window(orders, keys(2)), KEY)
    assert (found.came, found.went, found.same, found.changed, found.declarations) == ({}, {}, 2, (), ())
