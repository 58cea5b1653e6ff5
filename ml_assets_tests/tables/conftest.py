"""A lake and a ledger of their own for every test."""

from pathlib import Path

import pytest

from ml_assets_tests.tables.shop import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """An empty lake and ledger."""
    return Place(tmp_path)
