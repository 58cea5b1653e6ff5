"""Snapshots: which rows they take, that they are whole, and that a change of one byte is noticed."""

import dataclasses
import errno
import json
import os
import re
import stat
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ml_assets.data.features.encoding import FittedState
from ml_assets.data.snapshots.builder import build_snapshot, fitted_of, write_index
from ml_assets.data.snapshots.row_rules import LABEL_TOO_LATE, NO_LABEL
from ml_assets.data.snapshots.spec import Cutoffs, InputColumns
from ml_assets.data.snapshots.split_reader import (
    FITTED,
    MANIFEST,
    SPLITS,
    ShardChanged,
    Snapshot,
    SnapshotError,
    SourceValues,
    open_snapshot,
    verify,
)
from ml_assets.data.snapshots.split_rows import index_parts
from ml_assets_tests.snapshots.chosen_rows import chosen_rows, taken
from ml_assets_tests.training.small_jobs import (
    CATEGORICAL,
    INPUTS,
    NUMERIC,
    ROW_SPEC,
    SHARD_BYTES,
    feature_table,
    small_snapshot,
    split_of,
)
from resources.disk import DiskFull
from resources.files import UNFINISHED


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    return small_snapshot(tmp_path)


def test_every_row_of_the_splits_is_in_exactly_one_shard(snapshot: Snapshot) -> None:
    rows = [snapshot.map(shard).row for shard in snapshot.shards]
    assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(1400))
    assert [snapshot.rows(split) for split in SPLITS] == [1000, 200, 200]
    assert sum(partition.rows for partition in snapshot.index) == 1400


def test_the_index_of_a_split_names_the_rows_of_its_shards(snapshot: Snapshot) -> None:
    """Ascending numbers of rows of the table."""
    for split in SPLITS:
        numbers = np.concatenate(list(index_parts(snapshot, split)))
        assert np.array_equal(numbers, np.sort(snapshot.read(split).row))
    assert [(one.split, one.rows) for one in snapshot.splits] == [
        ("train", 1000), ("validation", 200), ("holdout", 200),
    ]  # fmt: skip
    assert all(one.bytes < 2_000 for one in snapshot.splits)


def test_other_rows_are_another_snapshot_and_never_read(snapshot: Snapshot) -> None:
    """Digest of the index in the manifest's, and checked when it is read."""
    index = snapshot.index_of("holdout")
    other = dataclasses.replace(index, sha256="f" * 64)
    splits = tuple(other if one is index else one for one in snapshot.splits)
    assert dataclasses.replace(snapshot, splits=splits).digest != snapshot.digest
    write_index(snapshot.folder, "holdout", [np.arange(1200, 1399)])
    with pytest.raises(ShardChanged, match=r"holdout\.index\.parquet changed"):
        next(index_parts(snapshot, "holdout"))


def test_a_manifest_without_an_index_names_the_remedy(snapshot: Snapshot) -> None:
    facts = json.loads((snapshot.folder / MANIFEST).read_text())
    del facts["splits"]
    (snapshot.folder / MANIFEST).write_text(json.dumps(facts))
    with pytest.raises(ShardChanged, match=r"lacks splits\. Materialize"):
        open_snapshot(snapshot.folder)


def test_training_shards_are_even_and_each_spans_the_window(snapshot: Snapshot) -> None:
    """Numbers of rows differ by one at most."""
    shards = snapshot.shards_of("train")
    sizes = [shard.rows for shard in shards]
    assert len(shards) == 3
    assert max(sizes) - min(sizes) <= 1
    for shard in shards:
        days = snapshot.map(shard).row // 100
        assert set(days.tolist()) == set(range(10))


@pytest.mark.parametrize("shard_bytes", [700, 3_000, 20_000, 10**9])
def test_shards_come_near_the_size_asked_for_and_hold_equally_many_rows(
    tmp_path: Path, shard_bytes: int
) -> None:
    snapshot = small_snapshot(tmp_path, shard_bytes=shard_bytes)
    row_bytes = 4 * (len(NUMERIC) + len(CATEGORICAL)) + 12
    for split in SPLITS:
        sizes = [shard.rows for shard in snapshot.shards_of(split)]
        assert max(sizes) - min(sizes) <= 1
        if len(sizes) > 1:
            assert shard_bytes / 1.5 < min(sizes) * row_bytes <= max(sizes) * row_bytes < shard_bytes * 1.5
        else:
            assert sizes[0] * row_bytes < shard_bytes * 1.5


