"""Earlier versions of partitions: readers of a time before a change get the rows of that time."""

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.history.retention import Retired, retire
from ml_assets.data.tables.publish.earlier import moment_of_change
from ml_assets.data.tables.publish.rejected import accept_partition
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.validation.contract import Contract
from ml_assets_tests.tables import orders_table
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, day, keys
from resources.ledger import NewVerdict, Person

[KEY, NEXT] = keys(2)
LONG_AGO = datetime(2013, 1, 5, tzinfo=UTC)
KEPT: dict[str, Any] = {"is_known_at_ingestion": True}


def at(orders: OrdersTable, moment: datetime) -> TableReader:
    """Return the orders as they were known at `moment`."""
    return TableReader.at(orders.store).as_known(ORDERS, moment, orders.ledger)


def rows(reader: TableReader, key: str = KEY) -> pl.DataFrame:
    return reader.scan(ORDERS, [key]).collect()


def test_every_version_is_read_at_its_time(orders: OrdersTable) -> None:
    """Also one with fewer rows, and one that comes back."""
    versions = [day(KEY), day(KEY, factor=2), day(KEY, rows=39), day(KEY)]
    between: list[datetime] = []
    for frame in versions:
        orders.publish({KEY: frame}, **KEPT)
        between.append(datetime.now(UTC))
    for moment, frame in zip(between, versions, strict=True):
        assert rows(at(orders, moment)).sort("order").equals(frame)
    assert at(orders, LONG_AGO).digests(ORDERS) == at(orders, between[0]).digests(ORDERS)
    assert (
        at(orders, LONG_AGO).manifest(ORDERS, KEY).content_digest == at(orders, LONG_AGO).digests(ORDERS)[KEY]
    )


def test_changes_that_land_together_have_one_moment(orders: OrdersTable) -> None:
    """So no reader sees one partition of a landing corrected and another one not."""
    for factor in (1, 2):
        orders.publish({key: day(key, factor=factor) for key in keys(9)}, **KEPT)
    assert len({one.until for one in TableReader.at(orders.store).earlier(ORDERS)}) == 1


def test_other_partitions_are_the_same_at_all_times(orders: OrdersTable) -> None:
    orders.publish({KEY: day(KEY), NEXT: day(NEXT)}, **KEPT)
    orders.publish({KEY: day(KEY, factor=2)}, **KEPT)
    orders.publish({NEXT: day(NEXT, factor=3)}, **KEPT)
    assert rows(at(orders, LONG_AGO), NEXT)["amount"].sum() == day(NEXT)["amount"].sum()
    both = at(orders, LONG_AGO).scan(ORDERS, [KEY, NEXT]).collect()
    assert both.height == 80


def test_a_rejected_correction_keeps_the_earlier_rows_when_accepted(orders: OrdersTable) -> None:
    orders.publish({KEY: day(KEY)}, **KEPT)
    broken = day(KEY).with_columns(pl.lit(-1.0).alias("amount"))
    assert orders.publish({KEY: broken}, **KEPT).rejected
    assert not TableReader.at(orders.store).earlier(ORDERS)
    accept_partition(orders.store, orders.ledger, ORDERS, KEY, Person.unchecked("ada"), "refunds")
    assert rows(TableReader.at(orders.store))["amount"].max() == -1
    assert rows(at(orders, LONG_AGO)).equals(day(KEY))


def test_earlier_rows_that_are_rejected_later_are_not_read(orders: OrdersTable) -> None:
    """Unless somebody accepts them. A stricter contract rejects them when the source hands them out again."""
    strict = [{**one, "le": 50} if one["name"] == "amount" else one for one in orders_table.RULES["columns"]]
    stricter = {**KEPT, "contract": Contract.model_validate({**orders_table.RULES, "columns": strict})}
    first, second = day(KEY, factor=10), day(KEY)
    for frame in (first, second):
        orders.publish({KEY: frame}, **KEPT)
    assert rows(at(orders, LONG_AGO)).equals(first)
    assert orders.publish({KEY: first}, **stricter).rejected
    assert rows(at(orders, LONG_AGO)).equals(second)
    accept_partition(orders.store, orders.ledger, ORDERS, KEY, Person.unchecked("ada"), "a fair")
    assert rows(at(orders, LONG_AGO)).equals(first)


def test_other_columns_begin_anew(orders: OrdersTable) -> None:
    orders.publish({KEY: day(KEY)}, **KEPT)
    orders.publish({KEY: day(KEY, factor=2)}, **KEPT)
    wider = [*orders_table.RULES["columns"], {"name": "tip", "dtype": "float64"}]
    tipped = day(KEY).with_columns(pl.lit(0.5).alias("tip"))
    contract = Contract.model_validate({**orders_table.RULES, "columns": wider})
    orders.publish({KEY: tipped}, contract=contract, **KEPT)
    assert rows(at(orders, LONG_AGO)).equals(tipped)


