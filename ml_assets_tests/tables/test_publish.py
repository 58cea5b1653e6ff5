"""Good partitions reach main in one merge, whatever happens to the others; nothing is done twice."""

from collections.abc import Callable
from datetime import UTC, date, datetime

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets.data.tables import parquet
from ml_assets.data.tables.cadence import Cadence, KeyRefused
from ml_assets.data.tables.declared import NOTHING_DECLARED
from ml_assets.data.tables.publish.prepare import KeyTwice, prepare, prepare_chunks
from ml_assets.data.tables.publish.publish import publish_in_chunks
from ml_assets.data.tables.reader import ColumnsDiffer, PartitionMissing, TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun, SourceFailed
from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.volume import VolumeRule
from ml_assets_tests.tables import orders_table
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, day, days, keys
from resources.lake import LakeBusy
from resources.lake.local import LocalStore


def test_good_days_land_in_one_merge_that_says_what_it_brought(orders: OrdersTable) -> None:
    before = orders.store.resolve("main")
    result = orders.publish(days(5), run="0f9c2b1a-7d")
    merge = orders.store.read_commit(result.commit_id)
    assert merge.parents[0] == before
    assert list(result.merged) == keys(5)
    assert not result.rejected
    assert merge.metadata["table"] == ORDERS
    assert merge.metadata["keys"] == ",".join(keys(5))
    assert merge.metadata["audit"] == "passed"
    assert merge.metadata["run_id"] == "0f9c2b1a-7d"
    assert merge.metadata["::lakefs::Dagster::url[url:ui]"].endswith("/runs/0f9c2b1a-7d")
    assert orders.store.branches("audit-") == {}


def test_what_is_read_is_what_was_published(orders: OrdersTable) -> None:
    orders.publish(days(4))
    reader = TableReader.at(orders.store)
    wanted = [keys(4)[2], keys(4)[0]]
    expected = pl.concat([parquet.canonical(day(key), orders_table.spec().order) for key in wanted])
    assert reader.scan(ORDERS, wanted).collect().equals(expected)
    assert reader.keys(ORDERS) == keys(4)


def test_a_manifest_describes_its_partition(orders: OrdersTable) -> None:
    key = keys(1)[0]
    inputs = {"datasets/raw": {"2012-12-31": "", key: "ab" * 32}}
    watermark = datetime(2013, 1, 2, tzinfo=UTC)
    result = orders.publish([Incoming(key=key, data=day(key), inputs=inputs, watermark=watermark)])
    manifest = TableReader.at(orders.store).manifest(ORDERS, key)
    assert manifest.content_digest == result.merged[key].content_digest
    assert manifest.content_digest == TableReader.at(orders.store).digests(ORDERS)[key]
    assert manifest.rows == 40
    assert manifest.schema == dict(orders_table.CONTRACT.stored_schema)
    assert manifest.schema_hash == orders_table.CONTRACT.schema_hash
    assert manifest.contract_digest == orders_table.CONTRACT.contract_digest
    assert manifest.event_time == ("2013-01-01T00:00:00Z", "2013-01-01T06:30:00Z")
    assert manifest.source_watermark == "2013-01-02T00:00:00+00:00"
    assert manifest.inputs == inputs
    assert manifest.code_version == "v1"
    assert manifest.profile["columns"]["note"]["nulls"] == 32


def test_publishing_the_same_content_again_changes_nothing(orders: OrdersTable) -> None:
    first = orders.publish(days(6), run="first")
    shuffled = {key: frame.sample(fraction=1, shuffle=True, seed=1) for key, frame in days(6).items()}
    reordered = {key: frame.select(reversed(frame.columns)) for key, frame in shuffled.items()}
    second = orders.publish(reordered, run="second")
    assert second.commit_id == first.commit_id == orders.store.resolve("main")
    assert [p.content_digest for p in second.merged.values()] == [
        p.content_digest for p in first.merged.values()
    ]
    assert not any(p.changed for p in second.merged.values())
    assert [len(orders.ledger.histories(ORDERS, [key])[key]) for key in keys(6)] == [1] * 6


