"""A partition is stale if its function would read other values, and not if an input changed elsewhere."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pytest

from ml_assets.data.tables import parquet, partition_state
from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.declared import NOTHING_DECLARED, DeclaredTable, DeclaredTables
from ml_assets.data.tables.derive import WatchedInputs, derive, plan
from ml_assets.data.tables.guard import WindowValidation
from ml_assets.data.tables.publish.publish import PublishResult, publish
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import PublishingRun, TableSpec
from ml_assets.data.validation.contract import Contract
from ml_assets_tests.tables import orders_table
from ml_assets_tests.tables.orders_table import FIRST, ORDERS, OrdersTable, day, days, keys

DAILY = Cadence("daily", FIRST)
SUMS = orders_table.spec(
    kind="features",
    name="sums",
    inputs={ORDERS: 1},
    contract=Contract.model_validate(
        {
            "primary_key": ["partition_date"],
            "columns": [{"name": "partition_date", "dtype": "date"}, {"name": "amount", "dtype": "float64"}],
        }
    ),
)
Function = Callable[[Mapping[str, pl.LazyFrame], date, date], Any]


def sums(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Return the amount of the southern shop in each day."""
    rows = inputs[ORDERS].filter(pl.col("shop") == "south")
    per_day = rows.group_by(pl.col("ordered_at").dt.date().alias("partition_date")).agg(
        pl.col("amount").sum()
    )
    return per_day.filter(pl.col("partition_date").is_between(first, last))


