"""Retention of a table: which partitions leave main, and that nothing is stale or missing by it."""

from pathlib import Path

import polars as pl
import pytest
from pydantic import ValidationError

from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.declared import NOTHING_DECLARED, DeclaredTable, DeclaredTables
from ml_assets.data.tables.guard import validate_window
from ml_assets.data.tables.history.log import blame, unaudited
from ml_assets.data.tables.history.retention import not_retained, retire
from ml_assets.data.tables.publish.publish import publish
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun, Retain
from ml_assets.data.validation.contract import Contract
from ml_assets_tests.tables import orders_table
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, days, keys, spec

FIRST_DAY = orders_table.FIRST
UNDATED = Contract.model_validate({**orders_table.RULES, "event_time": None})
SIX = keys(6)


@pytest.fixture
def orders(tmp_path: Path) -> OrdersTable:
    """Six days of orders."""
    orders = OrdersTable(tmp_path)
    orders.publish(days(6))
    return orders


def _tables(retain: Retain | None, *more: DeclaredTable) -> DeclaredTables:
    return DeclaredTables([DeclaredTable.of(spec(retain=retain)), *more])


def test_oldest_retained_key() -> None:
    daily, weekly = Cadence("daily", FIRST_DAY), Cadence("weekly", FIRST_DAY)
    assert Retain(partitions=2).oldest(daily, SIX) == SIX[4]
    assert Retain(partitions=9).oldest(daily, SIX) == SIX[0]
    assert Retain(days=3).oldest(daily, SIX) == SIX[3]
    assert Retain(days=8).oldest(weekly, ["2024-01-01", "2024-01-08", "2024-01-15"]) == "2024-01-08"
    assert Retain(days=3).oldest(daily, []) == ""


@pytest.mark.parametrize("wrong", [{}, {"days": 3, "partitions": 3}, {"days": 0}])
def test_retain_names_days_or_partitions(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        Retain(**wrong)


def test_retired_partitions_leave_main_and_stay_in_the_history(orders: OrdersTable) -> None:
    before = orders.store.resolve("main")
    (one,) = not_retained(TableReader.at(orders.store), _tables(Retain(partitions=2)), {})
    assert one.keys == tuple(SIX[:4])
    assert one.size > 0
    retire(orders.store, orders.ledger, one, "ada")
    assert TableReader.at(orders.store).keys(ORDERS) == SIX[4:]
    assert TableReader(orders.store, before).keys(ORDERS) == SIX
    assert orders.store.list("main", f"{ORDERS}/date={SIX[0]}") == []
    assert unaudited(orders.store, 10) == []
    newest = blame(orders.store, ORDERS, SIX[0])[0]
    assert (newest.why, newest.made_by.author) == ("removed", "ada")
    assert not_retained(TableReader.at(orders.store), _tables(Retain(partitions=2)), {}) == []


def test_what_trainings_and_features_read_stays(orders: OrdersTable) -> None:
    reader = TableReader.at(orders.store)
    assert not_retained(reader, _tables(None), {}) == []
    (one,) = not_retained(reader, _tables(Retain(partitions=2)), {ORDERS: 4})
    assert one.keys == tuple(SIX[:2])
    features = DeclaredTable.of(spec(kind="features", name="sums", inputs={ORDERS: 4}))
    (one,) = not_retained(reader, _tables(Retain(partitions=2), features), {})
    assert one.keys == (SIX[0],)


@pytest.mark.parametrize(
    ("lookback", "newest", "oldest_kept"),
    [(0, 20, "2013-01-07"), (1, 20, "2012-12-31"), (0, 14, "2013-01-07"), (0, 13, "2012-12-31")],
)
def test_what_weeks_read_of_days_stays(tmp_path: Path, lookback: int, newest: int, oldest_kept: str) -> None:
    """Days of the newest week and of the week before, which may not be built yet, with their lookback."""
    orders = OrdersTable(tmp_path)
    orders.publish(days(newest))
    weekly = Cadence("weekly", FIRST_DAY)
    features = DeclaredTable.of(
        spec(kind="features", name="weeks", cadence=weekly, inputs={ORDERS: lookback})
    )
    found = not_retained(TableReader.at(orders.store), _tables(Retain(partitions=2), features), {})
    retired = [key for one in found for key in one.keys]
    assert retired == [key for key in keys(newest) if key < oldest_kept]


def test_what_days_read_of_weeks_stays(tmp_path: Path) -> None:
    orders = OrdersTable(tmp_path)
    weekly = Cadence("weekly", FIRST_DAY)
    weeks = ["2012-12-31", "2013-01-07", "2013-01-14", "2013-01-21"]
    orders.publish({key: orders_table.day("2013-01-01") for key in weeks}, cadence=weekly, contract=UNDATED)
    tables = DeclaredTables(
        [
            DeclaredTable.of(spec(cadence=weekly, retain=Retain(partitions=1))),
            DeclaredTable.of(spec(kind="features", name="days", inputs={ORDERS: 1})),
        ]
    )
    (one,) = not_retained(TableReader.at(orders.store), tables, {})
    assert one.keys == (weeks[0],)


@pytest.mark.parametrize(
    ("retain", "oldest_kept"), [(Retain(partitions=3), "2013-01-02T02"), (Retain(days=1), "2013-01-02T00")]
)
def test_hours_are_retained_beside_days_of_before(
    orders: OrdersTable, retain: Retain, oldest_kept: str
) -> None:
    """Days that are newer than the hours count for nothing; days that are older leave main."""
    hours = [f"2013-01-02T{hour:02}" for hour in range(5)]
    hourly = spec(cadence=Cadence("hourly", FIRST_DAY), contract=UNDATED, retain=retain)
    tables = DeclaredTables([DeclaredTable.of(hourly)])
    assert not not_retained(TableReader.at(orders.store), tables, {})
    orders.publish(
        {key: orders_table.day("2013-01-02") for key in hours}, contract=UNDATED, cadence=hourly.cadence
    )
    reader = TableReader.at(orders.store)
    lacking = validate_window(reader, orders.ledger, tables, ORDERS, [*hours, "2013-01-02T05"])
    assert lacking.to_build == {ORDERS: ("2013-01-02T05",)}
    (one,) = not_retained(reader, tables, {})
    assert one.keys == tuple(key for key in sorted([*SIX, *hours]) if key < oldest_kept)


def test_features_of_retired_days_are_not_stale(orders: OrdersTable) -> None:
    features = spec(kind="features", name="sums", inputs={ORDERS: 0})
    reader = TableReader.at(orders.store)
    frames = [
        Incoming(
            key=key,
            data=reader.scan(ORDERS, [key]).with_columns(pl.lit("seen").alias("note")).collect(),
            inputs={ORDERS: reader.input_digests(ORDERS, [key])},
        )
        for key in SIX
    ]
    publish(orders.store, orders.ledger, features, frames, PublishingRun(run_id="run00002"), NOTHING_DECLARED)
    tables = _tables(Retain(partitions=2), DeclaredTable.of(features))
    (one,) = not_retained(TableReader.at(orders.store), tables, {})
    retire(orders.store, orders.ledger, one, "ada")

    def stale(declared: DeclaredTables) -> list[str]:
        found = validate_window(TableReader.at(orders.store), orders.ledger, declared, "features/sums", SIX)
        assert found.ok, found.explain()
        return list(found.stale)

    assert stale(tables) == []
    assert stale(_tables(None, DeclaredTable.of(features))) == SIX[:4]