def test_a_commit_names_only_the_partitions_it_changed(orders: OrdersTable) -> None:
    orders.publish(days(5))
    late = keys(5)[1]
    result = orders.publish(days(5) | {late: day(late, factor=2)})
    assert [key for key, p in result.merged.items() if p.changed] == [late]
    commit = orders.store.read_commit(result.commit_id)
    assert commit.metadata["keys"] == late
    assert commit.message == f"Publish {ORDERS} {late}"
    assert [len(orders.ledger.histories(ORDERS, [key])[key]) for key in keys(5)] == [1, 2, 1, 1, 1]


def test_new_code_with_equal_rows_keeps_the_data_version(orders: OrdersTable) -> None:
    first = orders.publish(days(2))
    second = orders.publish(days(2), code_version="v2")
    assert second.commit_id != first.commit_id
    assert not any(p.changed for p in second.merged.values())
    assert TableReader.at(orders.store).manifest(ORDERS, keys(1)[0]).code_version == "v2"


def test_new_rules_validate_old_content_again(orders: OrdersTable) -> None:
    orders.publish(days(2))
    stricter = Contract.model_validate(orders_table.RULES | {"primary_key": ["shop"]})
    result = orders.publish(days(2), contract=stricter, sort_key=("ordered_at", "order"))
    assert list(result.rejected) == keys(2)


def test_a_day_the_source_cannot_give_leaves_the_others_alone(orders: OrdersTable) -> None:
    first, second = keys(2)
    orders.publish({first: day(first)})
    gone = Incoming(key=first, data=SourceFailed("moved: http://ada:p@ss@shop/x"))
    result = orders.publish([gone, Incoming(key=second, data=day(second))])
    assert result.failed == {first: "moved: http://shop/x"}
    assert list(result.merged) == [second]
    assert TableReader.at(orders.store).keys(ORDERS) == [first, second]
    assert not orders.ledger.newest_verdicts(ORDERS)[first].blocks


def test_values_that_no_file_can_hold_are_a_failure_of_the_source(orders: OrdersTable) -> None:
    key = keys(1)[0]
    odd = day(key).with_columns(pl.Series("note", [object()] * 40, dtype=pl.Object))
    result = orders.publish({key: odd})
    assert "note" in result.failed[key]


def test_an_iterable_is_read_once_and_one_partition_at_a_time(orders: OrdersTable) -> None:
    given: list[str] = []

    def source():
        for key in keys(3):
            given.append(key)
            yield Incoming(key=key, data=day(key))

    orders.publish(source())
    assert given == keys(3)


@given(
    rows=st.lists(st.sampled_from([0, 20, 40, 60, 90]), min_size=1, max_size=40), at_once=st.integers(1, 9)
)
@settings(max_examples=15)
def test_chunks_give_the_verdicts_of_one_call(
    tmp_path_factory: pytest.TempPathFactory, rows: list[int], at_once: int
) -> None:
    """Also where the rule on row counts compares a day with days of an earlier chunk, some of which it rejected."""
    given_days = [Incoming(key=key, data=day(key, count)) for key, count in zip(keys(40), rows, strict=False)]
    [whole, apart] = (OrdersTable(tmp_path_factory.mktemp(name)) for name in ("whole", "apart"))
    spec = orders_table.spec()
    size = at_once * prepare(spec, given_days[0], day(keys(1)[0])).memory
    run = PublishingRun(run_id="run00001")
    chunks = list(
        publish_in_chunks(
            apart.store, apart.ledger, spec, given_days, run, NOTHING_DECLARED, chunk_bytes=size
        )
    )
    result = whole.publish(given_days)
    merged = {key: one for chunk in chunks for key, one in chunk.merged.items()}
    assert dict(result.merged) == merged
    assert {key: one.verdict for key, one in result.rejected.items()} == {
        key: one.verdict for chunk in chunks for key, one in chunk.rejected.items()
    }


