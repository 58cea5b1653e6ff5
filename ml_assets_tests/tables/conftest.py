"""A lake and a ledger of their own for every test."""

from pathlib import Path

import pytest

from ml_assets_tests.tables.orders_table import OrdersTable


@pytest.fixture
def orders(tmp_path: Path) -> OrdersTable:
    """An empty lake and ledger."""
    return OrdersTable(tmp_path)
