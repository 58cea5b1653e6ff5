"""Snapshots of tables beyond memory: what leaves the files, lists longer than a shard, and a disk that fills."""

import dataclasses
import errno
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as parquet  # pyright: ignore[reportMissingTypeStubs]
import pytest

from ml_assets.data.features.encoding import EncodingError
from ml_assets.data.snapshots.builder import build_snapshot, write_index
from ml_assets.data.snapshots.partitions import store_partitions
from ml_assets.data.snapshots.row_choice import ChosenRows, choose_rows
from ml_assets.data.snapshots.split_reader import SPLITS, Snapshot, SourceValues
from ml_assets_tests.snapshots.chosen_rows import chosen_rows
from ml_assets_tests.training.list_snapshots import list_snapshot, sessions
from ml_assets_tests.training.small_jobs import INPUTS, ROW_SPEC, feature_table, split_of
from ml_assets_tests.training.text_snapshots import text_snapshot
from resources.disk import DiskFull
from resources.pool import PartitionPool, TaskFailed, ThisProcess
from resources.pool.processes import ProcessPool

SOURCE = SourceValues(table="features/small")


def test_a_column_that_no_training_reads_stays_in_its_files(tmp_path: Path) -> None:
    """Its bytes may be damaged: nobody notices."""
    table = feature_table().with_columns(pl.Series("unread", np.random.default_rng(0).random(1400)))
    split = split_of(table)
    digests: list[str] = []
    for name, damages in (("whole", False), ("damaged", True)):
        partitions = store_partitions(table, "date", tmp_path / name)
        for one in partitions if damages else ():
            _damage(one.files[0], "unread")
        chosen = choose_rows(partitions, split, ROW_SPEC, INPUTS, into=tmp_path / "runs")
        digests.append(build_snapshot(chosen, source=SOURCE, into=tmp_path / "snapshots").digest)
    assert digests[0] == digests[1]
    with pytest.raises((pl.exceptions.PolarsError, OSError)):
        partitions[0].scan(["unread"]).collect()


