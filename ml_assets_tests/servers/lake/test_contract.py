"""The lake on the real lakeFS keeps the contract of every lake, and shows its history as the embedded lake does."""

from pathlib import Path

import pytest

from ml_assets_tests.resources.lake.lake_contract import VersionedStoreContract
from ml_assets_tests.resources.lake.ref_contract import RefContract
from ml_assets_tests.servers.lake.repositories import Repository
from ml_assets_tests.tables.history_contract import LakeHistoryContract
from ml_assets_tests.tables.orders_table import OrdersTable
from resources.lake import VersionedStore


class TestLakeFSStore(VersionedStoreContract, RefContract):
    @pytest.fixture
    def store(self, repository: Repository) -> VersionedStore:
        return repository.make().store()


class TestLakeFSStoreByPresignedAddresses(VersionedStoreContract):
    @pytest.fixture
    def store(self, repository: Repository) -> VersionedStore:
        return repository.make().store(presign_from=0)


class TestHistoryOfLakeFS(LakeHistoryContract):
    @pytest.fixture
    def orders(self, repository: Repository, tmp_path: Path) -> OrdersTable:
        return OrdersTable(tmp_path, repository.make().store())