def test_arrays_say_what_the_table_says(snapshot: Snapshot) -> None:
    table = feature_table()
    fitted = FittedState.from_json((snapshot.folder / FITTED).read_text())
    holdout = snapshot.read("holdout")
    numeric, category = fitted.encode(table.tail(200))
    assert np.array_equal(holdout.numeric, numeric, equal_nan=True)
    assert np.array_equal(holdout.category, category)
    assert holdout.label.tolist() == table.tail(200)["label"].to_list()
    assert snapshot.inputs.cardinalities == (4,)  # three colours and the unknown
    train = snapshot.read("train")
    assert train.label.tolist() == table["label"].gather(train.row).to_list()


def test_holdout_rows_for_evaluation_are_in_the_order_of_the_arrays(snapshot: Snapshot) -> None:
    table = feature_table()
    chosen = chosen_rows(table, split_of(table), ROW_SPEC)
    for split in ("validation", "holdout"):
        assert taken(chosen, split)["_row"].to_list() == snapshot.read(split).row.tolist()
        assert set(table.columns) < set(taken(chosen, split).columns)


def test_rows_whose_label_was_not_known_in_time_are_left_out_and_counted() -> None:
    table = feature_table(days=3, rows_a_day=10).with_columns(
        pl.when(pl.int_range(pl.len()) % 10 < 2).then(None).otherwise(pl.col("label")).alias("label")
    )
    # Labels are known at six in the morning of the next day.
    spec = dataclasses.replace(ROW_SPEC, cutoffs=Cutoffs.all_at(datetime(2024, 1, 3, 23, tzinfo=UTC)))
    late = table.with_columns(
        pl.when(pl.int_range(pl.len()) == 29)
        .then(datetime(2024, 1, 4, tzinfo=UTC))
        .otherwise(pl.lit(datetime(2024, 1, 3, tzinfo=UTC)))
        .cast(pl.Datetime("us", "UTC"))
        .alias("label_known_at")
    )
    chosen = chosen_rows(late, split_of(late, 1, 1), spec)
    assert [(p.key, p.split, p.rows, p.excluded) for p in chosen.index()] == [
        ("2024-01-01", "train", 8, {NO_LABEL: 2}),
        ("2024-01-02", "validation", 8, {NO_LABEL: 2}),
        ("2024-01-03", "holdout", 7, {NO_LABEL: 2, LABEL_TOO_LATE: 1}),
    ]
    with pytest.raises(
        SnapshotError,
        match=r"holdout.*2024-01-03 to 2024-01-03.*unknown: 2,",
    ):
        chosen_rows(table, split_of(table, 1, 1), spec)


def test_a_table_that_cannot_be_validated_is_refused_by_name() -> None:
    table = feature_table(days=3)
    split = split_of(table, 1, 1)
    with pytest.raises(SnapshotError, match="no column \\['label'\\]"):
        chosen_rows(table.drop("label"), split, ROW_SPEC)
    with pytest.raises(SnapshotError, match="a datetime in UTC"):
        chosen_rows(table.with_columns(pl.col("label_known_at").dt.replace_time_zone(None)), split, ROW_SPEC)
    with pytest.raises(SnapshotError, match="'label' is String"):
        chosen_rows(table.with_columns(pl.col("label").cast(pl.String)), split, ROW_SPEC)
    with pytest.raises(SnapshotError, match=r"float32.*300 of 300.*date=2024-01-01.*1e\+39"):
        chosen_rows(table.with_columns(label=pl.lit(1e39)), split, ROW_SPEC)
    with pytest.raises(SnapshotError, match=r"NaN.*300 of 300.*date=2024-01-01.*nan; "):
        chosen_rows(table.with_columns(label=pl.lit(float("nan"))), split, ROW_SPEC)
    with pytest.raises(SnapshotError, match="must be in UTC"):
        Cutoffs.all_at(datetime(2024, 1, 1))  # noqa: DTZ001


