"""History and differences of the lake on every `VersionedStore`: who changed what, and what it costs to find out.

A test module subclasses `LakeHistoryContract` and gives the fixture `orders`, over an empty lake and ledger.
"""

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from ml_assets.data.tables.history.diff import compare_lake
from ml_assets.data.tables.history.log import blame, log_of
from ml_assets.data.tables.publish.rejected import accept_partition
from ml_assets.data.tables.reader import FolderTaken, PartitionMissing, TableReader, write_out
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, day, days, keys
from resources.lake import VersionedStore
from resources.ledger import Person

KEYS = {ORDERS: ("ordered_at", "order")}
FIRST, SECOND, THIRD = keys(3)


class CountingStore:
    """A store that counts the bytes of the data files that are fetched from it."""

    def __init__(self, store: VersionedStore) -> None:
        self._store = store
        self.fetched = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def fetch(self, ref: str, paths: Sequence[str]) -> dict[str, Path]:
        files = self._store.fetch(ref, paths)
        self.fetched += sum(file.stat().st_size for path, file in files.items() if path.endswith(".parquet"))
        return files


def changed_day(key: str) -> pl.DataFrame:
    """Return a day with one more row and one other amount."""
    amount = pl.when(pl.col("order") == 7).then(999.0).otherwise(pl.col("amount"))
    return day(key, 41).with_columns(amount=amount)


class LakeHistoryContract:
    """Inherit, give the fixture `orders`."""

    def test_a_commit_names_exactly_what_it_changed(self, orders: OrdersTable) -> None:
        orders.publish(days(3))
        orders.publish({FIRST: day(FIRST), SECOND: changed_day(SECOND), THIRD: day(THIRD)}, run="run00002")
        newest, first, *_ = log_of(orders.store, "main")
        assert (newest.table, newest.keys, newest.run_id) == (ORDERS, (SECOND,), "run00002")
        assert (first.keys, first.author, first.code_version) == ((FIRST, SECOND, THIRD), "ada", "v1")
        assert [one.commit for one in log_of(orders.store, "main", table=ORDERS, limit=1)] == [newest.commit]

    def test_a_difference_names_partitions_rows_columns_and_statistics(self, orders: OrdersTable) -> None:
        before = orders.publish(days(2)).commit_id
        orders.publish({SECOND: changed_day(SECOND), THIRD: day(THIRD)}, run="run00002")
        after = orders.publish({FIRST: day(FIRST)}, code_version="v2").commit_id
        found = compare_lake(orders.store, before, after, KEYS)
        kinds = [(one.key, one.kind, one.before, one.after, one.why) for one in found.partitions]
        assert kinds == [
            (FIRST, "manifest", 40, 40, "code"),
            (SECOND, "rows", 40, 41, "rows of the source"),
            (THIRD, "came", None, 40, ""),
        ]
        second = found.partitions[1]
        assert second.change is not None
        assert (second.change.came, second.change.went, second.change.changed) == (1, 0, 1)
        assert second.change.columns == {"amount": 1}
        moved = {(one.column, one.statistic): (one.before, one.after) for one in second.statistics}
        assert moved["amount", "max"] == (11.75, 999.0)
        assert ("shop", "nulls") not in moved

    def test_a_difference_reads_only_what_changed(self, orders: OrdersTable) -> None:
        """With one day in 120 changed, both versions of that day are read, and no other file."""
        before = orders.publish(days(120)).commit_id
        after = orders.publish({SECOND: changed_day(SECOND)}, run="run00002").commit_id
        files = [one for ref in (before, after) for one in orders.store.list(ref, f"{ORDERS}/")]
        store = CountingStore(orders.store)
        assert compare_lake(store, before, after, KEYS, read_rows=False).partitions  # type: ignore[arg-type]
        assert store.fetched == 0
        (found,) = compare_lake(store, before, after, KEYS).partitions  # type: ignore[arg-type]
        both = sum(
            orders.store.stat(ref, f"{ORDERS}/date={SECOND}/part-0.parquet").size for ref in (before, after)
        )
        assert found.change is not None
        assert store.fetched == both <= 0.01 * sum(one.size for one in files)

    def test_blame_names_every_content_of_a_partition(self, orders: OrdersTable) -> None:
        orders.publish(days(2))
        broken = day(FIRST).with_columns(pl.lit(-1.0).alias("amount"))
        orders.publish({FIRST: broken}, run="run00002")
        accept_partition(orders.store, orders.ledger, ORDERS, FIRST, Person.unchecked("grace"), "a refund")
        orders.publish({SECOND: changed_day(SECOND)}, run="run00003")
        newest, first = blame(orders.store, ORDERS, FIRST)
        assert (newest.made_by.author, newest.made_by.reason) == ("grace", "a refund")
        assert (newest.made_by.run_id, newest.why) == ("run00002", "rows of the source")
        assert (first.made_by.run_id, first.code_version, first.why) == ("run00001", "v1", "first content")
        assert newest.content_digest == TableReader.at(orders.store).digests(ORDERS)[FIRST]

    def test_blame_finds_a_change_that_names_another_table(self, orders: OrdersTable) -> None:
        orders.publish(days(1))
        orders.publish({FIRST: changed_day(FIRST)}, run="run00002")
        wrong = {"table": "datasets/other", "keys": FIRST, "audit": "passed"}
        store, path = orders.store, f"_manifests/{ORDERS}/{FIRST}.json"
        old = blame(store, ORDERS, FIRST)[1].made_by.commit
        store.create_branch("by-hand", "main")
        store.put("by-hand", path, store.fetch(old, [path])[path])
        store.commit("by-hand", "restore", wrong)
        store.merge("by-hand", "main", "restore by hand", wrong)
        newest, *earlier = blame(store, ORDERS, FIRST)
        assert (newest.made_by.message, len(earlier)) == ("restore by hand", 2)

    def test_blame_of_an_unknown_partition_says_so(self, orders: OrdersTable) -> None:
        orders.publish(days(1))
        with pytest.raises(PartitionMissing, match=SECOND):
            blame(orders.store, ORDERS, SECOND)

    def test_a_checkout_holds_the_files_of_its_commit(self, orders: OrdersTable, tmp_path: Path) -> None:
        before = orders.publish(days(2)).commit_id
        orders.publish({SECOND: changed_day(SECOND)}, run="run00002")
        reader = TableReader(orders.store, before)
        assert reader.tables() == [ORDERS]
        folder = tmp_path / "out"
        written = write_out(reader, {ORDERS: [FIRST, SECOND]}, folder)
        parts = sorted(folder.rglob("*.parquet"))
        assert (written.files, written.partitions) == (2, {ORDERS: 2})
        assert [part.stat().st_mode & 0o222 for part in parts] == [0, 0]
        assert pl.read_parquet(parts[1]).equals(reader.scan(ORDERS, [SECOND]).collect())
        with pytest.raises(FolderTaken):
            write_out(reader, {ORDERS: [FIRST]}, folder)
