"""A window is validated by look-up: what is missing, what was rejected, what was made from older inputs."""

import time
from typing import Any

import polars as pl
import pytest

from ml_assets.data.tables import layout
from ml_assets.data.tables.cadence import UNPARTITIONED, Cadence
from ml_assets.data.tables.declared import NOTHING_DECLARED, DeclaredTable, DeclaredTables
from ml_assets.data.tables.guard import validate_window
from ml_assets.data.tables.publish.publish import publish
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun, TableSpec
from ml_assets.data.validation.contract import Contract
from ml_assets_tests.tables import orders_table
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, day, days, keys

FEATURES = "features/habits"
SUMMARY = "features/summary"


def _spec(name: str, table: str, lookback: int = 1, **changes: Any) -> TableSpec:
    """A table made from a partition of `table` and `lookback` before it."""
    return orders_table.spec(kind="features", name=name, inputs={table: lookback}, **changes)


HABITS = _spec("habits", ORDERS)


def _derive(orders: OrdersTable, spec: TableSpec, wanted: list[str], factor: float = 2.0) -> None:
    """Publish a table made from what main holds of its inputs."""
    reader = TableReader.at(orders.store)
    incoming: list[Incoming] = []
    for key in wanted:
        read = {
            table: [UNPARTITIONED] if lookback is None else spec.cadence.window(key, lookback + 1)
            for table, lookback in spec.inputs.items()
        }
        inputs = {table: reader.input_digests(table, keys) for table, keys in read.items()}
        data = day(key, factor=factor)
        incoming.append(Incoming(key=key, data=data, inputs=inputs, behind=reader.behind(read)))
    result = publish(
        orders.store, orders.ledger, spec, incoming, PublishingRun(run_id=f"run{spec.name}"), NOTHING_DECLARED
    )
    assert list(result.merged) == wanted


def test_a_window_that_is_whole_and_current_is_ok(orders: OrdersTable) -> None:
    orders.publish(days(5))
    _derive(orders, HABITS, keys(5))
    window = orders.ask_guard(keys(5), orders_table.spec(), HABITS)
    assert window.ok
    assert not window.stale
    assert window.explain().startswith("features/habits: all 5 partitions ")
    assert len(window.explain().splitlines()) == 1


def test_missing_and_rejected_partitions_are_named_apart(orders: OrdersTable) -> None:
    first, second, third = keys(3)
    orders.publish({first: day(first), third: day(third).drop("amount")})
    window = orders.ask_guard(keys(3))
    assert window.missing == (second,)
    assert list(window.rejected) == [f"{ORDERS} {third}"]
    assert "missing_column in amount" in window.rejected[f"{ORDERS} {third}"]
    assert "audit-datasets-orders" in window.rejected[f"{ORDERS} {third}"]
    assert window.explain().splitlines()[0].endswith(f"{second}. Materialize them.")


def test_a_table_nobody_made_is_missing_whole(orders: OrdersTable) -> None:
    assert orders.ask_guard(keys(2), orders_table.spec(), HABITS).missing == tuple(keys(2))


def test_partitions_with_other_columns_than_the_declared_are_unusable(orders: OrdersTable) -> None:
    orders.publish(days(3))
    columns = [*orders_table.RULES["columns"], {"name": "coupon", "dtype": "bool"}]
    wider = Contract.model_validate(orders_table.RULES | {"columns": columns})
    last = keys(4)[3]
    orders.publish({last: day(last).with_columns(coupon=pl.lit(value=True))}, contract=wider)
    window = orders.ask_guard(keys(4), orders_table.spec(contract=wider))
    assert list(window.barred) == keys(3)
    assert "coupon (bool) is missing;" in window.unusable[f"{ORDERS} {keys(1)[0]}"]
    assert window.to_build == {ORDERS: tuple(keys(3))}