def sums_of_whole_frames(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.DataFrame:
    """Return the same from rows that polars' plan does not see."""
    return sums({ORDERS: inputs[ORDERS].collect().lazy()}, first, last).collect()


def build(
    orders: OrdersTable, spec: TableSpec, function: Function, wanted: Sequence[str], *others: TableSpec
) -> PublishResult:
    """Build `wanted` of a derived table from what main holds of its inputs."""
    reader = TableReader.at(orders.store)
    tables = DeclaredTables(DeclaredTable.of(one) for one in (*(others or (orders_table.spec(),)), spec))
    inputs = tables.inputs_of(spec.table)
    possible = plan(reader, orders.ledger, tables, inputs, wanted, DAILY)
    assert not possible.refused
    found = derive(reader, orders.ledger, inputs, possible.ranges, DAILY, function, "partition_date")
    return publish(orders.store, orders.ledger, spec, found, PublishingRun(run_id="build"), NOTHING_DECLARED)


def with_note(key: str) -> pl.DataFrame:
    """Return the orders of a day with another note."""
    return day(key).with_columns(pl.lit("a typo, mended").alias("note"))


def ask(orders: OrdersTable, count: int = 4) -> WindowValidation:
    return orders.ask_guard(keys(count), orders_table.spec(), SUMS)


def test_a_typo_in_a_column_that_nobody_reads_makes_nothing_stale(orders: OrdersTable) -> None:
    orders.publish(days(4))
    build(orders, SUMS, sums, keys(4))
    changed = orders.publish({key: with_note(key) for key in keys(4)}, run="correction").merged
    assert all(one.changed for one in changed.values())
    assert not ask(orders).stale


def test_another_value_in_a_column_that_is_read_makes_its_readers_stale(orders: OrdersTable) -> None:
    """Also in a column that only the filter reads."""
    orders.publish(days(4))
    build(orders, SUMS, sums, keys(4))
    second = keys(4)[1]
    moved = day(second).with_columns(pl.lit("north").alias("shop"))
    orders.publish({second: moved}, run="correction")
    assert ask(orders).stale == dict.fromkeys(keys(4)[1:3], f"{ORDERS} {second} changed")


@pytest.mark.parametrize("name", ["amount.net", "ordered_at.list.element", "größe <b>"])
def test_a_column_of_any_name_that_is_read_counts(orders: OrdersTable, name: str) -> None:
    """Names with dots are those of flattened JSON. Parquet also writes nested columns with dots."""
    more = [*orders_table.RULES["columns"], {"name": name, "dtype": "float64"}]
    spec = orders_table.spec(contract=Contract.model_validate({**orders_table.RULES, "columns": more}))

    def total(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
        rows = inputs[ORDERS].group_by(pl.col("ordered_at").dt.date().alias("partition_date"))
        return rows.agg(pl.col(name).sum().alias("amount"))

    (first,) = keys(1)
    for factor in (1.0, 2.0):
        rows = day(first).with_columns(pl.lit(factor).alias(name))
        orders.publish({first: rows}, contract=spec.contract)
        if factor == 1:
            build(orders, SUMS, total, [first], spec)
            assert not orders.ask_guard([first], spec, SUMS).stale
    assert orders.ask_guard([first], spec, SUMS).stale == {first: f"{ORDERS} {first} changed"}


QUERIES: dict[str, Callable[[pl.LazyFrame], pl.LazyFrame]] = {
    "number of rows": lambda rows: rows.select(pl.len()),
    "cross join": lambda rows: pl.LazyFrame({"x": [1]}).join(rows, how="cross").select("x"),
    "row index": lambda rows: rows.with_row_index().select("index"),
    "literal beside rows": lambda rows: rows.with_columns(pl.lit(1).alias("one")).select("one"),
    "limit, then filter": lambda rows: rows.head(20).filter(pl.col("order") > 9),
    "filter, then limit": lambda rows: rows.filter(pl.col("order") > 9).head(20).select("amount"),
    "slice, then filter": lambda rows: rows.slice(5, 10).filter(pl.col("shop") == "south"),
    "last rows": lambda rows: rows.tail(3).select("note"),
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_a_function_gets_the_rows_of_its_inputs(
    query: Callable[[pl.LazyFrame], pl.LazyFrame], engine: Literal["in-memory", "streaming"]
) -> None:
    """Watching which columns it reads changes no result, and whatever depends on rows reads a column."""
    rows = day(keys(1)[0]).lazy()
    watched = WatchedInputs({ORDERS: rows})
    found = query(watched.frames[ORDERS]).collect(engine=engine)
    assert found.height
    assert found.equals(query(rows).collect(engine=engine))
    assert watched.columns_read(ORDERS)


def test_a_function_that_collects_whole_frames_reads_every_column(orders: OrdersTable) -> None:
    orders.publish(days(2))
    build(orders, SUMS, sums_of_whole_frames, keys(2))
    orders.publish({key: with_note(key) for key in keys(1)}, run="correction")
    assert list(ask(orders, 2).stale) == keys(2)


def test_a_range_records_the_columns_that_its_days_record_alone(orders: OrdersTable) -> None:
    orders.publish(days(3))
    build(orders, SUMS, sums, keys(3))
    together = TableReader.at(orders.store).manifests(SUMS.table, keys(3))
    assert together[keys(3)[1]].read_columns == {ORDERS: ("amount", "ordered_at", "shop")}
    for key in keys(3):
        again = build(orders, SUMS, sums, [key])
        assert not again.merged[key].changed
        assert TableReader.at(orders.store).manifest(SUMS.table, key) == together[key]


def test_rows_that_were_rejected_later_count_although_nothing_read_changed(orders: OrdersTable) -> None:
    (first,) = keys(1)
    orders.publish({first: day(first)})
    build(orders, SUMS, sums, [first])
    orders.publish({first: with_note(first)}, run="correction")
    assert ask(orders, 1).ok
    stricter = [
        {**one, "isin": ["a typo, mended"]} if one["name"] == "note" else one
        for one in orders_table.RULES["columns"]
    ]
    strict = {"contract": Contract.model_validate({**orders_table.RULES, "columns": stricter})}
    assert orders.publish({first: day(first)}, run="checked", **strict).rejected
    assert orders.publish({first: with_note(first)}, run="again", **strict).merged
    window = orders.ask_guard([first], orders_table.spec(**strict), SUMS)
    assert list(window.unusable) == [f"{SUMS.table} {first}"]
    (why,) = window.unusable.values()
    assert f"rows of {ORDERS} {first} that" in why
    assert why.endswith("; materialize it again")


def test_another_column_of_an_input_counts(orders: OrdersTable) -> None:
    """A function may choose columns by a pattern, so a column that came may be read by a rebuild."""
    (first,) = keys(1)
    orders.publish({first: day(first)})
    build(orders, SUMS, sums, [first])
    more = [*orders_table.RULES["columns"], {"name": "tip", "dtype": "float64"}]
    wider = orders_table.spec(contract=Contract.model_validate({**orders_table.RULES, "columns": more}))
    tipped = day(first).with_columns(pl.lit(0.5).alias("tip"))
    orders.publish({first: tipped}, run="wider", contract=wider.contract)
    assert list(orders.ask_guard([first], wider, SUMS).stale) == [first]


def test_another_version_of_polars_is_named(orders: OrdersTable, monkeypatch: pytest.MonkeyPatch) -> None:
    orders.publish(days(1))
    build(orders, SUMS, sums, keys(1))
    monkeypatch.setattr(partition_state, "WRITER", "polars 99.0")
    (why,) = ask(orders, 1).stale.values()
    assert why == f"the platform changed ({parquet.WRITER} to polars 99.0)"


@pytest.mark.parametrize(
    ("ask", "columns"),
    [
        (lambda rows: rows.select("amount"), ["amount"]),
        (lambda rows: rows.filter(pl.col("shop") == "north").select("amount"), ["amount", "shop"]),
        (lambda rows: rows.sort("order").select(pl.col("amount").cum_sum()), ["amount", "order"]),
        (
            lambda rows: rows.join(rows.select("order", "note"), on="order", maintain_order="left").select(
                "note"
            ),
            ["note", "order"],
        ),
        (lambda rows: rows.select(pl.struct("shop", "note").hash()), ["note", "shop"]),
        (lambda rows: rows.drop("note"), ["amount", "order", "ordered_at", "shop"]),
        (lambda rows: rows, ["amount", "note", "order", "ordered_at", "shop"]),
        (
            lambda rows: rows.map_batches(lambda frame: frame),
            ["amount", "note", "order", "ordered_at", "shop"],
        ),
        (lambda rows: rows.head(2).select("shop"), ["shop"]),
    ],
)
def test_the_columns_of_a_plan_are_those_it_names(
    ask: Callable[[pl.LazyFrame], pl.LazyFrame], columns: list[str]
) -> None:
    rows = day(keys(1)[0])
    watched = WatchedInputs({"t": rows.lazy()})
    assert ask(watched.frames["t"]).collect().equals(ask(rows.lazy()).collect())
    assert set(columns) <= set(watched.columns_read("t"))
    assert list(watched.columns_read("t")) == columns


# Forty columns, thirty days

NAMES = [f"c{n:02}" for n in range(40)]
WIDE = TableSpec(
    kind="datasets",
    name="wide",
    contract=Contract.model_validate(
        {
            "primary_key": ["day", "row"],
            "columns": [
                {"name": "day", "dtype": "date"},
                {"name": "row", "dtype": "int64"},
                {"names": NAMES, "dtype": "int64"},
            ],
        }
    ),
    cadence=DAILY,
    volume=orders_table.spec().volume,
)
DAYS = 30


@dataclass(frozen=True)
class Reads:
    """A feature function that shows each value it reads: a hash over them, and over those of the days before."""

    columns: tuple[str, ...]
    lookback: int

    @property
    def spec(self) -> TableSpec:
        columns = [{"name": "partition_date", "dtype": "date"}, {"name": "seen", "dtype": "int64"}]
        rules = Contract.model_validate({"primary_key": ["partition_date"], "columns": columns})
        return TableSpec(
            kind="features",
            name="seen",
            contract=rules,
            cadence=DAILY,
            volume=WIDE.volume,
            inputs={WIDE.table: self.lookback},
        )

    def __call__(self, inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
        values = pl.struct("row", *self.columns).hash() % 2**40
        per_day = inputs[WIDE.table].group_by("day").agg(values.cast(pl.Int64).sum().alias("seen"))
        parts = [per_day.select(pl.col("day") + timedelta(lag), "seen") for lag in range(self.lookback + 1)]
        rows = pl.concat(parts).group_by(pl.col("day").alias("partition_date")).agg(pl.col("seen").sum())
        return rows.filter(pl.col("partition_date").is_between(first, last)).sort("partition_date")


def planted(seed: int, folder: Path) -> None:
    """Change random columns of random days; require the guard to name the days that a full rebuild changes."""
    draw = random.Random(seed)
    orders = OrdersTable(folder)
    run = PublishingRun(run_id="plant")
    frames = {
        key: pl.DataFrame(
            {"day": [date.fromisoformat(key)] * 5, "row": range(5)}
            | {name: [draw.randrange(1000) for _ in range(5)] for name in NAMES}
        )
        for key in keys(DAYS)
    }
    incoming = [orders_table.Incoming(key=key, data=frame) for key, frame in frames.items()]
    publish(orders.store, orders.ledger, WIDE, incoming, run, NOTHING_DECLARED)
    function = Reads(tuple(draw.sample(NAMES, draw.randrange(1, 12))), draw.randrange(3))
    before = build(orders, function.spec, function, keys(DAYS), WIDE).merged
    changes = {
        key: frames[key].with_columns(
            (pl.col(name) + draw.randrange(1, 9)).alias(name)
            for name in draw.sample(NAMES, draw.randrange(1, 5))
        )
        for key in draw.sample(keys(DAYS), draw.randrange(1, 9))
    }
    incoming = [orders_table.Incoming(key=key, data=frame) for key, frame in changes.items()]
    publish(orders.store, orders.ledger, WIDE, incoming, run, NOTHING_DECLARED)
    named = set(orders.ask_guard(keys(DAYS), WIDE, function.spec).stale)
    after = build(orders, function.spec, function, keys(DAYS), WIDE).merged
    needed = {key for key in keys(DAYS) if after[key].content_digest != before[key].content_digest}
    assert (named - needed, needed - named) == (set(), set()), f"seed {seed}: needless, missed"


@pytest.mark.parametrize("seed", range(4))
def test_planted_changes_give_neither_needless_nor_missed_rebuilds(seed: int, tmp_path: Path) -> None:
    planted(seed, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 200))
def test_a_hundred_planted_changes(seed: int, tmp_path: Path) -> None:
    planted(seed, tmp_path)
