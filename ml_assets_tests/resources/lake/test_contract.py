"""The embedded lake, and an environment's view of it, keep the contract of every lake."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ml_assets_tests.resources.lake.lake_contract import VersionedStoreContract
from ml_assets_tests.resources.lake.ref_contract import RefContract
from resources.lake import RefNotFound, VersionedStore
from resources.lake.environments import EnvironmentView
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


def test_the_later_commit_has_the_later_time_after_a_clock_was_set_back(tmp_path: Path) -> None:
    """The online store takes the row of the later commit for the correction."""
    store = LocalStore(tmp_path)
    root = store.resolve("main")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    with closing(sqlite3.connect(tmp_path / "refs.db")) as database:  # as a clock ahead would have written it
        change = "UPDATE commits SET body = json_set(body, '$.created_at', ?) WHERE id = ?"
        database.execute(change, (tomorrow.isoformat(), root))
        database.commit()
    store.create_branch("audit", root)
    store.put("audit", "datasets/x", b"1")
    written = store.commit("audit", "write", {})
    merged = store.merge("audit", "main", "publish", {})
    times = [store.read_commit(one).created_at for one in (written, merged)]
    assert tomorrow < times[0] < times[1]


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
