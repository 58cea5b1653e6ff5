"""Bad partitions stay off main, are named, kept, refused downstream, and healed or accepted one by one."""

from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest

from ml_assets.data.tables import parquet
from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.declared import NOTHING_DECLARED
from ml_assets.data.tables.publish.audit import validate
from ml_assets.data.tables.publish.prepare import prepare_chunks
from ml_assets.data.tables.publish.publish import publish
from ml_assets.data.tables.publish.rejected import EvidenceGone, accept_partition
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun, TableSpec
from ml_assets.data.validation.column_types import schema_of
from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.verdict import table_rows
from ml_assets.data.validation.volume import VolumeRule
from ml_assets.defs.flights import source
from ml_assets_tests.tables import orders_table
from ml_assets_tests.tables.corruptions import TEN_WAYS, Columns
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, day, days, keys
from resources.ledger import Ledger, NothingToAccept, Person

OTHER_TABLE = pl.DataFrame(
    {"station": ["JFK"], "temperature": [3.5], "at": [datetime(2013, 1, 1, tzinfo=UTC)]}
)
COLUMNS = Columns(category="shop", event_time="ordered_at", required_number="amount", other_table=OTHER_TABLE)


@pytest.mark.parametrize("way", TEN_WAYS)
def test_a_spoiled_day_is_named_kept_and_refused(orders: OrdersTable, way: str) -> None:
    """Refused although its older version stands on main."""
    rule, spoil = TEN_WAYS[way]
    orders.publish(days(30))
    before = orders.store.resolve("main")
    bad = keys(30)[29]
    spoiled = spoil(day(bad), COLUMNS)
    result = orders.publish({bad: spoiled}, run="again")
    assert result.commit_id == before == orders.store.resolve("main")
    rejected = result.rejected[bad]

    named = table_rows(bad, rejected.verdict.findings)
    assert rule in [row["rule"] for row in named]
    assert all(row["partition"] == bad and row["found"] and row["remedy"] for row in named)

    evidence = TableReader.at(orders.store, rejected.branch)
    expected = parquet.canonical(orders_table.CONTRACT.in_order(spoiled), orders_table.spec().order)
    assert evidence.scan(ORDERS, [bad]).collect().equals(expected)

    window = orders.ask_guard(keys(30))
    assert not window.ok
    assert list(window.rejected) == [f"{ORDERS} {bad}"]
    assert rule in window.rejected[f"{ORDERS} {bad}"]
    assert not window.missing
    assert bad in window.explain()

    orders.publish({bad: day(bad)}, run="mended")
    assert orders.ask_guard(keys(30)).ok
    assert orders.store.resolve("main") == before  # the mended content stood there all the time
    assert rejected.branch in orders.store.branches(), "evidence outlives the repair"


@pytest.mark.nightly
def test_ten_spoiled_days_of_a_year_of_flights(orders: OrdersTable) -> None:
    year = {
        f"{date(2013, 1, 1) + timedelta(n)}": source.read_flights(date(2013, 1, 1) + timedelta(n))
        for n in range(365)
    }
    everything = pl.concat(list(year.values()))
    spec = _flights(everything)
    columns = Columns(
        category="carrier",
        event_time="scheduled_departure_at",
        required_number="distance",
        other_table=source.read_weather(date(2013, 3, 1)),
    )
    bad = {f"2013-{month:02d}-11": way for month, way in zip(range(2, 12), TEN_WAYS, strict=True)}
    given = {
        key: TEN_WAYS[bad[key]][1](frame, columns) if key in bad else frame for key, frame in year.items()
    }

    def run(frames: dict[str, pl.DataFrame], run_id: str):
        incoming = (Incoming(key=key, data=frame) for key, frame in frames.items())
        return publish(
            orders.store, orders.ledger, spec, incoming, PublishingRun(run_id=run_id), NOTHING_DECLARED
        )

    result = run(given, "spoiled")
    assert sorted(result.rejected) == sorted(bad)
    assert TableReader.at(orders.store).keys(spec.table) == sorted(set(year) - set(bad))
    for key, way in bad.items():
        assert TEN_WAYS[way][0] in [
            row["rule"] for row in table_rows(key, result.rejected[key].verdict.findings)
        ]
        kept = TableReader.at(orders.store, result.rejected[key].branch).scan(spec.table, [key]).collect()
        assert kept.height == given[key].height

    refused = orders.ask_guard(list(year), spec)
    assert sorted(refused.barred) == sorted(bad)
    assert not refused.missing

    for healed, key in enumerate(sorted(bad), start=1):
        assert list(run({key: year[key]}, f"mend{healed}").merged) == [key]
        window = orders.ask_guard(list(year), spec)
        assert len(window.rejected) == 10 - healed
    reader = TableReader.at(orders.store)
    assert (
        reader.scan(spec.table, list(year))
        .collect()
        .equals(pl.concat([parquet.canonical(frame, spec.order) for frame in year.values()]))
    )


