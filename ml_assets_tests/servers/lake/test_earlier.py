"""Earlier versions of partitions on a real lakeFS: the rules of the embedded lake's tests."""

from pathlib import Path

import pytest

from ml_assets_tests.servers.lake.repositories import Repository
from ml_assets_tests.tables.orders_table import OrdersTable
from ml_assets_tests.tables.test_earlier import (
    test_a_rejected_correction_keeps_the_earlier_rows_when_accepted,
    test_a_retired_partition_keeps_nothing,
    test_every_version_is_read_at_its_time,
)

__all__ = [
    "test_a_rejected_correction_keeps_the_earlier_rows_when_accepted",
    "test_a_retired_partition_keeps_nothing",
    "test_every_version_is_read_at_its_time",
]
"""Tests that run here on lakeFS."""


@pytest.fixture
def orders(repository: Repository, tmp_path: Path) -> OrdersTable:
    """Return a lake with an audit hook on the real server, and an embedded ledger."""
    return OrdersTable(tmp_path, repository.make_ready().store())
