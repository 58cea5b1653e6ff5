"""The leakage test passes honest builds and catches each way of knowing too much."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest

from ml_assets.data.features.cut_and_rebuild import (
    MISSING_ROW,
    Alone,
    KnowledgeRule,
    LeakReport,
    LeakTestError,
    known_by,
    leak_test,
)
from ml_assets.data.features.point_in_time import join_as_of
from ml_assets.data.features.telling import telling_columns

FIRST, LAST = date(2024, 3, 1), date(2024, 3, 6)
Inputs = Mapping[str, pl.DataFrame]

ORDERS = pl.DataFrame(
    {
        "day": [FIRST + timedelta(days=i // 4) for i in range(24)],
        "order": list(range(24)),
        "customer": [f"c{i % 3}" for i in range(24)],
        "placed_at": [
            datetime(2024, 3, 1, 8, tzinfo=UTC) + timedelta(days=i // 4, hours=2 * (i % 4)) for i in range(24)
        ],
        "returned": [i % 5 == 0 for i in range(24)],
    }
).with_columns((pl.col("placed_at") + timedelta(hours=30)).alias("settled_at"))
PRICES = pl.DataFrame(
    {
        "customer": ["c0", "c1", "c2"] * 6,
        "price": list(range(18)),
        "known_at": [datetime(2024, 3, 1, tzinfo=UTC) + timedelta(days=i // 3) for i in range(18)],
    }
)
INPUTS: Inputs = {"datasets/orders": ORDERS, "datasets/prices": PRICES}
KNOWN = {
    "datasets/orders": [KnowledgeRule(column="settled_at", columns=("returned",))],
    "datasets/prices": [KnowledgeRule(column="known_at")],
}


def honest(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
    """The customer's newest price and newest settled order, as known when the order is placed."""
    orders = inputs["datasets/orders"]
    rows = orders.filter(pl.col("day").is_between(first, last)).select(
        "day", "order", "customer", "returned", pl.col("placed_at").alias("predicted_at")
    )
    prices = inputs["datasets/prices"].rename({"known_at": "priced_at"})
    settled = orders.drop_nulls("settled_at").select(
        "customer", pl.col("settled_at").alias("last_at"), pl.col("returned").alias("returned_before")
    )
    rows = join_as_of(
        rows, prices, by=["customer"], at="predicted_at", event_at="priced_at", known_at="priced_at"
    )
    return join_as_of(
        rows, settled, by=["customer"], at="predicted_at", event_at="last_at", known_at="last_at"
    )


def examine(build: Callable[[Inputs, date, date], pl.DataFrame], cuts: int = 3) -> LeakReport:
    return leak_test(build, INPUTS, KNOWN, FIRST, LAST, primary_key=["order"], labels=["returned"], cuts=cuts)


def leaking_columns(report: LeakReport) -> set[str]:
    return {leak.column for leak in report.leaks}


def test_an_honest_build_passes() -> None:
    report = examine(honest)
    assert report.ok
    assert report.rows_compared > 0
    assert "returned_before" in report.columns_compared
    assert "no leak" in report.explain()


def test_the_outcome_as_a_feature_is_caught() -> None:
    report = examine(lambda *a: honest(*a).with_columns(pl.col("returned").alias("peek")))
    assert leaking_columns(report) == {"peek"}
    [line, *_] = report.explain().splitlines()
    assert line.startswith("peek ")
    assert f"{report.leaks[0].cut:%Y-%m-%d %H:%M} UTC" in line


def test_a_mean_of_the_same_days_outcomes_is_caught() -> None:
    report = examine(lambda *a: honest(*a).with_columns(pl.col("returned").mean().over("day").alias("rate")))
    assert leaking_columns(report) == {"rate"}


