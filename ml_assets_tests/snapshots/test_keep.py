"""Training data stays reachable: a branch before the launch, then one of the version."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from ml_assets.data.snapshots.keep import (
    KeptInput,
    commit_that_keeps,
    keep_branch,
    keep_snapshot,
    version_branch,
)
from ml_assets.data.snapshots.split_reader import FITTED, MANIFEST, Snapshot
from ml_assets_tests.training.small_jobs import small_snapshot
from resources.lake.local import LocalStore

MODEL, DAY = "habits", "2013-02-01"
BUNDLE = "b" * 64
FINGERPRINT = "0123456789abcdef" * 4
WINDOW, OTHER_WINDOW = "a" * 64, "d" * 64
"""Digests of the partitions that were read."""
BRANCH = keep_branch(FINGERPRINT, WINDOW)


@pytest.fixture
def lake(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "lake")
    store.create_branch("rows", "main")
    store.put("rows", "features/habits/part.parquet", b"rows")
    store.commit("rows", "Rows", {})
    return store


@dataclass(frozen=True)
class Read:
    """A snapshot, and the commit at which a run read its rows."""

    snapshot: Snapshot
    commit: str


@pytest.fixture
def read(tmp_path: Path, lake: LocalStore) -> Read:
    return Read(small_snapshot(tmp_path / "snapshots"), lake.resolve("rows"))


def _later(lake: LocalStore, read: Read) -> Read:
    """The same snapshot, read at a commit that came later."""
    lake.put("rows", "datasets/other/part.parquet", b"other")
    return Read(read.snapshot, lake.commit("rows", "More", {}))


def _keep(lake: LocalStore, read: Read, branch: str = BRANCH, run: str = "run-1") -> KeptInput:
    facts = {"dagster_run": run}
    return keep_snapshot(lake, read.snapshot, read.commit, MODEL, DAY, branch, facts)


def test_one_commit_holds_the_documents_and_the_rows_they_name(lake: LocalStore, read: Read) -> None:
    kept = _keep(lake, read)
    commit = kept.commit
    assert BRANCH == "keep-run-0123456789ab-aaaaaaaaaaaa"
    assert lake.branches("keep-") == {BRANCH: commit}
    assert lake.read_commit(commit).parents == (read.commit,) == (kept.source_commit,)
    folder = f"snapshots/{MODEL}/{DAY}"
    assert [stat.path for stat in lake.list(commit)] == [
        "features/habits/part.parquet", f"{folder}/{FITTED}", f"{folder}/holdout.index.parquet", f"{folder}/{MANIFEST}",
        f"{folder}/train.index.parquet", f"{folder}/validation.index.parquet",
    ]  # fmt: skip
    stored = lake.fetch(commit, [f"{folder}/{MANIFEST}"])
    assert next(iter(stored.values())).read_text() == (read.snapshot.folder / MANIFEST).read_text()


def test_the_commit_says_which_run_and_which_snapshot(lake: LocalStore, read: Read) -> None:
    metadata = lake.read_commit(_keep(lake, read).commit).metadata
    assert metadata["dagster_run"] == "run-1"
    assert metadata["snapshot"] == read.snapshot.digest


def test_a_retry_before_the_model_is_registered_changes_nothing(lake: LocalStore, read: Read) -> None:
    assert _keep(lake, read, run="run-2") == _keep(lake, read, run="run-3")


def test_a_run_cut_off_between_branch_and_commit_is_continued(lake: LocalStore, read: Read) -> None:
    lake.create_branch(BRANCH, read.commit)
    assert commit_that_keeps(lake, MODEL, FINGERPRINT, BUNDLE, lake.resolve("main")) is None
    kept = _keep(lake, _later(lake, read))
    assert lake.branches(BRANCH) == {BRANCH: kept.commit}
    assert kept.commit != kept.source_commit == read.commit


def test_a_new_registry_keeps_the_inputs_of_both_first_versions(lake: LocalStore, read: Read) -> None:
    """The lake keeps the input of version 1 of the old registry and of version 1 of the new one."""
    first = _keep(lake, read)
    _register(lake, first, 1)
    later = lake.create_branch("later", "main")
    lake.keep(version_branch(MODEL, 1, "c" * 64, later), later)
    assert lake.branches("keep-") == {
        f"keep-habits-v1-bbbbbbbbbbbb-{read.commit[:12]}": first.commit,
        f"keep-habits-v1-cccccccccccc-{later[:12]}": later,
    }


def _register(lake: LocalStore, kept: KeptInput, number: int, branch: str = BRANCH) -> None:
    """Do with the branches what registering does."""
    lake.keep(version_branch(MODEL, number, BUNDLE, kept.source_commit), kept.commit)
    lake.release(branch)


def test_the_job_of_a_registered_version_finds_its_commit(lake: LocalStore, read: Read) -> None:
    first = _keep(lake, read)
    _register(lake, first, 1)
    again = _keep(lake, read, run="run-2")
    assert again == first
    _register(lake, again, 1)
    assert list(lake.branches("keep-").values()) == [first.commit]


def test_the_same_partitions_at_a_later_commit_find_the_version(lake: LocalStore, read: Read) -> None:
    """Main moves on with other tables, which this training does not read."""
    first = _keep(lake, read)
    _register(lake, first, 1)
    assert _keep(lake, _later(lake, read)) == first


def test_other_partitions_of_the_same_snapshot_are_kept_beside(lake: LocalStore, read: Read) -> None:
    """A column changed that the training does not read. Both inputs stay: an evaluation names each."""
    first = _keep(lake, read)
    _register(lake, first, 1)
    later, branch = _later(lake, read), keep_branch(FINGERPRINT, OTHER_WINDOW)
    second = _keep(lake, later, branch)
    assert second.source_commit == later.commit != first.source_commit
    found = [
        commit_that_keeps(lake, MODEL, FINGERPRINT, BUNDLE, one.source_commit) for one in (first, second)
    ]
    assert found == [first.commit, second.commit]
    _register(lake, second, 1, branch)
    assert set(lake.branches("keep-").values()) == {first.commit, second.commit}
    assert commit_that_keeps(lake, MODEL, FINGERPRINT, BUNDLE, later.commit) == second.commit
    assert commit_that_keeps(lake, MODEL, "f" * 64, "c" * 64, later.commit) is None


def test_another_job_on_the_same_snapshot_has_a_commit_of_its_own(lake: LocalStore, read: Read) -> None:
    first = _keep(lake, read)
    _register(lake, first, 1)
    other = _keep(lake, read, branch=keep_branch("f" * 64, WINDOW), run="run-2")
    assert other.commit != first.commit
    assert lake.read_commit(other.commit).metadata["dagster_run"] == "run-2"