def test_a_changed_input_makes_exactly_its_readers_stale(orders: OrdersTable) -> None:
    orders.publish(days(6))
    _derive(orders, HABITS, keys(6))
    orders.publish({keys(6)[2]: day(keys(6)[2], factor=2)}, run="correction")
    window = orders.ask_guard(keys(6), orders_table.spec(), HABITS)
    assert window.ok
    assert window.stale == dict.fromkeys(keys(6)[2:4], f"{ORDERS} {keys(6)[2]} changed")
    _derive(orders, HABITS, keys(6)[2:4])
    assert not orders.ask_guard(keys(6), orders_table.spec(), HABITS).stale


def test_equal_rows_from_a_changed_input_are_current_after_a_rebuild(orders: OrdersTable) -> None:
    orders.publish(days(1))
    _derive(orders, HABITS, keys(1))
    before = TableReader.at(orders.store).digests(FEATURES)
    orders.publish({keys(1)[0]: day(keys(1)[0], factor=2)}, run="correction")
    _derive(orders, HABITS, keys(1))
    assert TableReader.at(orders.store).digests(FEATURES) == before
    assert not orders.ask_guard(keys(1), orders_table.spec(), HABITS).stale


def test_an_input_that_came_late_makes_its_readers_stale(orders: OrdersTable) -> None:
    first, second = keys(2)
    orders.publish({second: day(second)})
    _derive(orders, HABITS, [second])
    assert not orders.ask_guard([second], orders_table.spec(), HABITS).stale
    orders.publish({first: day(first)}, run="late")
    assert list(orders.ask_guard([second], orders_table.spec(), HABITS).stale) == [second]


def test_staleness_reaches_through_tables_made_from_tables(orders: OrdersTable) -> None:
    orders.publish(days(4))
    _derive(orders, HABITS, keys(4))
    summary = _spec("summary", FEATURES, lookback=0)
    _derive(orders, summary, keys(4))
    orders.publish({keys(4)[1]: day(keys(4)[1], factor=2)}, run="correction")
    window = orders.ask_guard(keys(4), orders_table.spec(), HABITS, summary)
    assert list(window.stale) == keys(4)[1:3]
    assert window.stale[keys(4)[2]] == f"{FEATURES} {keys(4)[2]} is stale itself"


def test_what_came_to_main_past_the_audit_is_unusable(orders: OrdersTable) -> None:
    """Main holds the day, and no verdict is about those rows: a writer of its own, or a run that was killed."""
    first, second = keys(2)
    orders.publish(days(2))
    other = OrdersTable(orders.folder / "other")
    other.publish({second: day(second, factor=3)})
    reader = TableReader.at(other.store)
    branch = "by-hand"
    orders.store.create_branch(branch, "main")
    for path, file in other.store.fetch(reader.commit_id, list(reader.object_hashes(ORDERS, second))).items():
        orders.store.put(branch, path, file)
    orders.store.commit(branch, "rows of another lake", {})
    orders.store.merge(branch, "main", "rows of another lake", {})
    window = orders.ask_guard(keys(2))
    assert list(window.barred) == [second]
    assert "its newest verdict, 1" in window.unusable[f"{ORDERS} {second}"]
    assert window.to_build == {ORDERS: (second,)}
    nobody = validate_window(TableReader.at(orders.store), other.ledger, DeclaredTables([]), ORDERS, [first])
    assert "no verdict on it" in nobody.unusable[f"{ORDERS} {first}"]


def test_a_manifest_that_is_gone_damaged_or_of_other_files_makes_unusable(orders: OrdersTable) -> None:
    orders.publish(days(4))
    gone, damaged, swapped, _ = keys(4)
    reader = TableReader.at(orders.store)
    other = layout.manifest_path(ORDERS, keys(4)[3])
    (theirs,) = orders.store.fetch(reader.commit_id, [other]).values()
    orders.store.create_branch("by-hand", "main")
    orders.store.remove("by-hand", layout.manifest_path(ORDERS, gone))
    orders.store.put("by-hand", layout.manifest_path(ORDERS, damaged), b"{")
    orders.store.put("by-hand", layout.manifest_path(ORDERS, swapped), theirs)
    orders.store.commit("by-hand", "damage", {})
    orders.store.merge("by-hand", "main", "damage", {})
    window = orders.ask_guard(keys(4))
    said = [window.unusable[f"{ORDERS} {key}"] for key in (gone, damaged, swapped)]
    assert "its manifest is gone" in said[0]
    assert "manifest of format None" in said[1]
    assert "its manifest lists" in said[2]
    assert list(window.barred) == keys(3)
    orders.publish(days(4))
    assert orders.ask_guard(keys(4)).ok