def test_a_label_that_teaches_nothing_or_the_wrong_thing_is_refused_by_row() -> None:
    table = feature_table(days=3).with_columns(id=pl.int_range(pl.len()))
    split = split_of(table, 1, 1)
    binary = dataclasses.replace(ROW_SPEC, objective="binary", primary_key=("date", "id"))
    odd = pl.when(pl.col("id").is_in([7, 250])).then(2).otherwise(pl.col("label"))
    with pytest.raises(SnapshotError) as refused:
        chosen_rows(table.with_columns(label=odd), split, binary)
    said = str(refused.value)
    assert re.findall("date=[^;]+", said) == ["date=2024-01-01, id=7 has 2", "date=2024-01-03, id=250 has 2"]
    facts = (
        "'label'",
        "neither 0 nor 1",
        "2 of 300 rows: date",
        "objective is binary",
        "objective regression",
    )
    assert [fact for fact in facts if fact not in said] == []
    chosen_rows(table.with_columns(label=odd), split, ROW_SPEC)
    count = dataclasses.replace(binary, objective="count")
    chosen_rows(table.with_columns(label=odd), split, count)
    halves = (
        pl.when(pl.col("id") == 7).then(2.5).when(pl.col("id") == 250).then(-1).otherwise(pl.col("label"))
    )
    with pytest.raises(SnapshotError) as refused:
        chosen_rows(table.with_columns(label=halves), split, count)
    said = str(refused.value)
    assert re.findall("date=[^;]+", said) == [
        "date=2024-01-01, id=7 has 2.5",
        "date=2024-01-03, id=250 has -1.0",
    ]
    facts = (
        "'label'",
        "not a whole number",
        "2 of 300 rows: date",
        "objective is count",
        "objective regression",
    )
    assert [fact for fact in facts if fact not in said] == []
    with pytest.raises(SnapshotError, match=r"'label' is 1.*100 training"):
        chosen_rows(
            table.with_columns(label=pl.when(pl.col("id") < 100).then(1).otherwise("label")), split, binary
        )
    with pytest.raises(SnapshotError, match=r"train split.*no row.*unknown: 100\. "):
        chosen_rows(table.with_columns(label=pl.lit(None, pl.Float32)), split, binary)


def test_classes_are_those_of_the_training_rows_and_a_new_one_is_refused() -> None:
    """Numbers are in their order. A class of validation or holdout that training lacks is refused by row."""
    table = feature_table(days=3).with_columns(id=pl.int_range(pl.len()))
    split = split_of(table, 1, 1)
    spec = dataclasses.replace(ROW_SPEC, objective="multiclass", primary_key=("date", "id"))
    numbers = table.with_columns(label=pl.col("id") % 12)
    chosen = chosen_rows(numbers, split, spec)
    assert chosen.fitted.classes == tuple(map(str, range(12)))
    words = table.with_columns(
        label=pl.when(pl.col("id") == 250).then(pl.lit("x")).otherwise(pl.col("colour"))
    )
    with pytest.raises(SnapshotError) as refused:
        chosen_rows(words, split, spec)
    said = str(refused.value)
    assert re.findall("date=[^;]+", said) == ["date=2024-01-03, id=250 has x"]
    facts = ("'label' has a class", "1 of 100 holdout", "longer window", "merge rare classes")
    assert [fact for fact in facts if fact not in said] == []
    with pytest.raises(SnapshotError, match=r"init_from.*not know.*train rows"):
        chosen_rows(numbers, split, spec, dataclasses.replace(chosen.fitted, classes=("0", "1")))
    many = split_of(feature_table(days=6), 1, 1)
    with pytest.raises(SnapshotError, match=r"more than 256 classes .*training rows.*: merge"):
        chosen_rows(feature_table(days=6).with_columns(label=pl.int_range(pl.len())), many, spec)
    with pytest.raises(SnapshotError, match=r"is Float32: .*multiclass, .*texts"):
        chosen_rows(table.with_columns(label=pl.col("x0")), split, spec)


def test_the_digest_names_the_content_not_the_place(tmp_path: Path) -> None:
    first = small_snapshot(tmp_path / "a")
    table = feature_table()
    chosen = chosen_rows(table, split_of(table), ROW_SPEC, INPUTS)

    def build(source: SourceValues) -> Snapshot:
        return build_snapshot(chosen, source=source, into=tmp_path / "b", shard_bytes=SHARD_BYTES)

    again = build(first.source)
    assert again.digest == first.digest
    assert (again.folder / MANIFEST).read_bytes() == (first.folder / MANIFEST).read_bytes()
    (key,) = first.source.partitions
    other = dataclasses.replace(first.source, partitions={key: "1" * 32})
    assert build(other).digest != first.digest
    flipped = table.with_columns(
        pl.when(pl.int_range(pl.len()) == 0)
        .then(1 - pl.col("label"))
        .otherwise(pl.col("label"))
        .alias("label")
    )
    assert small_snapshot(tmp_path / "c", flipped).digest != first.digest


def test_building_again_keeps_a_whole_folder_and_mends_a_damaged_one(tmp_path: Path) -> None:
    first = small_snapshot(tmp_path)
    shard = first.folder / first.shards[0].path
    before = shard.stat()
    assert small_snapshot(tmp_path) == first
    assert shard.stat().st_ino == before.st_ino
    shard.write_bytes(shard.read_bytes()[:-1])
    assert small_snapshot(tmp_path) == first
    verify(first, first.shards)
    for document in (first.folder / FITTED, first.folder / first.index_of("holdout").path):
        whole = document.read_bytes()
        document.write_bytes(whole.replace(b"red", b"rad") if document.suffix == ".json" else whole[:-1])
        assert small_snapshot(tmp_path) == first
        assert document.read_bytes() == whole  # the error of a damaged one says that it is made again
    assert [path.name for path in tmp_path.iterdir()] == [first.folder.name]


