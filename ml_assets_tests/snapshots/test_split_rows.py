"""Rows of a split in their table: the rows that were chosen, in parts of any size, and no byte of other columns."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets.data.snapshots import split_rows
from ml_assets.data.snapshots.partitions import PartitionFiles, neighbours
from ml_assets.data.snapshots.row_choice import ROW
from ml_assets.data.snapshots.split_reader import SPLITS, Snapshot, SnapshotError, SplitName
from ml_assets.data.snapshots.split_rows import SplitScan
from ml_assets_tests.snapshots.chosen_rows import chosen_rows
from ml_assets_tests.training.small_jobs import ROW_SPEC, feature_table, small_snapshot, split_of


def table_with_gaps() -> pl.DataFrame:
    """The small table, of which some rows have no label."""
    unknown = pl.int_range(pl.len()) % 7 == 3
    return feature_table().with_columns(label=pl.when(unknown).then(None).otherwise(pl.col("label")))


TABLE = table_with_gaps()
COLUMNS = [name for name in TABLE.columns if name != "date"]
CHOSEN = chosen_rows(TABLE, split_of(TABLE), ROW_SPEC)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return small_snapshot(tmp_path_factory.mktemp("snapshot"), TABLE)


def stored(rows: pl.DataFrame, file: Path) -> PartitionFiles:
    """Return a partition with these rows."""
    if not file.exists():
        rows.write_parquet(file)
    return PartitionFiles(key=file.name, rows=rows.height, files=(file,))


def scan_of(
    snapshot: Snapshot, split: SplitName, ends: Sequence[int], table: pl.DataFrame = TABLE
) -> SplitScan:
    """Return the rows of a split in a table whose partitions end at these rows."""
    bounds = zip([0, *ends], [*ends, table.height], strict=True)
    partitions = [
        stored(table[begin:end], snapshot.folder.parent / f"{begin}-{end}") for begin, end in bounds
    ]
    return SplitScan(snapshot=snapshot, split=split, table=table.lazy(), partitions=partitions)


@given(
    split=st.sampled_from(SPLITS),
    ends=st.lists(st.integers(0, TABLE.height), max_size=6).map(sorted),
    rows=st.integers(1, 1500),
    index_rows=st.integers(1, 1500),
    shares=st.lists(st.floats(0, 1), max_size=40),
)
@settings(deadline=None, max_examples=40)
def test_every_way_of_reading_gives_the_chosen_rows(
    snapshot: Snapshot, split: SplitName, ends: list[int], rows: int, index_rows: int, shares: list[float]
) -> None:
    """Whatever the partitions, the parts, and the row numbers that are read at once."""
    expected = pl.concat(CHOSEN.parts(split, COLUMNS)).select(ROW, *COLUMNS)
    places = np.unique([round(share * (expected.height - 1)) for share in shares]).astype(np.intp)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_rows, "_INDEX_ROWS", index_rows)
        found = scan_of(snapshot, split, ends)
        assert found.height == expected.height
        assert found.read(COLUMNS).equals(expected)
        parts = list(found.parts(COLUMNS, rows))
        assert {part.height for part in parts[:-1]} <= {rows}
        assert 0 < parts[-1].height <= rows
        assert pl.concat(parts).equals(expected)
        unread = [part.read(COLUMNS).drop(ROW) for part in found.split_parts(rows)]
        assert all(one.equals(other.drop(ROW)) for one, other in zip(unread, parts, strict=True))
        assert pl.concat(found.by_partition(COLUMNS)).equals(expected)
        assert found.take(places, COLUMNS).equals(expected[places])
        assert [one.name for one in found.each(COLUMNS)] == COLUMNS


def test_columns_of_a_split_are_read_a_few_at_a_time(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = scan_of(snapshot, "holdout", [700])
    monkeypatch.setattr(split_rows, "_VALUES_AT_ONCE", 2 * found.height)
    whole = found.read(COLUMNS).drop(ROW)
    assert pl.DataFrame(list(found.each(COLUMNS))).equals(whole)


def test_a_column_that_the_table_lacks_is_left_out(snapshot: Snapshot) -> None:
    assert scan_of(snapshot, "holdout", []).read(["label", "gone", "label"]).columns == [ROW, "label"]
    assert scan_of(snapshot, "holdout", []).read([]).columns == [ROW]


def test_another_table_is_refused(snapshot: Snapshot) -> None:
    shorter = TABLE.head(1300)
    with pytest.raises(SnapshotError, match=r"1300 rows: .*another table"):
        scan_of(snapshot, "holdout", [1250], shorter).read(COLUMNS)


def test_partitions_without_a_row_and_other_columns_stay_unread(snapshot: Snapshot, tmp_path: Path) -> None:
    """A file that is gone, and one whose other column cannot be decoded, are no trouble."""
    missing = PartitionFiles(key="gone", rows=1200, files=(tmp_path / "gone.parquet",))
    broken = TABLE[1200:].with_columns(other=pl.lit("unreadable" * 50))
    there = stored(broken, tmp_path / "there.parquet")
    content = there.files[0].read_bytes()
    there.files[0].write_bytes(content.replace(b"unreadable", b"\xff" * 10))
    with pytest.raises(pl.exceptions.PolarsError):
        there.scan(["other"]).collect()
    found = SplitScan(snapshot=snapshot, split="holdout", table=TABLE.lazy(), partitions=[missing, there])
    expected = pl.concat(CHOSEN.parts("holdout", COLUMNS)).select(ROW, *COLUMNS)
    assert found.read(COLUMNS).equals(expected)


@given(rows=st.lists(st.integers(0, 50), max_size=30), columns=st.integers(0, 9), at_once=st.integers(1, 200))
@settings(deadline=None)
def test_neighbours_are_all_partitions_in_their_order(rows: list[int], columns: int, at_once: int) -> None:
    """A run has at most the values that are read at once, or one partition, and takes the next one if that fits."""
    heights = {str(number): height for number, height in enumerate(rows)}
    runs = neighbours(heights, columns, at_once)
    assert [key for run in runs for key in run] == list(heights)
    most = at_once // max(1, columns)
    sums = [sum(heights[key] for key in run) for run in runs]
    assert all(total <= most or len(run) == 1 for run, total in zip(runs, sums, strict=True))
    for total, following in zip(sums, runs[1:], strict=False):
        assert total + heights[following[0]] > most
