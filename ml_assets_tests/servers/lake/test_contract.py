"""The lake on the real lakeFS keeps the contract of every lake."""

import pytest

from ml_assets_tests.resources.lake.lake_contract import VersionedStoreContract
from ml_assets_tests.resources.lake.ref_contract import RefContract
from ml_assets_tests.servers.lake.repositories import Repository
from resources.lake import VersionedStore


class TestLakeFSStore(VersionedStoreContract, RefContract):
    @pytest.fixture
    def store(self, repository: Repository) -> VersionedStore:
        return repository.make().store()


class TestLakeFSStoreByPresignedAddresses(VersionedStoreContract):
    @pytest.fixture
    def store(self, repository: Repository) -> VersionedStore:
        return repository.make().store(presign_from=0)
