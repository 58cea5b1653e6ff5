"""Common parts of the tests' trainings."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.process.group import Group
from ml_assets_tests.training.lab_package import write_lab
from ml_assets_tests.training.rank_processes import one_rank
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from ml_assets_tests.training.watcher import Unbroken, Watcher


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """Small; a module that changes its files makes one of its own."""
    return small_snapshot(tmp_path_factory.mktemp("snapshots"))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, snapshot: Snapshot) -> Unbroken:
    """The job of most tests here, trained without any trouble."""
    job, folder, watcher = small_job(snapshot), tmp_path_factory.mktemp("job"), Watcher()
    return job, folder, watcher.run(job, folder), watcher


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    """Group of one rank, this process."""
    with one_rank() as group:
        yield group


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a package beside the platform."""
    return write_lab(tmp_path / "code", monkeypatch)
