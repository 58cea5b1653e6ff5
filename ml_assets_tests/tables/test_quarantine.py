"""Few bad rows are set aside in the merge of the good ones, are never read, and return after a fix of the rules."""

from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ml_assets.data.tables.declared import NOTHING_DECLARED
from ml_assets.data.tables.layout import quarantine_of
from ml_assets.data.tables.publish.rejected import (
    NotReadmitted,
    accept_partition,
    quarantined_keys,
    quarantined_rows,
    readmit,
)
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun
from ml_assets.data.validation.check import broken_rules
from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.quarantine import COLUMN, REASON, RULE, divide
from ml_assets_tests.tables.orders_table import CONTRACT, ORDERS, RULES, OrdersTable, day, days, keys, spec
from resources.ledger import Person

KEY = keys(1)[0]
SET_ASIDE: dict[str, Any] = {"quarantine_limit": 0.2}
RUN = PublishingRun(run_id="readmit")


def with_value(frame: pl.DataFrame, column: str, rows: list[int], value: object) -> pl.DataFrame:
    """Return the frame with a value at some rows of a column."""
    chosen = pl.int_range(pl.len()).is_in(rows)
    return frame.with_columns(pl.when(chosen).then(pl.lit(value)).otherwise(column).alias(column))


def bad_day(key: str = KEY) -> pl.DataFrame:
    """Return a day with four bad rows of 40: two shops, one amount, and a repetition of a good row."""
    frame = with_value(day(key), "shop", [3, 5], "west")
    frame = with_value(frame, "amount", [5, 9], -1.0)
    return pl.concat([frame, frame[20:21]])


def on_main(orders: OrdersTable, key: str = KEY) -> pl.DataFrame:
    return TableReader.at(orders.store).scan(ORDERS, [key]).collect()


def aside(orders: OrdersTable, key: str = KEY) -> pl.DataFrame:
    return quarantined_rows(TableReader.at(orders.store), ORDERS, key)


def test_bad_rows_land_in_their_own_table_in_the_same_merge(orders: OrdersTable) -> None:
    before = orders.store.resolve("main")
    result = orders.publish({KEY: bad_day()}, **SET_ASIDE)
    verdict = result.merged[KEY].verdict
    assert verdict.status == "warned"
    assert verdict.quarantined == 4
    assert verdict.findings[0].failing_rows == 4
    assert verdict.findings[0].measured.split(" rows ") == ["4 of 41", "(9.76%)"]
    assert orders.store.read_commit(result.commit_id).metadata["keys"] == KEY
    assert before in orders.store.read_commit(result.commit_id).parents
    expected = {
        3: ("unknown_category", "shop", "unknown_category of shop: expected one of north, south"),
        5: (
            "unknown_category",
            "shop",
            "unknown_category of shop: expected one of north, south; out_of_range of amount: expected at least 0",
        ),
        9: ("out_of_range", "amount", "out_of_range of amount: expected at least 0"),
        20: ("duplicate_primary_key", "ordered_at, order", "duplicate_primary_key of ordered_at, order: "
             "expected each (ordered_at, order) once"),
    }  # fmt: skip
    found = {row[0]: row[1:] for row in aside(orders).select("order", RULE, COLUMN, REASON).rows()}
    assert found == expected
    assert on_main(orders)["order"].to_list() == [n for n in range(40) if n not in (3, 5, 9)]
    assert orders.ask_guard([KEY], spec(**SET_ASIDE)).ok


def test_the_same_input_again_changes_nothing(orders: OrdersTable) -> None:
    first = orders.publish({KEY: bad_day()}, **SET_ASIDE)
    branches = orders.store.branches()
    again = orders.publish({KEY: bad_day()}, run="again", **SET_ASIDE)
    assert again.commit_id == first.commit_id
    assert not again.merged[KEY].changed
    assert orders.store.branches() == branches
    assert len(orders.ledger.histories(ORDERS, [KEY])[KEY]) == 1


def test_a_mended_source_empties_the_quarantine(orders: OrdersTable) -> None:
    """The rest of a divided day is equal to the mended day, and its verdict says that rows were set aside."""
    frame = day(KEY)
    extra = frame[:1].with_columns(order=pl.lit(99, pl.Int64), shop=pl.lit("west"))
    orders.publish({KEY: pl.concat([frame, extra])}, **SET_ASIDE)
    assert quarantined_keys(TableReader.at(orders.store), ORDERS) == [KEY]
    mended = orders.publish({KEY: frame}, run="mended", **SET_ASIDE)
    assert not mended.merged[KEY].changed
    assert mended.merged[KEY].verdict.status == "passed"
    assert quarantined_keys(TableReader.at(orders.store), ORDERS) == []
    assert orders.ledger.newest_verdicts(ORDERS)[KEY].status == "passed"