def test_a_chunk_counts_what_many_columns_need() -> None:
    """400 days of 3,000 columns were one chunk of 0.4 GB, and took 2.3 GB."""
    names = [f"c{number}" for number in range(1000)]
    columns = [{"name": "id", "dtype": "int64"}, *({"name": one, "dtype": "float64"} for one in names)]
    spec = orders_table.spec(
        contract=Contract.model_validate({"primary_key": ["id"], "columns": columns}), sort_key=()
    )
    wide = pl.DataFrame({"id": [1], **{one: [0.5] for one in names}})
    incoming = [Incoming(key=key, data=wide) for key in keys(5)]
    assert [len(chunk.ready) for chunk in prepare_chunks(spec, incoming, 3e6)] == [2, 2, 1]


def test_a_repeated_or_foreign_key_is_refused_before_anything_is_written(
    orders: OrdersTable,
) -> None:
    key = keys(1)[0]
    with pytest.raises(KeyTwice, match=key):
        orders.publish([Incoming(key=key, data=day(key))] * 2)
    with pytest.raises(KeyRefused):
        orders.publish({"2013-1-1": day(key)})
    with pytest.raises(KeyRefused, match=r"2012-12-31: .* 2013-01-01"):
        orders.publish({key: day(key), "2012-12-31": day("2012-12-31")})
    with pytest.raises(KeyRefused, match=r"2013-01-03: .* 2013-01-02"):
        orders.publish(days(3), cadence=Cadence("daily", orders_table.FIRST, date(2013, 1, 2)))
    assert TableReader.at(orders.store).keys(ORDERS) == []
    assert orders.store.branches("audit-") == {}


def test_days_are_validated_by_the_days_before_them(
    orders: OrdersTable,
) -> None:
    """Earlier days count from the same call and from the ledger."""
    short = keys(30)[29]
    result = orders.publish(days(29) | {short: day(short, rows=20)})
    assert list(result.rejected) == [short]
    weak = keys(31)[30]
    later = orders.publish({weak: day(weak, rows=30)}, run="later")
    assert later.merged[weak].verdict.status == "warned"


@pytest.mark.parametrize(
    "empty",
    [
        pytest.param(lambda rows: rows.clear(), id="typed"),
        pytest.param(lambda rows: pl.DataFrame({name: [] for name in rows.columns}), id="untyped"),
        pytest.param(lambda _: pl.DataFrame(), id="nothing at all"),
    ],
)
def test_an_empty_day_is_published_where_the_rule_allows_it(
    orders: OrdersTable, empty: Callable[[pl.DataFrame], pl.DataFrame]
) -> None:
    first, second = keys(2)
    nothing = {first: day(first), second: empty(day(second))}
    refused = orders.publish(nothing)
    assert [one.rule for one in refused.rejected[second].verdict.findings] == ["empty_partition"]
    result = orders.publish(nothing, volume=VolumeRule(allow_empty=True))
    assert result.merged[second].rows == 0
    # Both days at once: their files have one schema.
    assert TableReader.at(orders.store).scan(ORDERS, [first, second]).collect().height == day(first).height


def test_an_empty_day_of_another_shape_is_validated_by_its_columns(orders: OrdersTable) -> None:
    (key,) = keys(1)
    result = orders.publish({key: day(key).clear().drop("amount")}, volume=VolumeRule(allow_empty=True))
    assert [one.rule for one in result.rejected[key].verdict.findings] == ["missing_column"]


def test_weekly_and_unpartitioned_tables_publish_alike(orders: OrdersTable) -> None:
    week = pl.concat(list(days(6, start=6).values()))
    weekly = orders.publish(
        {"2013-01-07": week}, cadence=Cadence("weekly", orders_table.FIRST), sort_key=("order",)
    )
    assert weekly.merged["2013-01-07"].rows == 240
    whole = orders.publish({"all": day("2013-01-01")}, cadence=Cadence("none"), name="shops")
    assert list(whole.merged) == ["all"]
    assert orders.store.list("main", "datasets/shops/")[0].path == "datasets/shops/all/part-0.parquet"