TIGHT = Contract.model_validate(
    orders_table.RULES
    | {
        "columns": [
            dict(one, le=10) if one["name"] == "amount" else one for one in orders_table.RULES["columns"]
        ]
    }
)
"""Rejects what `day` gives from the second day on."""


def test_features_of_rows_rejected_later_are_unusable(
    orders: OrdersTable,
) -> None:
    """Unusable although main holds mended rows by now."""
    orders.publish(days(3))
    _derive(orders, HABITS, keys(3))
    (bad,) = keys(1, start=1)
    assert list(orders.publish({bad: day(bad)}, contract=TIGHT).rejected) == [bad]
    assert list(orders.publish({bad: day(bad, factor=0.1)}, contract=TIGHT).merged) == [bad]
    window = orders.ask_guard(keys(3), orders_table.spec(contract=TIGHT), HABITS)
    assert list(window.barred) == keys(2, start=1)
    assert f"rows of {ORDERS} {bad} that" in window.unusable[f"{FEATURES} {bad}"]
    assert window.to_build == {FEATURES: tuple(keys(2, start=1))}


def test_features_of_features_of_rejected_rows_are_unusable(
    orders: OrdersTable,
) -> None:
    """Only the last partition on main was made from the rejected rows, and its direct input was never rejected."""
    orders.publish(days(3))
    _derive(orders, HABITS, keys(3))
    summary = _spec("summary", FEATURES, lookback=0)
    _derive(orders, summary, keys(3))
    (bad,) = keys(1, start=1)
    assert list(orders.publish({bad: day(bad)}, contract=TIGHT).rejected) == [bad]
    tables = (orders_table.spec(contract=TIGHT), HABITS, summary)
    assert not orders.ask_guard(keys(3), *tables).unusable
    assert list(orders.publish({bad: day(bad, factor=0.1)}, contract=TIGHT).merged) == [bad]
    _derive(orders, HABITS, keys(3), factor=0.2)
    window = orders.ask_guard(keys(3), *tables)
    assert list(window.barred) == keys(2, start=1)
    assert f"rows of {ORDERS} {bad} that" in window.unusable[f"{SUMMARY} {bad}"]
    assert window.to_build == {SUMMARY: tuple(keys(2, start=1))}
    _derive(orders, summary, keys(3))
    assert orders.ask_guard(keys(3), *tables).ok


def test_features_of_a_rejected_table_stay_unusable_when_cut_into_days(orders: OrdersTable) -> None:
    """A verdict on the whole table is none on its days, and still one on the rows that were read."""
    (key,) = keys(1, start=1)
    whole = Cadence("none")
    orders.publish({UNPARTITIONED: day(key)}, cadence=whole)
    of_whole = orders_table.spec(kind="features", name="habits", inputs={ORDERS: None})
    _derive(orders, of_whole, [key])
    assert orders.publish({UNPARTITIONED: day(key)}, cadence=whole, contract=TIGHT).rejected
    assert not orders.ask_guard([key], orders_table.spec(cadence=whole, contract=TIGHT), of_whole).ok
    window = orders.ask_guard([key], orders_table.spec(contract=TIGHT), _spec("habits", ORDERS, lookback=0))
    assert list(window.barred) == [key]
    assert f"rows of {ORDERS} all that" in window.explain()


def test_a_rejection_by_rules_that_changed_since_asks_for_another_attempt(orders: OrdersTable) -> None:
    (bad,) = keys(1)
    strict = Contract.model_validate(
        orders_table.RULES
        | {
            "columns": [
                dict(one, le=1) if one["name"] == "amount" else one for one in orders_table.RULES["columns"]
            ]
        }
    )
    orders.publish({bad: day(bad)}, contract=strict)
    assert list(orders.ask_guard([bad], orders_table.spec(contract=strict)).rejected) == [f"{ORDERS} {bad}"]
    assert orders.ask_guard([bad]).to_build == {ORDERS: (bad,)}


