"""The real lakeFS shows its history as the embedded lake does."""

from pathlib import Path

import pytest

from ml_assets_tests.servers.lake.repositories import Repository
from ml_assets_tests.tables.history_contract import LakeHistoryContract
from ml_assets_tests.tables.orders_table import OrdersTable


class TestHistoryOfLakeFS(LakeHistoryContract):
    @pytest.fixture
    def orders(self, repository: Repository, tmp_path: Path) -> OrdersTable:
        return OrdersTable(tmp_path, repository.make().store())
