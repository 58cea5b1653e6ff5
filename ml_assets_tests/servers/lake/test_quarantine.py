"""Quarantine on a real lakeFS: the rules of the embedded lake's tests, the same objects, and the commands."""

from pathlib import Path

import pytest

from ml_assets.data.tables.history.log import unaudited
from ml_assets.data.tables.layout import quarantine_of
from ml_assets.data.tables.reader import TableReader
from ml_assets_tests.cli.conftest import wrong_sales
from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.cli.test_quarantine import (
    lenient,
    test_rows_in_quarantine_are_listed_shown_and_readmitted,
)
from ml_assets_tests.servers.lake.repositories import Repository
from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, day
from ml_assets_tests.tables.test_quarantine import (
    KEY,
    SET_ASIDE,
    bad_day,
    test_a_finding_about_the_partition_sets_no_rows_aside,
    test_a_mended_source_empties_the_quarantine,
    test_bad_rows_land_in_their_own_table_in_the_same_merge,
    test_more_bad_rows_than_the_limit_reject_the_partition,
    test_odd_texts_and_missing_numbers_pass_through_the_quarantine,
    test_readmitting_after_a_fix_of_the_rules_merges_what_passes,
    test_readmitting_never_makes_a_partition_worse,
    test_the_same_input_again_changes_nothing,
)

__all__ = [
    "lenient",
    "test_a_finding_about_the_partition_sets_no_rows_aside",
    "test_a_mended_source_empties_the_quarantine",
    "test_bad_rows_land_in_their_own_table_in_the_same_merge",
    "test_more_bad_rows_than_the_limit_reject_the_partition",
    "test_odd_texts_and_missing_numbers_pass_through_the_quarantine",
    "test_readmitting_after_a_fix_of_the_rules_merges_what_passes",
    "test_readmitting_never_makes_a_partition_worse",
    "test_rows_in_quarantine_are_listed_shown_and_readmitted",
    "test_the_same_input_again_changes_nothing",
    "wrong_sales",
]
"""Tests that run here on lakeFS, and the fixtures that they need."""


@pytest.fixture
def orders(repository: Repository, tmp_path: Path) -> OrdersTable:
    """The table of orders on a fresh repository with its audit hook."""
    return OrdersTable(tmp_path, repository.make_ready().store())


@pytest.fixture
def terminal(servers: RunningServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal whose lake, ledger and Dagster are on the servers."""
    settings = servers.settings(tmp_path / "home")
    for name, value in servers.variables(settings).items():
        monkeypatch.setenv(name, value)
    terminal = Terminal(settings.home)
    assert terminal("lake", "init").status == 0
    return terminal


def test_a_quarantine_on_lakefs_has_the_objects_of_the_embedded_lake(
    orders: OrdersTable, repository: Repository, tmp_path: Path
) -> None:
    """Another machine reads both tables; the merge passed the audit hook, and no branch is left."""
    embedded = OrdersTable(tmp_path / "embedded")
    for table in (orders, embedded):
        result = table.publish({KEY: bad_day()}, **SET_ASIDE)
        assert result.merged[KEY].verdict.quarantined == 4
    aside = quarantine_of(ORDERS) or ""
    elsewhere = TableReader.at(repository.elsewhere("elsewhere").store())
    for name in (ORDERS, aside):
        assert elsewhere.digests(name) == TableReader.at(embedded.store).digests(name)
        rows = TableReader.at(embedded.store).scan(name, [KEY]).collect()
        assert elsewhere.scan(name, [KEY]).collect().equals(rows)
    assert list(orders.store.branches()) == ["main"]
    assert list(unaudited(orders.store, 20)) == []
    mended = orders.publish({KEY: day(KEY)}, run="mended", **SET_ASIDE)
    assert mended.merged[KEY].verdict.quarantined == 0
    assert TableReader.at(orders.store).keys(aside) == []
    assert (
        TableReader.at(orders.store)
        .scan(ORDERS, [KEY])
        .collect()
        .equals(day(KEY).sort("ordered_at", "order"))
    )