def _flights(everything: pl.DataFrame) -> TableSpec:
    carriers = sorted(everything["carrier"].unique())
    columns = [
        {
            "name": name,
            "dtype": dtype,
            "nullable": everything[name].null_count() > 0,
            **({"isin": carriers} if name == "carrier" else {}),
        }
        for name, dtype in schema_of(everything)
    ]
    contract = Contract.model_validate(
        {
            "columns": columns,
            "primary_key": ["scheduled_departure_at", "carrier", "flight", "origin"],
            "event_time": "scheduled_departure_at",
            "event_time_zone": "America/New_York",
        }
    )
    return TableSpec(
        kind="datasets",
        name="flights",
        contract=contract,
        cadence=Cadence("daily", date(2013, 1, 1)),
        volume=VolumeRule(),
    )


def test_the_same_bad_content_again_makes_neither_a_branch_nor_an_attempt(orders: OrdersTable) -> None:
    bad = keys(1)[0]
    first = orders.publish({bad: day(bad).drop("shop")}, run="one")
    branches = orders.store.branches()
    second = orders.publish({bad: day(bad).drop("shop")}, run="two")
    assert second.rejected[bad].branch == first.rejected[bad].branch
    assert orders.store.branches() == branches
    assert len(orders.ledger.histories(ORDERS, [bad])[bad]) == 1


def test_lost_evidence_is_kept_again(orders: OrdersTable) -> None:
    bad = keys(1)[0]
    first = orders.publish({bad: day(bad).drop("shop")}, run="one")
    orders.store.delete_branch(first.rejected[bad].branch)
    second = orders.publish({bad: day(bad).drop("shop")}, run="two")
    assert second.rejected[bad].branch in orders.store.branches()
    assert orders.ledger.newest_verdicts(ORDERS)[bad].branch == second.rejected[bad].branch


def test_an_odd_number_of_rows_is_validated_again_with_more_history(orders: OrdersTable) -> None:
    late = keys(29)[28]
    history = {key: day(key, rows=90) for key in keys(28)}
    assert list(orders.publish(history | {late: day(late)}).rejected) == [late]
    orders.publish({key: day(key, rows=45) for key in keys(28)}, run="corrected")
    assert list(orders.publish({late: day(late)}, run="retry").merged) == [late]


