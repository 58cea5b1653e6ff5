"""Several processes publish to one table, or die while they do: nothing is lost, halved or doubled."""

import random
import signal
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from ml_assets.data.tables import parquet
from ml_assets.data.tables.reader import TableReader
from ml_assets_tests.faults.child_processes import finish, start
from ml_assets_tests.faults.summary import KILLED
from ml_assets_tests.tables import orders_table, publishers
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, day, days, keys

GOOD, BAD = keys(12), keys(2, start=12)
OLD = {key: day(key, factor=9) for key in [*GOOD[:6], BAD[0]]}
"""Content of main before: older versions of some good days and of one that will be bad."""
NEW = days(12) | {key: day(key).drop("shop") for key in BAD}


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Number of moments to die at."""
    folder = tmp_path_factory.mktemp("clean")
    OrdersTable(folder).publish(OLD, "before")
    assert _end(folder, "clean", None) == 0
    return int((folder / "calls").read_text())


def _end(folder: Path, run: str, moment: int | None) -> int:
    child = start(publishers.context(), folder / "said", publishers.publish_until, folder, NEW, run, moment)
    return child.end(60)


@pytest.mark.chaos
def test_a_publisher_killed_at_any_moment_is_finished_by_a_rerun(
    orders: OrdersTable, moments: int, chaos_seed: int, record_property: Callable[[str, object], None]
) -> None:
    rng = random.Random(chaos_seed)
    orders.publish(OLD, "before")
    before = TableReader.at(orders.store).digests(ORDERS)
    killed = 0
    for death in range(3):
        ended = _end(orders.folder, f"death{death}", rng.randint(1, moments * 9 // 10))
        # The later ones find less to do, and may be done before their moment comes.
        assert ended == -signal.SIGKILL or (death and ended == 0)
        killed += ended == -signal.SIGKILL
        _assert_whole(orders, before)
    record_property(KILLED, killed)

    result = orders.publish(NEW, "rerun")
    _assert_whole(orders, before)
    assert list(result.merged) == GOOD
    assert list(result.rejected) == BAD
    reader = TableReader.at(orders.store)
    assert reader.keys(ORDERS) == [*GOOD, BAD[0]]
    expected = pl.concat([parquet.canonical(day(key), orders_table.spec().order) for key in GOOD])
    assert reader.scan(ORDERS, GOOD).collect().equals(expected)
    assert reader.digests(ORDERS)[BAD[0]] == before[BAD[0]]
    window = orders.ask_guard([*GOOD, *BAD])
    assert list(window.barred) == BAD
    assert not window.missing
    for key in NEW:
        validated = [(row.content_digest, row.status) for row in orders.ledger.histories(ORDERS, [key])[key]]
        assert len(validated) == len(set(validated)) == (2 if key in OLD else 1), (
            "recorded once, whoever died"
        )

    assert orders.publish(NEW, "once more").commit_id == result.commit_id


def _assert_whole(orders: OrdersTable, before: dict[str, str]) -> None:
    """Assert that every partition on main is entirely its old or its new version, with the manifest of that version."""
    reader = TableReader.at(orders.store)
    for key, digest in reader.digests(ORDERS).items():
        manifest = reader.manifest(ORDERS, key)
        assert manifest.content_digest == digest
        rows = reader.scan(ORDERS, [key]).collect()
        assert rows.height == manifest.rows == 40
        version = OLD[key] if digest == before.get(key) else NEW[key]
        assert rows.equals(parquet.canonical(version, orders_table.spec().order))


def test_two_processes_publishing_other_days_of_one_table_lose_none(orders: OrdersTable) -> None:
    _together(orders, [(0, 15, "left", 1.0), (15, 15, "right", 1.0)])
    reader = TableReader.at(orders.store)
    assert reader.keys(ORDERS) == keys(30)
    expected = pl.concat([parquet.canonical(day(key), orders_table.spec().order) for key in keys(30)])
    assert reader.scan(ORDERS, keys(30)).collect().equals(expected)
    assert orders.ask_guard(keys(30)).ok


@pytest.mark.parametrize("runs", [("left", "right"), ("resumed", "resumed")])
def test_two_processes_publishing_the_same_days_differently_both_land(
    orders: OrdersTable, runs: tuple[str, str]
) -> None:
    """The law holds for one run id as well: a run was resumed while its first worker lived."""
    _together(orders, [(0, 10, runs[0], 1.0), (0, 10, runs[1], 2.0)])
    merged = [
        c.metadata["run_id"] for c in orders.store.log("main", 200) if c.metadata.get("table") == ORDERS
    ]
    assert set(runs) == set(merged)
    versions = {factor: {key: day(key, factor=factor) for key in keys(10)} for factor in (1.0, 2.0)}
    reader = TableReader.at(orders.store)
    newest = orders.ledger.newest_verdicts(ORDERS)
    for key in keys(10):
        rows = reader.scan(ORDERS, [key]).collect()
        assert any(
            rows.equals(parquet.canonical(v[key], orders_table.spec().order)) for v in versions.values()
        )
        assert reader.manifest(ORDERS, key).content_digest == reader.digests(ORDERS)[key]
        assert newest[key].content_digest == reader.digests(ORDERS)[key]
    assert orders.ask_guard(keys(10)).ok
    assert orders.store.branches("audit-") == {}


def test_two_processes_publishing_the_same_content_make_one_version(orders: OrdersTable) -> None:
    _together(orders, [(0, 10, "left", 1.0), (0, 10, "right", 1.0)])
    assert TableReader.at(orders.store).keys(ORDERS) == keys(10)
    merged = [
        key for c in orders.store.log("main", 200) for key in c.metadata.get("keys", "").split(",") if key
    ]
    assert sorted(merged) == keys(10)  # each day once


def _together(orders: OrdersTable, jobs: list[tuple[int, int, str, float]]) -> None:
    children = [
        start(publishers.context(), orders.folder / "said", publishers.publish_days, orders.folder, *job)
        for job in jobs
    ]
    finish(*children, seconds=60)