def test_a_disk_that_is_full_at_the_last_step_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(DiskFull, match="are free"):
        small_snapshot(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_builder_left_is_purged_a_day_later(tmp_path: Path) -> None:
    yesterday, just_now = tmp_path / f"{UNFINISHED}1", tmp_path / f"{UNFINISHED}2"
    for folder in (yesterday, just_now):
        folder.mkdir()
        (folder / "train-00000.arrow").write_bytes(b"half")
    os.utime(yesterday, (time.time() - 100_000,) * 2)
    snapshot = small_snapshot(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([just_now, snapshot.folder])


def test_the_snapshot_reads_back_as_it_was_written(snapshot: Snapshot) -> None:
    assert open_snapshot(snapshot.folder, snapshot.digest) == snapshot
    assert json.loads((snapshot.folder / MANIFEST).read_text())["digest"] == snapshot.digest


@pytest.mark.parametrize("change", ["flip a byte", "cut off", "another file", "delete"])
def test_a_changed_shard_is_named(snapshot: Snapshot, change: str) -> None:
    shard = snapshot.folder / snapshot.shards[0].path
    content = shard.read_bytes()
    if change == "delete":
        shard.unlink()
    elif change == "another file":
        shard.write_bytes((snapshot.folder / snapshot.shards[1].path).read_bytes())
    elif change == "cut off":
        shard.write_bytes(content[: len(content) // 2])
    else:
        shard.write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])
    with pytest.raises(ShardChanged, match=shard.name):
        verify(snapshot, snapshot.shards)


def test_a_manifest_without_lists_is_as_it_was_before_there_were_lists(snapshot: Snapshot) -> None:
    """So branches of registered versions keep their digests."""
    assert all("lists" not in shard for shard in json.loads(snapshot.to_json())["shards"])


def test_an_altered_or_missing_manifest_is_refused(snapshot: Snapshot, tmp_path: Path) -> None:
    manifest = snapshot.folder / MANIFEST
    text = manifest.read_text()
    manifest.write_text(text.replace('"rows": 100', '"rows": 99', 1))
    with pytest.raises(ShardChanged, match="was altered"):
        open_snapshot(snapshot.folder)
    manifest.write_text(text[:100])
    with pytest.raises(ShardChanged, match="is damaged"):
        open_snapshot(snapshot.folder)
    manifest.write_text(text)
    with pytest.raises(ShardChanged, match="the job names ffff"):
        open_snapshot(snapshot.folder, "f" * 64)
    with pytest.raises(ShardChanged, match="no snapshot in"):
        open_snapshot(tmp_path / "nowhere")


def test_an_altered_fitted_state_is_refused(snapshot: Snapshot) -> None:
    """With other scales or another order of classes, the registered model would not be the one that was trained."""
    fitted = fitted_of(snapshot)
    file = snapshot.folder / FITTED
    text = file.read_text()
    file.write_text(replace_first_mean(text))
    with pytest.raises(ShardChanged, match="was altered"):
        fitted_of(snapshot)
    file.write_text(text[:50])
    with pytest.raises(ShardChanged, match="cannot be read"):
        fitted_of(snapshot)
    file.write_text(text)
    assert fitted_of(snapshot) == fitted


def replace_first_mean(text: str) -> str:
    document = json.loads(text)
    document["numeric"][0]["mean"] += 1.0
    return json.dumps(document)


def test_a_shard_of_another_schema_is_not_mapped(snapshot: Snapshot) -> None:
    other = dataclasses.replace(snapshot, schema_hash="f" * 64)
    with pytest.raises(ShardChanged, match="its schema is"):
        other.map(other.shards[0])


def test_a_table_without_categories_can_be_snapshot(tmp_path: Path) -> None:
    table = feature_table(days=3, rows_a_day=5)
    chosen = chosen_rows(table, split_of(table, 1, 1), ROW_SPEC, InputColumns(numeric=NUMERIC))
    snapshot = build_snapshot(chosen, source=SourceValues(table="features/small"), into=tmp_path)
    assert snapshot.read("train").category.shape == (5, 0)


def test_other_users_of_the_machine_may_read_a_snapshot(snapshot: Snapshot) -> None:
    assert stat.S_IMODE(snapshot.folder.stat().st_mode) & 0o055
