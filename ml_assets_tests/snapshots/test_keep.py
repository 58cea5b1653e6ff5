"""Training data stays reachable: a branch before the launch, then one of the version."""

from dataclasses import replace
from pathlib import Path

import pytest

from ml_assets.snapshots.keep import keep_branch, keep_snapshot, version_branch
from ml_assets.snapshots.split_reader import FITTED, MANIFEST, Snapshot
from ml_assets_tests.training.small_jobs import small_snapshot
from resources.lake.local import LocalStore

MODEL, DAY = "habits", "2013-02-01"
BUNDLE = "b" * 64
FINGERPRINT = "0123456789abcdef" * 4
BRANCH = keep_branch(FINGERPRINT)


@pytest.fixture
def lake(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "lake")
    store.create_branch("rows", "main")
    store.put("rows", "features/habits/part.parquet", b"rows")
    store.commit("rows", "Rows", {})
    return store


@pytest.fixture
def snapshot(tmp_path: Path, lake: LocalStore) -> Snapshot:
    return _read_at(lake.resolve("rows"), tmp_path / "snapshots")


def _read_at(commit: str, into: Path) -> Snapshot:
    """A snapshot whose rows were read at `commit`."""
    snapshot = replace(small_snapshot(into), source_commit=commit)
    manifest = snapshot.folder / MANIFEST
    manifest.chmod(0o644)
    manifest.write_text(snapshot.to_json())
    return snapshot


def _keep(lake: LocalStore, snapshot: Snapshot, branch: str = BRANCH, run: str = "run-1") -> str:
    return keep_snapshot(lake, snapshot, MODEL, DAY, branch, {"dagster_run": run})


def test_one_commit_holds_the_documents_and_the_rows_they_name(lake: LocalStore, snapshot: Snapshot) -> None:
    commit = _keep(lake, snapshot)
    assert BRANCH == "keep-run-0123456789ab"
    assert lake.branches("keep-") == {BRANCH: commit}
    assert lake.read_commit(commit).parents == (snapshot.source_commit,)
    folder = f"snapshots/{MODEL}/{DAY}"
    assert [stat.path for stat in lake.list(commit)] == [
        "features/habits/part.parquet", f"{folder}/{FITTED}", f"{folder}/holdout.index.parquet", f"{folder}/{MANIFEST}",
        f"{folder}/train.index.parquet", f"{folder}/validation.index.parquet",
    ]  # fmt: skip
    stored = lake.fetch(commit, [f"{folder}/{MANIFEST}"])
    assert next(iter(stored.values())).read_text() == (snapshot.folder / MANIFEST).read_text()


def test_the_commit_says_which_run_and_which_snapshot(lake: LocalStore, snapshot: Snapshot) -> None:
    metadata = lake.read_commit(_keep(lake, snapshot)).metadata
    assert metadata["dagster_run"] == "run-1"
    assert metadata["snapshot"] == snapshot.digest


def test_a_retry_before_the_model_is_registered_changes_nothing(lake: LocalStore, snapshot: Snapshot) -> None:
    assert _keep(lake, snapshot, run="run-2") == _keep(lake, snapshot, run="run-3")


def test_a_run_cut_off_between_branch_and_commit_is_continued(lake: LocalStore, snapshot: Snapshot) -> None:
    lake.create_branch(BRANCH, snapshot.source_commit)
    commit = _keep(lake, snapshot)
    assert lake.branches(BRANCH) == {BRANCH: commit}
    assert commit != snapshot.source_commit


def test_a_new_registry_keeps_the_inputs_of_both_first_versions(lake: LocalStore, snapshot: Snapshot) -> None:
    """The lake keeps the input of version 1 of the old registry and of version 1 of the new one."""
    first = _keep(lake, snapshot)
    _register(lake, first, 1)
    later = lake.create_branch("later", "main")
    lake.keep(version_branch(MODEL, 1, "c" * 64), later)
    assert lake.branches("keep-") == {
        "keep-habits-v1-bbbbbbbbbbbb": first,
        "keep-habits-v1-cccccccccccc": later,
    }


def _register(lake: LocalStore, commit: str, number: int) -> None:
    """Do with the branches what registering does."""
    lake.keep(version_branch(MODEL, number, BUNDLE), commit)
    lake.release(BRANCH)


def test_the_job_of_a_registered_version_finds_its_commit(lake: LocalStore, snapshot: Snapshot) -> None:
    first = _keep(lake, snapshot)
    _register(lake, first, 1)
    again = _keep(lake, snapshot, run="run-2")
    assert again == first
    _register(lake, again, 1)
    assert lake.branches("keep-") == {"keep-habits-v1-bbbbbbbbbbbb": first}


def test_a_snapshot_built_again_from_a_later_commit_finds_the_version(
    lake: LocalStore, snapshot: Snapshot, tmp_path: Path
) -> None:
    first = _keep(lake, snapshot)
    _register(lake, first, 1)
    lake.put("rows", "datasets/other/part.parquet", b"other")
    later = _read_at(lake.commit("rows", "More", {}), tmp_path / "rebuilt")
    assert later.digest == snapshot.digest
    assert _keep(lake, later) == first


def test_another_job_on_the_same_snapshot_has_a_commit_of_its_own(
    lake: LocalStore, snapshot: Snapshot
) -> None:
    first = _keep(lake, snapshot)
    _register(lake, first, 1)
    other = _keep(lake, snapshot, branch=keep_branch("f" * 64), run="run-2")
    assert other != first
    assert lake.read_commit(other).metadata["dagster_run"] == "run-2"
