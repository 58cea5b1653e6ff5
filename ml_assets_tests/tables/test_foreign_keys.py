"""Values of a foreign key exist in the table to which they refer; the verdict says in which version of it."""

import re
from collections.abc import Mapping
from datetime import date
from typing import Any

import polars as pl
import pytest

from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.declared import NOTHING_DECLARED, DeclaredTable, DeclaredTables
from ml_assets.data.tables.publish.publish import PublishResult, publish
from ml_assets.data.tables.publish.rejected import accept_partition, quarantined_rows, readmit
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun, TableSpec
from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.verdict import Verdict
from ml_assets.data.validation.volume import VolumeRule
from ml_assets_tests.tables.orders_table import ORDERS, RULES, OrdersTable, day, keys, spec
from resources.ledger import Person

SHOPS = "datasets/shops"
KEY, NEXT = keys(2)
ANY_SHOP = [one | {"isin": None} if one["name"] == "shop" else one for one in RULES["columns"]]
REFERRING: dict[str, Any] = RULES | {
    "columns": ANY_SHOP,
    "foreign_keys": [{"columns": ["shop"], "table": SHOPS, "references": ["name"]}],
}
CONTRACT = Contract.model_validate(REFERRING)


def shops_spec(cadence: Cadence, dtype: str = "string") -> TableSpec:
    """Return the table of shops."""
    return TableSpec(
        kind="datasets",
        name="shops",
        contract=Contract.model_validate(
            {"columns": [{"name": "name", "dtype": dtype, "pattern": "[a-z]+"}], "primary_key": ["name"]}
            if dtype == "string"
            else {"columns": [{"name": "name", "dtype": dtype}], "primary_key": ["name"]}
        ),
        cadence=cadence,
        volume=VolumeRule(kind="none"),
    )


def declared(cadence: Cadence) -> DeclaredTables:
    """Return today's declarations: the shops have this cadence."""
    return DeclaredTables([DeclaredTable.of(shops_spec(cadence))])


def publish_shops(
    orders: OrdersTable,
    names: Mapping[str, list[str]],
    dtype: str = "string",
    cadence: Cadence = spec().cadence,  # noqa: B008 - immutable
) -> PublishResult:
    """Publish the shops: key → names; the key `all` for a table without partitions."""
    shops = shops_spec(Cadence("none") if "all" in names else cadence, dtype)
    incoming = [Incoming(key=key, data=pl.DataFrame({"name": some})) for key, some in names.items()]
    return publish(
        orders.store, orders.ledger, shops, incoming, PublishingRun(run_id="shops"), NOTHING_DECLARED
    )


def test_a_value_that_the_other_table_lacks_is_named(orders: OrdersTable) -> None:
    publish_shops(orders, {"all": ["north"]})
    (finding,) = orders.publish({KEY: day(KEY)}, contract=CONTRACT).rejected[KEY].verdict.findings
    assert (finding.rule, finding.column, finding.failing_rows) == ("foreign_key", "shop", 14)
    assert finding.measured == "shop='south' in 14 rows"
    assert finding.limit == f"a row of {SHOPS} with this name"


def test_the_verdict_pins_the_version_in_which_it_looked(orders: OrdersTable) -> None:
    """A later version of the shops makes no order stale or unknown."""
    publish_shops(orders, {"all": ["north", "south"]})
    digest = TableReader.at(orders.store).digests(SHOPS)["all"]
    verdict = orders.publish({KEY: day(KEY)}, contract=CONTRACT).merged[KEY].verdict
    assert verdict.referred == ((SHOPS, "all", digest),)
    assert Verdict.from_json(verdict.to_json()) == verdict
    publish_shops(orders, {"all": ["north", "south", "west"]})
    assert orders.ask_guard([KEY], spec(contract=CONTRACT)).ok
    assert orders.publish({KEY: day(KEY)}, run="again", contract=CONTRACT).merged[KEY].verdict == verdict


def test_a_partitioned_table_is_looked_up_in_the_same_partition(orders: OrdersTable) -> None:
    publish_shops(orders, {KEY: ["north", "south"], NEXT: ["north"]})
    result = orders.publish({KEY: day(KEY), NEXT: day(NEXT)}, contract=CONTRACT)
    assert list(result.merged) == [KEY]
    assert list(result.rejected) == [NEXT]


def test_a_week_is_not_the_day_of_its_key(orders: OrdersTable) -> None:
    """Its first day has the same key. The rows of a whole week say nothing about that day."""
    monday = "2013-01-07"
    publish_shops(orders, {monday: ["north", "south"]}, cadence=Cadence("weekly", spec().cadence.start))
    (finding,) = orders.publish({monday: day(monday)}, contract=CONTRACT).rejected[monday].verdict.findings
    assert (finding.rule, finding.measured.startswith(f"main has {monday} ")) == ("foreign_key", True)
    assert re.search(" weekly, .* daily$", finding.measured)
    assert "the same cadence" in finding.explanation


DAILY, WEEKLY, WHOLE = spec().cadence, Cadence("weekly", spec().cadence.start), Cadence("none")