def test_more_bad_rows_than_the_limit_reject_the_partition(orders: OrdersTable) -> None:
    orders.publish({KEY: bad_day()}, **SET_ASIDE)
    many = with_value(day(KEY), "amount", list(range(9)), -1.0)
    rejected = orders.publish({KEY: many}, run="many", **SET_ASIDE).rejected[KEY]
    assert [one.rule for one in rejected.verdict.findings] == ["quarantine_limit", "out_of_range"]
    kept = TableReader.at(orders.store, rejected.branch)
    assert kept.scan(ORDERS, [KEY]).collect().height == 40
    assert quarantined_keys(kept, ORDERS) == []
    assert aside(orders).height == 4  # main stays as it was
    accept_partition(orders.store, orders.ledger, ORDERS, KEY, Person.unchecked("ada"), "refunds")
    assert on_main(orders).height == 40
    assert quarantined_keys(TableReader.at(orders.store), ORDERS) == [], "accepted as a whole"


def test_a_finding_about_the_partition_sets_no_rows_aside(orders: OrdersTable) -> None:
    result = orders.publish({KEY: bad_day().drop("note")}, **SET_ASIDE)
    assert list(result.rejected) == [KEY]
    assert quarantined_keys(TableReader.at(orders.store), ORDERS) == []


def test_an_accepted_odd_count_keeps_its_quarantine(orders: OrdersTable) -> None:
    """The volume rule rejects; the rows that break the contract do not land with the acceptance."""
    orders.publish(days(28))
    odd = keys(29)[28]
    few = with_value(day(odd, rows=10), "amount", [1], -1.0)
    assert list(orders.publish({odd: few}, **SET_ASIDE).rejected) == [odd]
    accept_partition(orders.store, orders.ledger, ORDERS, odd, Person.unchecked("ada"), "closed")
    assert on_main(orders, odd).height == 9
    assert aside(orders, odd).height == 1


def test_readmitting_after_a_fix_of_the_rules_merges_what_passes(orders: OrdersTable) -> None:
    """The partition keeps the version that its source stated, so that no sensor asks for it again."""
    orders.publish([Incoming(key=KEY, data=bad_day(), version="7")], **SET_ASIDE)
    wider = Contract.model_validate(RULES | {"columns": [
        one | ({"isin": ["north", "south", "west"]} if one["name"] == "shop" else {}) for one in RULES["columns"]
    ]})  # fmt: skip
    fixed = spec(contract=wider, **SET_ASIDE)
    result = readmit(orders.store, orders.ledger, fixed, KEY, Person.unchecked("ada"), NOTHING_DECLARED)
    assert result.merged[KEY].verdict.quarantined == 3
    assert 3 in on_main(orders)["order"].to_list()
    assert TableReader.at(orders.store).manifest(ORDERS, KEY).source_version == "7"
    assert sorted(aside(orders)["order"].to_list()) == [5, 9, 20]
    again = readmit(orders.store, orders.ledger, fixed, KEY, Person.unchecked("ada"), NOTHING_DECLARED)
    assert again.commit_id == result.commit_id
    assert len(orders.ledger.histories(ORDERS, [KEY])[KEY]) == 2


def test_readmitting_never_makes_a_partition_worse(orders: OrdersTable) -> None:
    orders.publish({KEY: bad_day()}, **SET_ASIDE)
    commit = orders.store.resolve("main")
    stricter = spec(quarantine_limit=None)
    with pytest.raises(NotReadmitted, match="would be rejected"):
        readmit(orders.store, orders.ledger, stricter, KEY, Person.unchecked("ada"), NOTHING_DECLARED)
    with pytest.raises(NotReadmitted, match=r"by code v1 .* by v2 now"):
        readmit(
            orders.store,
            orders.ledger,
            spec(code_version="v2", **SET_ASIDE),
            KEY,
            Person.unchecked("ada"),
            NOTHING_DECLARED,
        )
    with pytest.raises(NotReadmitted, match="has no quarantined rows"):
        readmit(
            orders.store,
            orders.ledger,
            spec(**SET_ASIDE),
            keys(2)[1],
            Person.unchecked("ada"),
            NOTHING_DECLARED,
        )
    assert orders.store.resolve("main") == commit
    orders.publish({KEY: day(KEY, factor=-1)}, **SET_ASIDE)
    with pytest.raises(NotReadmitted, match="newest verdict"):
        readmit(
            orders.store, orders.ledger, spec(**SET_ASIDE), KEY, Person.unchecked("ada"), NOTHING_DECLARED
        )


