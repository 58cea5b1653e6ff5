"""The embedded lake keeps the contract of every lake."""

from pathlib import Path

import pytest

from ml_assets_tests.resources.lake.lake_contract import VersionedStoreContract
from ml_assets_tests.resources.lake.ref_contract import RefContract
from resources.lake import VersionedStore
from resources.lake.local import LocalStore


class TestLocalStore(VersionedStoreContract, RefContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> VersionedStore:
        return LocalStore(tmp_path / "lake")