@pytest.mark.parametrize(
    ("kept", "now", "said"),
    [
        ({"all": ["north", "south"]}, DAILY, f"{SHOPS} {KEY} is missing"),
        ({KEY: ["north", "south"]}, WHOLE, f"{SHOPS} all is missing"),
        ({KEY: ["north", "south"]}, WEEKLY, "it is weekly, and this table is daily"),
        ({KEY: ["north", "south"]}, Cadence("daily", date(2014, 1, 1)), f"{SHOPS} {KEY} is missing (20"),
    ],
)
def test_a_partition_left_by_an_earlier_cadence_is_not_looked_up(
    orders: OrdersTable, kept: dict[str, list[str]], now: Cadence, said: str
) -> None:
    """Main still holds the rows of the table from before its partitions changed."""
    publish_shops(orders, kept)
    result = orders.publish({KEY: day(KEY)}, contract=CONTRACT, tables=declared(now))
    (finding,) = result.rejected[KEY].verdict.findings
    assert finding.rule == "foreign_key"
    assert finding.measured.startswith(said)


def test_beside_a_left_partition_those_of_today_are_looked_up(orders: OrdersTable) -> None:
    publish_shops(orders, {"all": ["north"]})
    publish_shops(orders, {KEY: ["north", "south"]})
    (finding,) = orders.publish({KEY: day(KEY)}, contract=CONTRACT).rejected[KEY].verdict.findings
    assert finding.rule == "foreign_key"
    assert "'all' and dated ones" in finding.measured
    assert list(orders.publish({KEY: day(KEY)}, contract=CONTRACT, tables=declared(DAILY)).merged) == [KEY]


@pytest.mark.parametrize("key", ["all", KEY])
def test_rows_whose_newest_verdict_is_a_rejection_are_not_looked_up(orders: OrdersTable, key: str) -> None:
    """Main keeps the rows from before; the rejection says that they are not the rows of today."""
    publish_shops(orders, {key: ["north", "south"]})
    publish_shops(orders, {key: ["NORTH", "SOUTH"]})
    cadence = DAILY if key == KEY else WHOLE
    result = orders.publish({KEY: day(KEY)}, contract=CONTRACT, tables=declared(cadence))
    (finding,) = result.rejected[KEY].verdict.findings
    assert finding.measured.startswith(f"{SHOPS} {key} is rejected: ")
    accept_partition(orders.store, orders.ledger, SHOPS, key, Person.unchecked("ada"), "new names")
    (finding,) = orders.publish({KEY: day(KEY)}, contract=CONTRACT).rejected[KEY].verdict.findings
    assert finding.failing_rows == 40


@pytest.mark.parametrize(
    ("shops", "dtype", "message"),
    [
        ({}, "string", "Materialize datasets/shops first"),
        ({"all": ["north"]}, "categorical", "have the types"),
    ],
)
def test_a_look_up_that_cannot_be_made_says_why(
    orders: OrdersTable, shops: dict[str, list[str]], dtype: str, message: str
) -> None:
    if shops:
        frame = pl.DataFrame({"name": shops["all"]}, schema={"name": pl.Categorical()})
        table = TableSpec(
            kind="datasets", name="shops", cadence=Cadence("none"), volume=VolumeRule(),
            contract=Contract.model_validate({"columns": [{"name": "name", "dtype": dtype}]}),
        )  # fmt: skip
        publish(
            orders.store,
            orders.ledger,
            table,
            [Incoming(key="all", data=frame)],
            PublishingRun(run_id="s"),
            NOTHING_DECLARED,
        )
    (finding,) = orders.publish({KEY: day(KEY)}, contract=CONTRACT).rejected[KEY].verdict.findings
    assert message in finding.explanation


def test_orphans_are_set_aside_and_return_when_their_shop_arrives(orders: OrdersTable) -> None:
    publish_shops(orders, {"all": ["north"]})
    lenient: dict[str, Any] = {"contract": CONTRACT, "quarantine_limit": 0.5}
    assert orders.publish({KEY: day(KEY)}, **lenient).merged[KEY].verdict.quarantined == 14
    assert quarantined_rows(TableReader.at(orders.store), ORDERS, KEY)["shop"].unique().to_list() == ["south"]
    publish_shops(orders, {"all": ["north", "south"]})
    result = readmit(
        orders.store, orders.ledger, spec(**lenient), KEY, Person.unchecked("ada"), NOTHING_DECLARED
    )
    assert result.merged[KEY].verdict.status == "passed"
    assert TableReader.at(orders.store).scan(ORDERS, [KEY]).collect().height == 40


def test_a_null_passes_and_a_table_does_not_refer_to_itself(orders: OrdersTable) -> None:
    nullable = [one | {"nullable": True} if one["name"] == "shop" else one for one in ANY_SHOP]
    contract = Contract.model_validate(REFERRING | {"columns": nullable})
    publish_shops(orders, {"all": ["north"]})
    frame = day(KEY).with_columns(shop=pl.when(pl.col("shop") == "north").then("shop"))
    assert list(orders.publish({KEY: frame}, contract=contract).merged) == [KEY]
    own = Contract.model_validate(REFERRING | {"foreign_keys": [{"columns": ["shop"], "table": ORDERS}]})
    with pytest.raises(ValueError, match="not to its own"):
        spec(contract=own)