def test_different_copies_are_set_aside_and_equal_ones_but_the_first(orders: OrdersTable) -> None:
    frame = day(KEY)
    twin = with_value(frame[4:5], "amount", [0], 7.0)
    orders.publish({KEY: pl.concat([frame, frame[7:8], frame[7:8], twin])}, **SET_ASIDE)
    assert sorted(aside(orders)["order"].to_list()) == [4, 4, 7, 7]
    assert on_main(orders).filter(pl.col("order").is_in([4, 7]))["order"].to_list() == [7]


def test_a_copy_that_breaks_another_rule_leaves_the_good_one(orders: OrdersTable) -> None:
    frame = day(KEY)
    orders.publish({KEY: pl.concat([frame, with_value(frame[4:5], "shop", [0], "west")])}, **SET_ASIDE)
    assert on_main(orders).equals(frame)
    assert aside(orders)[RULE].to_list() == ["unknown_category"]


def test_values_of_sensitive_columns_appear_in_no_reason_and_no_profile(orders: OrdersTable) -> None:
    hidden = Contract.model_validate(RULES | {"columns": [
        one | ({"sensitive": True} if one["name"] == "shop" else {}) for one in RULES["columns"]
    ]})  # fmt: skip
    orders.publish({KEY: with_value(day(KEY), "shop", [3], "secret")}, contract=hidden, **SET_ASIDE)
    reader = TableReader.at(orders.store)
    manifest = reader.manifest(quarantine_of(ORDERS) or "", KEY)
    assert b"secret" not in manifest.to_json()
    assert "secret" not in "".join(aside(orders)[REASON])
    assert "secret" not in orders.ledger.newest_verdicts(ORDERS)[KEY].body_json
    assert aside(orders)["shop"].to_list() == ["secret"]  # the row as it came


def test_odd_texts_and_missing_numbers_pass_through_the_quarantine(orders: OrdersTable) -> None:
    """10 kB texts, other scripts, NaN and null: each row is on main or set aside, with its value."""
    long = "ü" * 10_000
    frame = with_value(with_value(day(KEY), "shop", [1], long), "note", [2], "日本\u0000\U0001f98a")
    frame = with_value(with_value(frame, "amount", [3], float("nan")), "amount", [4], None)
    verdict = orders.publish({KEY: frame}, **SET_ASIDE).merged[KEY].verdict
    assert max(map(len, (text for one in verdict.findings for text in one.examples))) < 200
    assert aside(orders).sort("order")["order"].to_list() == [1, 3, 4]
    assert aside(orders).sort("order")["shop"][0] == long
    assert "日本\u0000\U0001f98a" in on_main(orders)["note"].to_list()
    again = orders.publish({KEY: frame}, run="again", **SET_ASIDE)
    assert len(orders.ledger.histories(ORDERS, [KEY])[KEY]) == 1
    assert not again.merged[KEY].changed


def test_an_empty_day_has_no_quarantine(orders: OrdersTable) -> None:
    assert list(orders.publish({KEY: pl.DataFrame()}, **SET_ASIDE).rejected) == [KEY]
    assert quarantined_keys(TableReader.at(orders.store), ORDERS) == []


ROWS = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from(["north", "west", None]),
        st.sampled_from([1.0, -1.0, float("nan"), None]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ROWS)
def test_every_row_is_kept_or_set_aside_and_the_rest_keeps_the_contract(rows: list[tuple[Any, ...]]) -> None:
    orders_, shops, amounts = zip(*rows, strict=True)
    frame = day(KEY, rows=1).join(
        pl.DataFrame(
            {"order": orders_, "shop": shops, "amount": amounts}, schema_overrides={"amount": pl.Float64}
        ),
        how="cross",
        suffix="_new",
    )
    frame = frame.with_columns(
        order="order_new", shop=pl.col("shop_new").cast(pl.String), amount="amount_new"
    ).select(CONTRACT.names)
    division = divide(frame, CONTRACT, broken_rules({KEY: frame}, CONTRACT)[KEY])
    if division is None:
        assert not broken_rules({KEY: frame}, CONTRACT)[KEY]
        return
    rest, bad = frame.filter(pl.Series(division.keep)), division.bad_rows(frame)
    assert rest.height + bad.height == frame.height
    assert not broken_rules({KEY: rest}, CONTRACT)[KEY]
    assert all(bad[RULE])
    assert all(bad[REASON])