def _damage(file: Path, column: str) -> None:
    group: Any = parquet.read_metadata(file).row_group(0)  # pyright: ignore
    (chunk,) = (one for i in range(group.num_columns) if (one := group.column(i)).path_in_schema == column)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    content = bytearray(file.read_bytes())
    content[begin : begin + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    file.write_bytes(content)


@pytest.mark.parametrize("pool", [ThisProcess(), ProcessPool(2, 0)], ids=["here", "workers"])
def test_a_damaged_column_names_its_partition(pool: PartitionPool, tmp_path: Path) -> None:
    table = feature_table()
    partitions = store_partitions(table, "date", tmp_path / "table")
    _damage(partitions[2].files[0], "x0")
    with pytest.raises(TaskFailed, match=rf"partition {partitions[2].key} \(3 of {len(partitions)}\): "):
        choose_rows(partitions, split_of(table), ROW_SPEC, INPUTS, into=tmp_path / "runs", pool=pool)
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("pool", [ThisProcess(), ProcessPool(2, 0)], ids=["here", "workers"])
def test_a_number_beyond_float32_is_refused_by_its_column(pool: PartitionPool, tmp_path: Path) -> None:
    """Found in a partition by its second pass, as an error of its own type."""
    table = feature_table()
    split = split_of(table)
    huge = pl.when(pl.col("date").cast(pl.String) == split.holdout[0]).then(1e300).otherwise(pl.col("x0"))
    partitions = store_partitions(table.with_columns(huge.alias("x0")), "date", tmp_path / "table")
    chosen = choose_rows(partitions, split, ROW_SPEC, INPUTS, into=tmp_path / "runs")
    with pytest.raises(EncodingError, match="column 'x0' holds inf in") as error:
        build_snapshot(chosen, source=SOURCE, into=tmp_path / "snapshots", pool=pool, here=pool)
    assert error.value.columns == ("x0",)
    assert not list((tmp_path / "snapshots").iterdir())


@pytest.mark.parametrize("column", ["x0", "colour"])
@pytest.mark.parametrize("fault", ["missing", "type"])
def test_columns_of_a_given_state_are_refused_like_columns_to_fit(column: str, fault: str) -> None:
    """Before a row is read: the state of an earlier version (init_from) names columns of its own table."""
    table = feature_table()
    fitted = chosen_rows(table, split_of(table), ROW_SPEC, INPUTS).fitted
    refused: list[str] = []
    for inputs in (INPUTS, fitted):
        changed = table.drop(column) if fault == "missing" else table.with_columns(pl.lit(b"x").alias(column))
        with pytest.raises(EncodingError) as error:
            chosen_rows(changed, split_of(table), ROW_SPEC, inputs)
        assert error.value.columns == (column,)
        refused.append(str(error.value))
    assert refused[0] == refused[1]


def test_a_list_longer_than_a_shard_is_a_shard(tmp_path: Path) -> None:
    table = sessions(sizes=(400, 3, 2))
    snapshot = list_snapshot(tmp_path, table, shard_bytes=2_000)
    for split in SPLITS:
        shards = snapshot.shards_of(split)
        assert [shard.lists for shard in shards] == [1] * len(shards)
        assert max(shard.rows for shard in shards) == 400
        taken = np.sort(np.concatenate([snapshot.map(shard).row for shard in shards]))
        assert len(taken) == snapshot.rows(split) == len(np.unique(taken))


def test_an_index_is_the_same_file_however_its_rows_are_divided(tmp_path: Path) -> None:
    """Row groups of Parquet begin where they did when all rows were in one array."""
    rows = np.flatnonzero(np.random.default_rng(3).random(3_000_000) < 0.9)
    found = [
        write_index(tmp_path, "train", parts).sha256
        for parts in ([rows], np.array_split(rows, 7), [rows[:0], rows[:10], rows[10:]])
    ]
    assert len(set(found)) == 1
    assert parquet.read_metadata(tmp_path / "train.index.parquet").num_row_groups == 3  # pyright: ignore


def _chosen() -> ChosenRows:
    table = feature_table()
    return chosen_rows(table, split_of(table), ROW_SPEC, INPUTS)


def test_a_disk_without_room_is_refused_before_a_row_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, usage = _chosen(), namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 1_000))
    with pytest.raises(DiskFull, match=r"0\.1 MB are needed, 0\.0 MB of 1\.0 GB are free.*ML_ASSETS_HOME"):
        build_snapshot(chosen, source=SOURCE, into=tmp_path / "snapshots")
    assert list((tmp_path / "snapshots").iterdir()) == []


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV])
def test_a_disk_without_hard_links_holds_the_same_snapshot(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As exFAT and SMB answer, and the artifacts on another disk."""
    chosen = _chosen()
    linked = build_snapshot(chosen, source=SOURCE, into=tmp_path / "linked")

    def refuse(path: Path, target: Path) -> None:
        raise OSError(code, "no hard links")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    copied = build_snapshot(chosen, source=SOURCE, into=tmp_path / "copied")
    assert copied.digest == linked.digest
    assert [one.name for one in (tmp_path / "copied").iterdir()] == [linked.digest[:16]]


@pytest.mark.parametrize("suffix", [".rows", ".train", ".numbers", ".texts"])
def test_a_disk_that_fills_leaves_nothing_and_names_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Files of this suffix are on the device that is always full, while they are written."""
    opened = Path.open

    def full(path: Path, *how: Any, **more: Any) -> Any:
        return opened(Path("/dev/full") if f"{suffix}." in path.name else path, *how, **more)

    table = feature_table()
    partitions = store_partitions(table, "date", tmp_path / "table")
    monkeypatch.setattr(Path, "open", full)
    into = tmp_path / "snapshots"

    def build() -> Snapshot:
        chosen = choose_rows(partitions, split_of(table), ROW_SPEC, INPUTS, into=into)
        return build_snapshot(chosen, source=SOURCE, into=into)

    with pytest.raises(DiskFull, match=r"is full: [\d.]+ MB of \S+ were written.*ML_ASSETS_HOME"):
        build()
    assert list(into.iterdir()) == []


@pytest.mark.parametrize("build", [list_snapshot, text_snapshot])
def test_shards_of_one_row_or_list_are_the_most(tmp_path: Path, build: Callable[..., Snapshot]) -> None:
    """More shards than a partition has rows: most places in its file are empty."""
    few, many = build(tmp_path / "few", shard_bytes=10**9), build(tmp_path / "many", shard_bytes=1)
    for split in SPLITS:
        assert [shard.units for shard in few.shards_of(split)] == [few.shards_of(split)[0].units]
        assert {shard.units for shard in many.shards_of(split)} == {1}
        rows = [np.sort(one.read(split).row).tolist() for one in (few, many)]
        assert rows[0] == rows[1]
        assert dataclasses.asdict(few.index_of(split)) == dataclasses.asdict(many.index_of(split))
