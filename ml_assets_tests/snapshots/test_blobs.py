"""Blobs lie in tar archives beside the shards, row by row, and a change of one byte is noticed."""

import dataclasses
import tarfile
from pathlib import Path

import polars as pl
import pytest

from ml_assets.data.snapshots import scatter
from ml_assets.data.snapshots.builder import build_snapshot
from ml_assets.data.snapshots.partitions import PartitionFiles
from ml_assets.data.snapshots.row_choice import choose_rows
from ml_assets.data.snapshots.row_rules import NO_BLOB
from ml_assets.data.snapshots.spec import InputColumns
from ml_assets.data.snapshots.split_reader import (
    ShardChanged,
    Snapshot,
    SnapshotError,
    SourceValues,
    open_snapshot,
    verify,
)
from ml_assets_tests.snapshots.chosen_rows import chosen_rows, taken
from ml_assets_tests.training.small_jobs import small_snapshot, split_of
from ml_assets_tests.training.text_snapshots import SPEC, stored, text_snapshot, text_table


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return text_snapshot(tmp_path_factory.mktemp("snapshots"))


def assert_blobs_of_rows(snapshot: Snapshot) -> None:
    for shard in snapshot.shards:
        rows = snapshot.map(shard)
        assert rows.blobs is not None
        assert len(rows.blobs) == len(rows) == shard.rows
        for i, row in enumerate(rows.row.tolist()):
            assert rows.blobs[i] == stored(row)


def test_each_row_has_its_blob_in_the_archive_of_its_shard(snapshot: Snapshot) -> None:
    assert len(snapshot.shards_of("train")) > 2
    assert_blobs_of_rows(snapshot)
    whole = snapshot.read("train")
    assert whole.blobs is not None
    assert [whole.blobs[i] for i in range(len(whole))] == [stored(row) for row in whole.row.tolist()]


def test_any_tool_reads_an_archive_in_the_order_of_its_rows(snapshot: Snapshot) -> None:
    for shard in snapshot.shards:
        assert shard.blobs is not None
        with tarfile.open(snapshot.folder / shard.blobs.path) as archive:
            found = [(member.name, archive.extractfile(member).read()) for member in archive]  # pyright: ignore
        rows = snapshot.map(shard).row.tolist()
        assert found == [(f"{row:012d}.bin", stored(row)) for row in rows]


def test_shards_come_near_the_size_asked_for_with_their_blobs(tmp_path: Path) -> None:
    snapshot = text_snapshot(tmp_path, shard_bytes=40_000)
    sizes = [shard.rows for shard in snapshot.shards_of("train")]
    assert max(sizes) - min(sizes) <= 1
    for shard in snapshot.shards_of("train"):
        assert 20_000 < sum(file.bytes for file in shard.files) < 60_000
    few = text_snapshot(tmp_path, text_table(days=5, rows_a_day=2), shard_bytes=1)
    assert [shard.rows for shard in few.shards_of("train")] == [1, 1]


def test_a_table_of_many_files_is_read_a_few_blobs_at_a_time(
    tmp_path: Path, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = text_table()
    files = [tmp_path / f"part-{i}.parquet" for i in range(30)]
    for i, file in enumerate(files):
        table.slice(10 * i, 10).write_parquet(file)
    monkeypatch.setattr(scatter, "_BLOBS_AT_ONCE", 500)
    split = split_of(table)
    partitions = [
        PartitionFiles(key=key, rows=30, files=tuple(files[3 * i : 3 * i + 3]))
        for i, key in enumerate(split.keys)
    ]
    into, inputs = tmp_path / "snapshots", InputColumns(numeric=("length",))
    chosen = choose_rows(partitions, split, SPEC, inputs, into=into)
    source = SourceValues(table="features/small")
    scanned = build_snapshot(chosen, source=source, into=into, shard_bytes=60_000)
    assert scanned.digest == snapshot.digest
    assert_blobs_of_rows(scanned)


def test_rows_without_a_blob_are_left_out_and_counted() -> None:
    table = text_table(days=3, rows_a_day=10)
    table = table.with_columns(
        pl.when(pl.int_range(pl.len()) % 10 == 3).then(None).otherwise(pl.col("text")).alias("text")
    )
    chosen = chosen_rows(table, split_of(table, 1, 1), SPEC)
    assert [(p.rows, p.excluded) for p in chosen.index()] == [(9, {NO_BLOB: 1})] * 3
    assert "text" not in taken(chosen, "train").columns


def test_blobs_that_are_not_bytes_are_refused() -> None:
    table = text_table(days=3).with_columns(pl.lit("words").alias("text"))
    with pytest.raises(SnapshotError, match=r"'text' are String: .*Binary"):
        chosen_rows(table, split_of(table, 1, 1), SPEC)
    with pytest.raises(SnapshotError, match="no column \\['text'\\]"):
        chosen_rows(table.drop("text"), split_of(table, 1, 1), SPEC)


def test_a_changed_archive_is_named(tmp_path: Path) -> None:
    snapshot = text_snapshot(tmp_path)
    assert open_snapshot(snapshot.folder, snapshot.digest) == snapshot
    verify(snapshot, snapshot.shards)
    archive = snapshot.folder / "train-00001.tar"
    content = archive.read_bytes()
    archive.write_bytes(content[:600] + bytes([content[600] ^ 1]) + content[601:])
    with pytest.raises(ShardChanged, match=r"train-00001.tar changed"):
        verify(snapshot, snapshot.shards)
    archive.write_bytes(content[:2000])
    with pytest.raises(ShardChanged, match=r"archive ends before .*blob"):
        snapshot.map(snapshot.shards[1])
    archive.unlink()
    with pytest.raises(ShardChanged, match=r"train-00001.tar"):
        verify(snapshot, snapshot.shards)


def test_a_snapshot_without_blobs_is_another_than_one_with(tmp_path: Path) -> None:
    snapshot = small_snapshot(tmp_path)
    assert (snapshot.inputs.blob, {shard.blobs for shard in snapshot.shards}) == ("", {None})
    named = dataclasses.replace(snapshot, inputs=dataclasses.replace(snapshot.inputs, blob="x"))
    assert named.digest != snapshot.digest
    assert snapshot.read("train").blobs is None


def test_an_empty_blob_is_a_blob(tmp_path: Path) -> None:
    table = text_table(days=5, rows_a_day=4).with_columns(pl.lit(b"").alias("text"))
    blobs = text_snapshot(tmp_path, table).read("train").blobs
    assert blobs is not None
    assert [blobs[i] for i in range(4)] == [b""] * 4
