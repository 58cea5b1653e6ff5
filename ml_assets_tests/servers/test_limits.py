"""A full disk and a container's memory limit, made by root: what a person reads, and that the next launch works."""

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch

from ml_assets.model.training.checkpoint.checkpoints import Checkpoints
from ml_assets_tests.cli.end_to_end.greedy_source import HOW, launch
from ml_assets_tests.components.installation import Installation, failure_of
from ml_assets_tests.components.readings_pipeline import READINGS, days
from ml_assets_tests.servers.small_disk import small_disk
from ml_assets_tests.training.rank_processes import one_rank, save
from ml_assets_tests.training.small_jobs import feature_table, small_snapshot
from resources.artifacts import FolderArtifacts
from resources.disk import DiskFull, full_disk_text
from resources.job.errors import StorageFailed

TABLE, WEEK = "datasets/sales", "2024-01-01"
CGROUP = Path("/sys/fs/cgroup")
LIMIT = 1_500_000_000
"""Bytes; a launch holds a third of it."""


@contextmanager
def _limited_group() -> Iterator[Path]:
    """Yield a new cgroup with a memory limit, of version 2 or 1."""
    is_version_2 = (CGROUP / "cgroup.controllers").exists()
    group = (CGROUP if is_version_2 else CGROUP / "memory") / f"ml-assets-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.max" if is_version_2 else "memory.limit_in_bytes")).write_text(str(LIMIT))
        yield group
    finally:
        # A killed process leaves its group when somebody has read its end: it may be a grandchild.
        deadline = time.monotonic() + 60.0
        while not _is_removed(group):
            assert time.monotonic() < deadline, f"{group} still has processes"
            time.sleep(0.2)


def _is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def test_a_launch_that_the_kernel_killed_says_limit_and_remedy(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / HOW).write_text("polars")
    with _limited_group() as group:
        died = launch(
            home, TABLE, WEEK, limited=lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
        )
        (home / HOW).unlink()
    assert died.returncode == -9, died.stderr
    assert (
        f"OutOfMemory: {TABLE} of {WEEK} ran out of memory: the kernel killed it. Its process held"
        in died.stderr
    )
    assert (
        f"may hold 1.5 GB (memory.limit_in_bytes of {group}). Raise the limit of the container" in died.stderr
    )
    assert launch(home, TABLE, WEEK).returncode == 0


def test_a_kill_for_memory_of_another_process_is_not_the_runs(tmp_path: Path) -> None:
    """The kernel counts the kills of a cgroup, and somebody kills the run later."""
    home = tmp_path / "home"
    home.mkdir()
    (home / HOW).write_text("child")
    with _limited_group() as group:
        died = launch(
            home, TABLE, WEEK, limited=lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
        )
    assert died.returncode == -9, died.stderr
    assert "OutOfMemory" not in died.stderr


def test_a_full_disk_under_the_lake_is_named_and_the_next_run_lands(tmp_path: Path) -> None:
    home, (day,) = tmp_path / "home", days(1)
    home.mkdir()
    with small_disk(home / "lake", 600) as disk:
        installation = Installation(home)
        filler = disk / "filler"
        filler.write_bytes(bytes(shutil.disk_usage(disk).free - 8192))
        why = failure_of(installation.run(READINGS, partition=day))
        assert why.startswith(f"DiskFull: the disk of {disk}"), why
        assert "of 0.6 MB are free. Free space there" in why
        filler.unlink()
        assert installation.main.keys(READINGS) == []
        assert installation.run(READINGS, partition=day).success
        assert installation.main.keys(READINGS) == [day]


def test_a_full_disk_under_the_cache_leaves_no_half_snapshot(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "cache", 100) as disk,
        pytest.raises(DiskFull, match=r"MB are needed, .* are free"),
    ):
        small_snapshot(disk, feature_table(rows_a_day=2000))
    with small_disk(tmp_path / "larger", 10_000) as disk:
        assert small_snapshot(disk).folder.parent == disk


def test_a_full_disk_under_the_artifacts_leaves_no_half_file(tmp_path: Path) -> None:
    with small_disk(tmp_path / "artifacts", 100) as disk:
        artifacts = FolderArtifacts(disk)
        with (
            pytest.raises(DiskFull, match=r"MB of .*\.writing were written, 0.0 MB of 0.1 MB are free"),
            artifacts.create("bundles/1", "model") as file,
        ):
            file.write(bytes(200_000))
        assert artifacts.files("bundles/1") == {}


def test_a_full_disk_under_the_checkpoints_keeps_the_one_before(tmp_path: Path) -> None:
    with small_disk(tmp_path / "job", 200) as disk, one_rank():
        checkpoints = Checkpoints(disk, 3, "f")
        save(checkpoints, 1, {"parameters": {"weight": torch.zeros(100)}, "progress": {"step": 1}})
        with pytest.raises(StorageFailed, match=r"the disk is full, .* of 0.2 MB are free"):
            save(checkpoints, 2, {"parameters": {"weight": torch.zeros(100_000)}, "progress": {"step": 2}})
        assert checkpoints.newest_good() == 1


def test_any_library_that_finds_a_disk_full_is_told_apart(tmp_path: Path) -> None:
    """polars and SQLAlchemy have errors of their own for it."""
    rows = pl.DataFrame({"value": np.random.default_rng(1).random(100_000)})
    with small_disk(tmp_path / "disk", 100) as disk:
        writers: list[Callable[[], object]] = [
            lambda: rows.write_parquet(disk / "polars"),
            lambda: rows.lazy().sink_parquet(disk / "streamed"),
            lambda: pq.write_table(rows.to_arrow(), disk / "arrow"),
            lambda: (disk / "bytes").write_bytes(bytes(200_000)),
            lambda: rows.write_database("rows", f"sqlite:///{disk}/sqlite", engine="sqlalchemy"),
        ]
        for write in writers:
            with pytest.raises(Exception) as failed:  # noqa: PT011 - each library has its own type
                write()
            said = full_disk_text(failed.value, [tmp_path, disk])
            assert said.startswith(f"DiskFull: the disk of {disk} is full: "), said
            for file in disk.iterdir():
                file.unlink()