def test_days_are_no_weeks_and_a_whole_table_is_no_day(orders: OrdersTable) -> None:
    mondays = ["2013-01-07", "2013-01-14"]
    orders.publish({key: day(key) for key in mondays})
    weekly = orders_table.spec(cadence=Cadence("weekly", orders_table.FIRST))
    window = orders.ask_guard(mondays, weekly)
    assert window.missing == tuple(mondays)
    assert window.to_build == {ORDERS: tuple(mondays)}
    publish(
        orders.store,
        orders.ledger,
        weekly,
        [Incoming(key=key, data=day(key)) for key in mondays],
        PublishingRun(run_id="weeks"),
        NOTHING_DECLARED,
    )
    assert orders.ask_guard(mondays, weekly).ok
    assert orders.ask_guard(mondays).missing == tuple(mondays)


def test_all_that_a_missing_chain_needs_is_named_in_the_order_of_building(orders: OrdersTable) -> None:
    summary = _spec("summary", FEATURES, lookback=1)
    orders.publish({keys(1)[0]: day(keys(1)[0])})
    window = orders.ask_guard(keys(1, start=2), orders_table.spec(), HABITS, summary)
    assert list(window.to_build.items()) == [
        (ORDERS, tuple(keys(2, start=1))),
        (FEATURES, tuple(keys(2, start=1))),
        (SUMMARY, tuple(keys(1, start=2))),
    ]


def test_many_ways_to_one_partition_cost_no_more_than_one(orders: OrdersTable) -> None:
    """Each of thirty tables is made from the two before it: 1.3 million ways lead to the first, 987 for fifteen."""
    orders.publish(days(1))
    specs = [orders_table.spec()]
    for level in range(30):
        above = [spec.table for spec in specs[-2:]]
        specs.append(orders_table.spec(kind="features", name=f"level{level}", inputs=dict.fromkeys(above, 0)))
        _derive(orders, specs[-1], keys(1))
    orders.publish({keys(1)[0]: day(keys(1)[0], factor=3)}, run="correction")
    seconds: dict[int, list[float]] = {16: [], 31: []}
    for _ in range(3):
        for tables, taken in seconds.items():
            started = time.process_time()
            window = orders.ask_guard(keys(1), *specs[:tables])
            taken.append(time.process_time() - started)
            assert list(window.stale) == keys(1)
            assert len(window.inputs) == tables
    assert min(seconds[31]) < 20 * min(seconds[16])  # over a thousand times where each way is walked


@pytest.mark.nightly
def test_a_year_is_looked_up_and_scanned_in_place(orders: OrdersTable) -> None:
    """337 days cost a fraction of 337 times one day. `benchmarks/claims/data/tables.py` has the bar in seconds."""
    orders.publish(days(365))
    monthly = _spec("habits", ORDERS, lookback=27)
    tables = DeclaredTables(DeclaredTable.of(spec) for spec in (orders_table.spec(), monthly))
    _derive(orders, monthly, keys(337, start=28))
    seconds: dict[int, list[float]] = {1: [], 337: []}
    reader = TableReader.at(orders.store)
    for _ in range(3):
        for count, taken in seconds.items():
            fresh = OrdersTable(orders.folder)
            started = time.process_time()  # others may hold the processor for a while
            reader = TableReader.at(fresh.store)
            window = validate_window(reader, fresh.ledger, tables, FEATURES, keys(count, start=28))
            taken.append(time.process_time() - started)
            assert window.ok
            assert not window.stale
    assert min(seconds[337]) < 337 / 10 * min(seconds[1])
    total = reader.scan(ORDERS, keys(365)).select(pl.len(), pl.col("amount").sum()).collect()
    assert total.row(0) == (365 * 40, pl.concat(list(days(365).values()))["amount"].sum())