def test_several_files_are_read_in_order_and_removed_when_fewer_come(
    orders: OrdersTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer version with fewer files leaves none of the old ones on main."""
    key = keys(1)[0]
    monkeypatch.setattr(parquet, "FILE_ROWS", 3)
    orders.publish({key: day(key)})
    assert len(orders.store.list("main", "datasets/orders/")) == 14
    in_order = parquet.canonical(day(key), orders_table.spec().order)
    assert TableReader.at(orders.store).scan(ORDERS, [key]).collect().equals(in_order)
    monkeypatch.setattr(parquet, "FILE_ROWS", 25)
    orders.publish({key: day(key, factor=2)})
    assert TableReader.at(orders.store).scan(ORDERS, [key]).collect().height == 40
    assert len(orders.store.list("main", "datasets/orders/")) == 2


class StrangersStore(LocalStore):
    """A lake in which somebody who takes no turns merges first, a given number of times."""

    races: int

    def merge(self, source: str, into: str, message: str, metadata) -> str:
        """Merge, after a stranger changed the same day to something else again."""
        if self.races:
            self.races -= 1
            branch = f"stranger-{self.races}"
            self.create_branch(branch, "main")
            path = f"datasets/orders/date={keys(1)[0]}/part-0.parquet"
            self.put(branch, path, b"stranger %d" % self.races)
            self.commit(branch, "write", {})
            super().merge(branch, "main", "stranger", {"run_id": "stranger"})
        return super().merge(source, into, message, metadata)


@pytest.mark.parametrize("races", [1, 3])
def test_a_lost_race_for_one_day_is_merged_again_from_the_new_head(orders: OrdersTable, races: int) -> None:
    orders.publish(days(2))
    racing = StrangersStore(orders.folder / "lake")
    racing.races = races
    orders.store = racing
    key = keys(1)[0]
    result = orders.publish({key: day(key, factor=2)})
    reader = TableReader.at(orders.store)
    assert reader.digests(ORDERS)[key] == result.merged[key].content_digest
    assert orders.store.read_commit(result.commit_id).metadata["run_id"] == "run00001"
    merged = [commit.metadata.get("run_id") for commit in orders.store.log("main")]
    assert merged.count("stranger") == races  # they stay in history


def test_a_race_that_is_never_won_ends_in_the_lakes_own_error(
    orders: OrdersTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ml_assets.data.tables.publish.publish.TRIES", 2)

    class BusyStore(LocalStore):
        def merge(self, source: str, into: str, message: str, metadata) -> str:
            raise LakeBusy("the head moved more often than we retry")

    orders.store = BusyStore(orders.folder / "lake")
    with pytest.raises(LakeBusy):
        orders.publish(days(1))
    assert orders.store.branches("audit-") == {}


def test_missing_partitions_are_named(orders: OrdersTable) -> None:
    orders.publish(days(1))
    with pytest.raises(PartitionMissing, match="2013-01-02, 2013-01-03 at commit") as caught:
        TableReader.at(orders.store).scan(ORDERS, keys(3))
    assert caught.value.keys == tuple(keys(3)[1:])


@pytest.mark.parametrize(
    ("change", "declared", "said"),
    [
        (
            pl.col("order").cast(pl.Int32),
            {"name": "order", "dtype": "int32"},
            "order is int32, not int64",
        ),
        (pl.lit(value=True).alias("coupon"), {"name": "coupon", "dtype": "bool"}, "coupon (bool) is added"),
    ],
    ids=["type", "added"],
)
def test_a_changed_column_is_named_with_the_days_to_build_again(
    orders: OrdersTable, change: pl.Expr, declared: dict[str, str], said: str
) -> None:
    orders.publish(days(3))
    columns = {one["name"]: one for one in orders_table.RULES["columns"]} | {declared["name"]: declared}
    contract = Contract.model_validate(orders_table.RULES | {"columns": [*columns.values()]})
    later = {key: day(key).with_columns(change) for key in keys(2, start=3)}
    orders.publish(later, run="run00002", contract=contract)
    reader = TableReader.at(orders.store)
    assert reader.scan(ORDERS, keys(3)).collect().height == 120
    assert reader.scan(ORDERS, list(later)).collect().height == 80
    with pytest.raises(ColumnsDiffer) as caught:
        reader.scan(ORDERS, keys(5))
    assert (caught.value.table, list(caught.value.odd)) == (ORDERS, keys(3))
    assert f"2013-01-01: {said}. " in str(caught.value)
    assert f"materialize {', '.join(keys(3))} again" in str(caught.value)