def test_accepting_brings_the_kept_content_to_main_and_says_who_and_why(orders: OrdersTable) -> None:
    orders.publish(days(29))
    odd = keys(30)[29]
    orders.publish({odd: day(odd, rows=10)}, run="odd")
    acceptance = accept_partition(
        orders.store, orders.ledger, ORDERS, odd, Person.unchecked("ada"), "shops were closed"
    )
    assert acceptance.author == "ada"
    commit = orders.store.read_commit(orders.store.resolve("main"))
    assert commit.metadata["accepted_by"] == "ada"
    assert commit.metadata["reason"] == "shops were closed"
    reader = TableReader.at(orders.store)
    assert reader.scan(ORDERS, [odd]).collect().height == 10
    assert orders.ask_guard(keys(30)).ok

    again = accept_partition(orders.store, orders.ledger, ORDERS, odd, Person.unchecked("bob"), "me too")
    assert again == acceptance

    result = orders.publish({odd: day(odd, rows=10)}, run="rerun")
    assert result.merged[odd].verdict.status == "accepted"
    assert len(orders.ledger.histories(ORDERS, [odd])[odd]) == 1

    other = orders.publish({odd: day(odd, rows=11)}, run="other")
    assert list(other.rejected) == [odd]  # the acceptance was for another verdict


def test_a_rerun_finishes_an_acceptance_that_died_after_its_merge(
    orders: OrdersTable,
) -> None:
    """A process can die between merging the rows and recording the acceptance."""
    bad = keys(1)[0]
    orders.publish({bad: day(bad, factor=-1)})

    class DyingLedger(Ledger):
        def accept(self, *_: object, **__: object):
            raise KeyboardInterrupt

    ledger = DyingLedger(f"sqlite:///{orders.folder / 'ledger.db'}")
    with pytest.raises(KeyboardInterrupt):
        accept_partition(orders.store, ledger, ORDERS, bad, Person.unchecked("ada"), "refunds")
    reader = TableReader.at(orders.store)
    assert reader.keys(ORDERS) == [bad]
    assert not orders.ask_guard([bad]).ok  # not accepted until a name stands there
    accept_partition(orders.store, orders.ledger, ORDERS, bad, Person.unchecked("ada"), "refunds")
    assert orders.store.resolve("main") == reader.commit_id
    assert orders.ask_guard([bad]).ok


def test_a_word_that_was_given_while_a_run_began_is_not_for_that_run(orders: OrdersTable) -> None:
    bad = keys(1)[0]
    spoiled = day(bad, factor=-1)
    [chunk] = prepare_chunks(orders_table.spec(), [Incoming(key=bad, data=spoiled)])
    ready = chunk.ready
    newest = orders.ledger.newest_verdicts(ORDERS)
    orders.publish({bad: spoiled})
    accept_partition(orders.store, orders.ledger, ORDERS, bad, Person.unchecked("ada"), "refunds")
    assert validate(
        orders.ledger, orders_table.spec(), ready, newest, TableReader.at(orders.store), NOTHING_DECLARED
    )[bad].verdict.blocks


def test_an_accepted_day_loses_its_acceptance_with_a_newer_attempt(orders: OrdersTable) -> None:
    orders.publish(days(29))
    odd = keys(30)[29]
    orders.publish({odd: day(odd, rows=10)})
    accept_partition(orders.store, orders.ledger, ORDERS, odd, Person.unchecked("ada"), "closed")
    orders.publish({odd: day(odd)}, run="full")
    assert list(orders.publish({odd: day(odd, rows=10)}, run="short").rejected) == [odd]


def test_there_has_to_be_something_to_accept_and_a_reason(orders: OrdersTable) -> None:
    good, bad, unknown = keys(3)
    orders.publish({good: day(good), bad: day(bad).drop("shop")})
    for key, reason in ((good, "fine"), (bad, " "), (unknown, "fine")):
        with pytest.raises(NothingToAccept):
            accept_partition(orders.store, orders.ledger, ORDERS, key, Person.unchecked("ada"), reason)
    assert TableReader.at(orders.store).keys(ORDERS) == [good]


def test_evidence_that_is_gone_is_said_so(orders: OrdersTable) -> None:
    bad = keys(1)[0]
    result = orders.publish({bad: day(bad).drop("shop")})
    orders.store.delete_branch(result.rejected[bad].branch)
    with pytest.raises(EvidenceGone, match="materialize it again"):
        accept_partition(orders.store, orders.ledger, ORDERS, bad, Person.unchecked("ada"), "no matter")