def test_a_join_on_the_day_instead_of_the_moment_is_caught() -> None:
    def by_day(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
        late = inputs["datasets/prices"].with_columns(pl.col("known_at").dt.offset_by("-12h"))
        return honest({**inputs, "datasets/prices": late}, first, last).drop("priced_at")

    assert "price" in leaking_columns(examine(by_day, cuts=11))


def test_leaving_out_rows_by_their_outcome_is_caught() -> None:
    report = examine(lambda *a: honest(*a).filter(pl.col("returned").is_not_null()))
    assert MISSING_ROW in leaking_columns(report)
    assert "only with the future" in report.leaks[0].examples[0]


def test_examples_show_no_value_of_a_hidden_column() -> None:
    def peeking(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
        return honest(inputs, first, last).with_columns(pl.col("returned").alias("peek"))

    report = leak_test(
        peeking,
        INPUTS,
        KNOWN,
        FIRST,
        LAST,
        primary_key=["order"],
        labels=["returned"],
        hidden=["order", "peek"],
    )
    assert report.leaks[0].examples[0].split(" ")[::2] == ["(hidden):", "with,", "without"]
    assert report.leaks[0].examples[0].count("(hidden)") == 3


# Moments chosen by the length of a leak

HOURS = pl.DataFrame(
    {"at": [datetime(2024, 3, 4, tzinfo=UTC) + timedelta(hours=n) for n in range(24 * 21)]}
).with_columns(
    day=pl.col("at").dt.date(), value=pl.int_range(pl.len()), known_at=pl.col("at") + timedelta(hours=1)
)
"""Three weeks of hours; an hour's value is known when it is over."""


def _peeks(hours: int, when: pl.Expr) -> Callable[[Inputs, date, date], pl.DataFrame]:
    """Return a build that reads the value known `hours` after the prediction, where `when` is true."""

    def build(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
        rows = inputs["datasets/hours"]
        known = rows.select(pl.col("known_at").dt.offset_by(f"-{hours}h").alias("predicted_at"), seen="value")
        honest = rows.select(predicted_at="known_at", before="value")
        asked = HOURS.select(predicted_at="at", day="day").filter(pl.col("day").is_between(first, last))
        found = asked.join(honest, on="predicted_at", how="left").join(known, on="predicted_at", how="left")
        value = pl.when(when).then(pl.col("seen")).otherwise(pl.col("before")).alias("value")
        return found.select("predicted_at", value)

    return build


def _found(build: Callable[[Inputs, date, date], pl.DataFrame], cuts: timedelta | int) -> LeakReport:
    known = {"datasets/hours": [KnowledgeRule(column="known_at")]}
    first, last = date(2024, 3, 4), date(2024, 3, 24)
    inputs = {"datasets/hours": HOURS}
    return leak_test(build, inputs, known, first, last, primary_key=["predicted_at"], cuts=cuts)


@pytest.mark.parametrize("hour", [0, 11, 23])
def test_a_leak_of_an_hour_in_one_hour_of_each_day_is_found(hour: int) -> None:
    """Each day's last hour read the next: three moments, evenly spread, did not notice."""
    build = _peeks(1, pl.col("predicted_at").dt.hour() == hour)
    assert _found(build, 3).ok
    assert leaking_columns(_found(build, timedelta(hours=1))) == {"value"}


@pytest.mark.parametrize("weekday", [1, 5, 7])
def test_a_leak_of_a_day_on_one_weekday_is_found(weekday: int) -> None:
    build = _peeks(
        24, (pl.col("predicted_at").dt.weekday() == weekday) & (pl.col("predicted_at").dt.hour() == 0)
    )
    assert leaking_columns(_found(build, timedelta(days=1))) == {"value"}


@pytest.mark.parametrize(
    ("length", "moments", "said"),
    [
        (timedelta(hours=1), 24, ("1 hour ", "24 hours of the day;")),
        (timedelta(days=1), 7, ("1 day ", "7 days of the week;")),
        (timedelta(days=7), 2, ("7 days ", "2 partitions of the range;")),
    ],
)
def test_the_report_says_which_leaks_it_could_find(
    length: timedelta, moments: int, said: tuple[str, str]
) -> None:
    report = _found(_peeks(0, pl.lit(value=False)), length)
    assert report.ok
    assert len(report.cuts) == moments
    assert report.reach is not None
    assert (report.reach.length, report.reach.phases) == (length, moments)
    assert all(part in report.reach.explain() for part in said)
    assert report.reach.explain() in report.explain()


# Partitions built by themselves


def by_themselves(build: Callable[[Inputs, date, date], pl.DataFrame], lookback: int) -> LeakReport:
    """The last two days of the range, each also from `lookback` days before it alone."""

    def alone(day: date) -> Alone:
        orders = ORDERS.filter(pl.col("day").is_between(day - timedelta(days=lookback), day))
        inputs = {**INPUTS, "datasets/orders": orders}
        return Alone(key=day.isoformat(), first=day, last=day, inputs=inputs)

    days = [LAST - timedelta(days=1), LAST]
    return leak_test(
        build,
        INPUTS,
        KNOWN,
        FIRST,
        LAST,
        primary_key=["order"],
        labels=["returned"],
        alone=[alone(day) for day in days],
        partition_date="day",
    )


def recent(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
    """Return the number of orders placed on this day and the three before it."""
    per_day = inputs["datasets/orders"].group_by("day").len("orders").sort("day")
    summed = per_day.rolling("day", period="4d").agg(pl.col("orders").sum().alias("orders_4d"))
    return _placed(inputs, first, last).join(summed, on="day", how="left", maintain_order="left")


def _placed(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
    orders = inputs["datasets/orders"].filter(pl.col("day").is_between(first, last))
    return orders.select("day", "order", "returned", pl.col("placed_at").alias("predicted_at"))


def test_a_lookback_that_suffices_gives_the_same_alone() -> None:
    report = by_themselves(recent, lookback=3)
    assert report.ok, report.explain()
    assert report.alone == ("2024-03-05", "2024-03-06")
    assert any(
        "lookback" in line and all(key in line for key in report.alone)
        for line in report.explain().splitlines()
    )


def test_a_lookback_one_day_too_short_is_named_with_both_values() -> None:
    report = by_themselves(recent, lookback=2)
    assert not report.leaks
    assert {(one.key, one.column, one.rows) for one in report.differs_alone} == {
        (day, "orders_4d", 4) for day in ("2024-03-05", "2024-03-06")
    }
    last = report.differs_alone[-1]
    assert (last.key, last.cause) == ("2024-03-06", "lookback")
    assert last.examples[0] == "20: 16 in the range, 12 alone"
    assert all(part in last.explain() for part in ("orders_4d", last.key, *last.examples, "`lookback`"))
    assert last.explain() in report.explain()


def test_rows_that_come_from_the_lookback_alone_are_counted() -> None:
    def last_of_three_days(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
        seen = inputs["datasets/orders"]["day"].n_unique()
        return _placed(inputs, first, last).filter(pl.lit(seen > 2))

    report = by_themselves(last_of_three_days, lookback=1)
    assert {one.column for one in report.differs_alone} == {MISSING_ROW}


def test_a_mean_over_the_range_is_not_called_a_short_lookback() -> None:
    def share(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
        return _placed(inputs, first, last).with_columns(
            (pl.col("order") / pl.col("order").max()).alias("share")
        )

    (first,) = by_themselves(share, lookback=3).differs_alone
    assert (first.cause, first.column, first.key) == ("range", "share", "2024-03-05")
    assert "`lookback`" not in first.explain()


def test_the_rounding_of_a_running_sum_is_no_difference() -> None:
    def summed(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
        rows = _placed(inputs, first, last)
        carried = 1e-12 * inputs["datasets/orders"].height
        return rows.with_columns((pl.col("order") / 7 + carried).alias("sum"))

    assert by_themselves(summed, lookback=1).ok


def test_bytes_that_leak_are_told_by_their_number() -> None:
    def peeking(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
        rows = honest(inputs, first, last)
        return rows.with_columns(pl.col("returned").cast(pl.String).cast(pl.Binary).alias("picture"))

    (leak, *_) = examine(peeking).leaks
    assert leak.column == "picture"
    assert leak.examples[0].partition(": ")[2] == "4 bytes with, None without"


def test_labels_may_know_the_future() -> None:
    assert "returned" not in examine(honest).columns_compared


def test_what_no_rule_hides_is_reported_as_always_known() -> None:
    report = examine(honest)
    assert report.always_known["datasets/orders"] == ("day", "order", "customer", "placed_at")
    assert report.always_known["datasets/prices"] == ()
    assert "datasets/orders: day, order, customer, placed_at" in report.explain()
    assert "datasets/prices" not in report.explain()
    open_prices = leak_test(
        honest,
        INPUTS,
        {**KNOWN, "datasets/prices": []},
        FIRST,
        LAST,
        primary_key=["order"],
        labels=["returned"],
    )
    assert open_prices.always_known["datasets/prices"] == ("all columns",)
    assert "datasets/prices: all columns" in open_prices.explain()


def test_a_random_column_is_called_random_and_no_other() -> None:
    def drawing(*arguments: Any) -> pl.DataFrame:
        rows = honest(*arguments)
        return rows.with_columns(
            peek=pl.col("returned"), luck=pl.Series(np.random.default_rng().random(rows.height))
        )

    report = examine(drawing)
    assert {leak.column for leak in report.leaks if leak.cut is None} == {"luck"}
    assert {leak.column for leak in report.leaks if leak.cut is not None} == {"peek"}
    assert "luck is random" in report.explain()


def test_cutting_hides_columns_or_removes_rows() -> None:
    moment = datetime(2024, 3, 3, tzinfo=UTC)
    orders = known_by(ORDERS, KNOWN["datasets/orders"], moment)
    assert len(orders) == len(ORDERS)
    settled = ORDERS["settled_at"] <= moment
    assert orders.filter(~settled).select("returned", "settled_at").null_count().row(0) == (
        (~settled).sum(),
        (~settled).sum(),
    )
    assert orders.filter(settled).equals(ORDERS.filter(settled))
    assert known_by(PRICES, KNOWN["datasets/prices"], moment)["known_at"].max() <= moment


def test_a_moment_that_never_came_hides_for_ever() -> None:
    rows = pl.DataFrame(
        {"at": [None], "value": [1]}, schema={"at": pl.Datetime("us", "UTC"), "value": pl.Int8}
    )
    far = datetime(2999, 1, 1, tzinfo=UTC)
    assert known_by(rows, [KnowledgeRule(column="at", columns=("value",))], far)["value"].to_list() == [None]
    assert known_by(rows, [KnowledgeRule(column="at")], far).is_empty()


def test_rules_that_hide_each_others_moments_are_applied_at_once() -> None:
    early, late = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 3, tzinfo=UTC)
    rows = pl.DataFrame({"left_at": [early], "landed_at": [late], "delay": [5]})
    rules = [
        KnowledgeRule(column="landed_at", columns=("left_at",)),
        KnowledgeRule(column="left_at", columns=("delay",)),
    ]
    cut = known_by(rows, rules, datetime(2024, 1, 2, tzinfo=UTC))
    assert cut.row(0) == (None, None, 5)


def test_a_table_without_a_declaration_is_refused() -> None:
    with pytest.raises(LeakTestError, match=r"`known_at: \[\]`") as refused:
        leak_test(
            honest,
            INPUTS,
            {"datasets/orders": KNOWN["datasets/orders"]},
            FIRST,
            LAST,
            primary_key=["order"],
        )
    assert (refused.value.fault, refused.value.names) == ("known_at", ("datasets/prices",))


def test_a_declaration_of_a_column_that_is_not_there_is_refused() -> None:
    rules = {**KNOWN, "datasets/prices": [KnowledgeRule(column="seen_at")]}
    with pytest.raises(LeakTestError) as refused:
        leak_test(honest, INPUTS, rules, FIRST, LAST, primary_key=["order"])
    assert (refused.value.fault, refused.value.names) == ("columns", ("datasets/prices", "seen_at"))


def test_a_declaration_by_something_that_is_no_moment_is_refused() -> None:
    rules = {**KNOWN, "datasets/orders": [KnowledgeRule(column="day")]}
    with pytest.raises(LeakTestError, match="datetime in UTC") as refused:
        leak_test(honest, INPUTS, rules, FIRST, LAST, primary_key=["order"])
    assert (refused.value.fault, refused.value.names) == ("known_at", ("datasets/orders", "day"))


def test_a_cut_before_all_predictions_is_refused() -> None:
    with pytest.raises(LeakTestError, match=f"{FIRST}..{LAST}") as refused:
        leak_test(
            honest, INPUTS, KNOWN, FIRST, LAST, primary_key=["order"], cuts=[datetime(2020, 1, 1, tzinfo=UTC)]
        )
    assert refused.value.fault == "cut"


def test_a_key_that_does_not_name_rows_is_refused() -> None:
    with pytest.raises(LeakTestError) as refused:
        leak_test(honest, INPUTS, KNOWN, FIRST, LAST, primary_key=["customer"])
    assert (refused.value.fault, refused.value.names) == ("key", ("customer",))


def test_a_column_that_tells_the_label_is_suspicious_not_a_leak() -> None:
    """A text that is filled once a customer has left is in the row, and no rule hides it."""
    n = 400
    left = [i % 7 == 0 for i in range(n)]
    customers = pl.DataFrame(
        {
            "customer": list(range(n)),
            "day": [FIRST + timedelta(days=i % 6) for i in range(n)],
            "left": [int(one) for one in left],
            "reason": [("price", "moved")[i % 2] if one else None for i, one in enumerate(left)],
            "plan": [("basic", "plus")[i % 3 == 0] for i in range(n)],
            "known_at": [datetime(2024, 4, 1, tzinfo=UTC)] * n,
        }
    )

    def build(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
        rows = inputs["datasets/customers"].filter(pl.col("day").is_between(first, last))
        return rows.with_columns(predicted_at=pl.col("day").cast(pl.Datetime("us", "UTC"))).drop("known_at")

    def report(hidden: Sequence[str]) -> LeakReport:
        known = {"datasets/customers": [KnowledgeRule(column="known_at", columns=tuple(hidden))]}
        return leak_test(
            build,
            {"datasets/customers": customers},
            known,
            FIRST,
            LAST,
            primary_key=["customer"],
            labels=["left"],
        )

    found = report(["left"])
    assert found.ok
    assert [(one.column, one.label, one.right) for one in found.telling] == [("reason", "left", 1.0)]
    assert "suspicious: reason alone tells left in 100.0 % of 400 rows" in found.explain()
    # With the right rule, it is a leak.
    assert leaking_columns(report(["left", "reason"])) == {"reason"}


@pytest.mark.parametrize(
    ("column", "label", "tells"),
    [
        pytest.param("noise", "yes", False, id="noise"),
        pytest.param("noise", "amount", False, id="noise of a number"),
        pytest.param("id", "yes", False, id="a text of its own in each row"),
        pytest.param("weak", "yes", False, id="an honest feature"),
        pytest.param("weak", "amount", False, id="an honest feature of a number"),
        pytest.param("twice", "amount", True, id="the label in another unit"),
        pytest.param("filled", "yes", True, id="filled in most rows of a class"),
    ],
)
def test_only_a_column_that_tells_most_is_suspicious(column: str, label: str, tells: bool) -> None:
    draw = np.random.default_rng(5)
    amount = draw.normal(100, 20, 600)
    yes = draw.random(600) < 0.15
    frame = pl.DataFrame(
        {
            "noise": draw.normal(0, 1, 600),
            "id": [f"c{n}" for n in range(600)],
            "weak": amount + draw.normal(0, 15, 600) + 20 * yes,
            "twice": 2 * amount + draw.normal(0, 2, 600),
            "filled": pl.Series(np.where(yes & (draw.random(600) < 0.8), 1.0, np.nan)).fill_nan(None),
            "amount": amount,
            "yes": yes,
        }
    )
    assert bool(telling_columns(frame, [column], label)) == tells
