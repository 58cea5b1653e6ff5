"""The embedded lake, and an environment's view of it, keep the contract of every lake."""

from pathlib import Path

import pytest

from ml_assets_tests.resources.lake.lake_contract import VersionedStoreContract
from ml_assets_tests.resources.lake.ref_contract import RefContract
from resources.lake import RefNotFound, VersionedStore
from resources.lake.environment_view import EnvironmentView
from resources.lake.local import LocalStore


class TestLocalStore(VersionedStoreContract, RefContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> VersionedStore:
        return LocalStore(tmp_path / "lake")


class TestEnvironmentView(VersionedStoreContract, RefContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> VersionedStore:
        whole = LocalStore(tmp_path / "lake")
        whole.create_branch("env-mine", "main")
        return EnvironmentView(whole, "mine")


def test_environments_see_neither_main_nor_each_other(tmp_path: Path) -> None:
    whole = LocalStore(tmp_path)
    for name in ("one", "one_more"):
        whole.create_branch(f"env-{name}", "main")
    one, more = EnvironmentView(whole, "one"), EnvironmentView(whole, "one_more")
    one.create_branch("audit", "main")
    one.put("audit", "datasets/x", b"1")
    one.commit("audit", "write", {})
    one.merge("audit", "main", "publish", {})
    whole.create_branch("evidence", "main")
    assert [entry.path for entry in one.list("main")] == ["datasets/x"]
    assert more.list("main") == whole.list("main") == []
    assert list(one.branches()) == ["audit", "main"]
    assert list(more.branches()) == ["main"]
    assert one.resolve("evidence") == whole.resolve("evidence")
    with pytest.raises(RefNotFound):
        one.delete_branch("evidence")