def test_a_week_is_no_earlier_version_of_its_monday(orders: OrdersTable) -> None:
    """Features of that day were built from the rows of the whole week."""
    [monday] = keys(1, start=6)
    undated = Contract.model_validate({**orders_table.RULES, "event_time": None})
    weekly = Cadence("weekly", orders_table.FIRST)
    for factor in (1, 2):
        orders.publish({monday: day(monday, 300, factor)}, contract=undated, cadence=weekly, **KEPT)
    orders.publish({monday: day(monday)}, contract=undated, **KEPT)
    assert rows(at(orders, LONG_AGO), monday).equals(day(monday))


def test_a_retired_partition_keeps_nothing(orders: OrdersTable) -> None:
    orders.publish({KEY: day(KEY), NEXT: day(NEXT)}, **KEPT)
    orders.publish({KEY: day(KEY, factor=2), NEXT: day(NEXT, factor=2)}, **KEPT)
    retire(orders.store, orders.ledger, Retired(table=ORDERS, keys=(KEY,), size=0), "ada")
    reader = TableReader.at(orders.store)
    assert {one.key for one in reader.earlier(ORDERS)} == {NEXT}
    assert at(orders, LONG_AGO).keys(ORDERS) == [NEXT]


def test_a_partition_that_is_not_over_is_completed(orders: OrdersTable) -> None:
    """Rows that come before its end do not count as known later than the others."""
    later = (datetime.now(UTC) + timedelta(days=2)).date().isoformat()
    undated = Contract.model_validate({**orders_table.RULES, "event_time": None})
    for count in (40, 41):
        assert orders.publish({later: day(later, rows=count)}, contract=undated, **KEPT).merged[later].changed
    assert not TableReader.at(orders.store).earlier(ORDERS)


def test_a_quarantine_keeps_no_earlier_rows(orders: OrdersTable) -> None:
    limited = {**KEPT, "quarantine_limit": 0.5}
    for factor in (1, 2):
        one_bad = day(KEY, factor=factor).with_columns(
            shop=pl.when(order=3).then(pl.lit("east")).otherwise("shop")
        )
        orders.publish({KEY: one_bad}, **limited)
    reader = TableReader.at(orders.store)
    assert not reader.earlier("quarantine/datasets_orders")
    assert rows(at(orders, LONG_AGO)).height == 39


@pytest.mark.parametrize("seconds", [-86_400, 0, 60])
def test_the_later_change_has_the_later_moment(orders: OrdersTable, seconds: int) -> None:
    """Also of another partition, and if the clock was set back by a day."""
    for factor in (1, 2):
        orders.publish({key: day(key, factor=factor) for key in (KEY, NEXT)}, **KEPT)
    reader = TableReader.at(orders.store)
    [until] = {one.until for one in reader.earlier(ORDERS)}
    assert moment_of_change(reader, orders.ledger, ORDERS, until + timedelta(seconds=seconds)) > until


def _record(orders: OrdersTable, key: str, at: datetime) -> None:
    """Record a verdict on `key` as a process did before its clock was set back."""
    [row] = orders.ledger.newest_verdicts(ORDERS, [key]).values()
    facts = {name: getattr(row, name) for name in NewVerdict.__dataclass_fields__}
    orders.ledger.record_verdicts([NewVerdict(**facts)], at=at)


def test_a_clock_that_was_set_back_does_not_backdate_a_correction(orders: OrdersTable) -> None:
    """Days that began before the newest verdict of the table may have read the rows that the correction replaces."""
    ahead = datetime.now(UTC) + timedelta(days=18)
    orders.publish({KEY: day(KEY), NEXT: day(NEXT)}, **KEPT)
    _record(orders, NEXT, ahead)
    orders.publish({KEY: day(KEY, factor=2)}, **KEPT)
    assert rows(at(orders, ahead - timedelta(seconds=1))).equals(day(KEY))


def test_a_clock_that_was_set_back_does_not_drop_earlier_rows(orders: OrdersTable) -> None:
    """By that clock the day is not over yet, but its rows came when it was."""
    later = datetime.now(UTC) + timedelta(days=2)
    key = later.date().isoformat()
    undated = Contract.model_validate({**orders_table.RULES, "event_time": None})
    orders.publish({key: day(key)}, contract=undated, **KEPT)
    _record(orders, key, later + timedelta(days=1))
    orders.publish({key: day(key, factor=2)}, contract=undated, **KEPT)
    assert rows(at(orders, LONG_AGO), key).equals(day(key))
