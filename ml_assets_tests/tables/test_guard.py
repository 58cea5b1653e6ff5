"""A window is judged by look-up: what is missing, what was rejected, what was made from older inputs."""

import time

import polars as pl

from ml_assets.tables.guard import WindowVerdict, judge_window
from ml_assets.tables.publish import publish
from ml_assets.tables.reader import TableReader
from ml_assets.tables.spec import Incoming, RunFacts
from ml_assets.validation.contract import Contract
from ml_assets_tests.tables import shop
from ml_assets_tests.tables.shop import ORDERS, Place, day, days, keys

FEATURES = "features/habits"
SUMMARY = "features/summary"


def _derive(place: Place, name: str, table: str, wanted: list[str], lookback: int = 2) -> None:
    """Publish a table made from the last `lookback` partitions of `table`."""
    reader = TableReader.at(place.store)
    cadence = shop.spec().cadence
    incoming = [
        Incoming(
            key=key,
            data=day(key, factor=float(lookback)),
            inputs={table: reader.input_digests(table, cadence.window(key, lookback))},
        )
        for key in wanted
    ]
    publish(
        place.store,
        place.ledger,
        shop.spec(kind="features", name=name),
        incoming,
        RunFacts(run_id=f"run{name}"),
    )


def _judge(place: Place, table: str, wanted: list[str]) -> WindowVerdict:
    return judge_window(TableReader.at(place.store), place.ledger, table, wanted)


def test_a_window_that_is_whole_and_current_is_ok(place: Place) -> None:
    place.publish(days(5))
    _derive(place, "habits", ORDERS, keys(5))
    window = _judge(place, FEATURES, keys(5))
    assert window.ok
    assert not window.stale
    assert window.explain() == "features/habits: all 5 partitions are there, passed and current"


def test_missing_and_rejected_partitions_are_named_apart(place: Place) -> None:
    first, second, third = keys(3)
    place.publish({first: day(first), third: day(third).drop("amount")})
    window = _judge(place, ORDERS, keys(3))
    assert window.missing == (second,)
    assert list(window.rejected) == [third]
    assert "missing_column in amount" in window.rejected[third]
    assert "audit-datasets-orders" in window.rejected[third]
    assert window.explain().splitlines()[0].endswith(f"{second}. Materialize them.")


def test_a_table_nobody_made_is_missing_whole(place: Place) -> None:
    assert _judge(place, FEATURES, keys(2)).missing == tuple(keys(2))


def test_partitions_of_an_older_contract_are_named_because_they_cannot_be_read_together(place: Place) -> None:
    place.publish(days(3))
    columns = [*shop.RULES["columns"], {"name": "coupon", "dtype": "bool"}]
    wider = Contract.model_validate(shop.RULES | {"columns": columns})
    last = keys(4)[3]
    place.publish({last: day(last).with_columns(coupon=pl.lit(value=True))}, contract=wider)
    window = _judge(place, ORDERS, keys(4))
    assert list(window.rejected) == keys(3)
    assert f"not that of {last}: differs in coupon" in window.rejected[keys(1)[0]]


def test_a_changed_input_makes_exactly_its_readers_stale(place: Place) -> None:
    place.publish(days(6))
    _derive(place, "habits", ORDERS, keys(6))
    place.publish({keys(6)[2]: day(keys(6)[2], factor=2)}, run="correction")
    window = _judge(place, FEATURES, keys(6))
    assert window.ok
    assert window.stale == dict.fromkeys(keys(6)[2:4], f"{ORDERS} {keys(6)[2]} changed")
    _derive(place, "habits", ORDERS, keys(6)[2:4])
    assert not _judge(place, FEATURES, keys(6)).stale


def test_equal_rows_from_a_changed_input_are_current_after_a_rebuild(place: Place) -> None:
    place.publish(days(1))
    _derive(place, "habits", ORDERS, keys(1))
    before = TableReader.at(place.store).digests(FEATURES)
    place.publish({keys(1)[0]: day(keys(1)[0], factor=2)}, run="correction")
    _derive(place, "habits", ORDERS, keys(1))
    assert TableReader.at(place.store).digests(FEATURES) == before
    assert not _judge(place, FEATURES, keys(1)).stale


def test_an_input_that_came_late_makes_its_readers_stale(place: Place) -> None:
    first, second = keys(2)
    place.publish({second: day(second)})
    _derive(place, "habits", ORDERS, [second])
    assert not _judge(place, FEATURES, [second]).stale
    place.publish({first: day(first)}, run="late")
    assert list(_judge(place, FEATURES, [second]).stale) == [second]


def test_staleness_reaches_through_tables_made_from_tables(place: Place) -> None:
    place.publish(days(4))
    _derive(place, "habits", ORDERS, keys(4))
    _derive(place, "summary", FEATURES, keys(4), lookback=1)
    place.publish({keys(4)[1]: day(keys(4)[1], factor=2)}, run="correction")
    window = _judge(place, SUMMARY, keys(4))
    assert list(window.stale) == keys(4)[1:3]
    assert window.stale[keys(4)[2]] == f"{FEATURES} {keys(4)[2]} is stale itself"


def test_a_year_is_looked_up_and_scanned_in_place(place: Place) -> None:
    """The bar is 0.3 s for a guard over 337 days; here a second in the best of three, for busy machines."""
    place.publish(days(365))
    _derive(place, "habits", ORDERS, keys(337, start=28), lookback=28)
    seconds: list[float] = []
    for _ in range(3):
        fresh = Place(place.folder)
        started = time.perf_counter()
        reader = TableReader.at(fresh.store)
        window = judge_window(reader, fresh.ledger, FEATURES, keys(337, start=28))
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 1.0
    assert window.ok
    assert not window.stale
    total = reader.scan(ORDERS, keys(365)).select(pl.len(), pl.col("amount").sum()).collect()
    assert total.row(0) == (365 * 40, pl.concat(list(days(365).values()))["amount"].sum())
