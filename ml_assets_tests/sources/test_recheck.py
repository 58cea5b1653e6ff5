"""Changes at a source after a partition was read: the sensor requests the partitions that changed, and no others."""

import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ml_assets.components import Dataset
from ml_assets.components.dataset import rechecked
from ml_assets.components.documents import attribute_faults
from ml_assets.components.specs import DatasetSpec
from ml_assets_tests.components.installation import materialized
from ml_assets_tests.sources.changing_sales import (
    ALL,
    CHANGES,
    Change,
    ChangingSales,
    SalesDelta,
    SalesFiles,
    SalesIceberg,
    SalesLake,
    require_that_main_follows,
)
from ml_assets_tests.sources.sales import DATASET, DAYS, SALES, rows

KINDS: dict[str, Callable[[Path], ChangingSales]] = {
    "file": SalesFiles,
    "delta": SalesDelta,
    "iceberg": SalesIceberg,
}


def _lake(folder: Path, sales: ChangingSales, **watch: Any) -> SalesLake:
    """Return a home with the sales of all days, as they are at the source."""
    sales.insert(rows(*DAYS))
    lake = SalesLake(folder / "home", sales.source | {"watch": watch})
    assert lake.follow() == DAYS
    return lake


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_part_of_a_day_reopens_that_day(tmp_path: Path, kind: str) -> None:
    """Its rows are dated before everything that was read: a transaction committed late."""
    sales = KINDS[kind](tmp_path)
    lake = _lake(tmp_path, sales)
    late = rows(DAYS[4])[1].with_columns(
        sale=pl.lit(1, dtype=pl.Int64), changed_at=pl.col("changed_at") - timedelta(days=30)
    )
    sales.insert(late)
    assert lake.follow() == [DAYS[4]]
    lake.require(pl.concat([rows(*DAYS), late]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_moved_leaves_its_day(tmp_path: Path, kind: str) -> None:
    sales = KINDS[kind](tmp_path)
    lake = _lake(tmp_path, sales)
    moved = rows(DAYS[4])[1].with_columns(sold_at=pl.col("sold_at") - timedelta(days=1))
    sales.delete(moved["sale"].item())
    sales.insert(moved)
    assert lake.follow() == [DAYS[3], DAYS[4]]
    lake.require(pl.concat([rows(*DAYS).filter(pl.col("sale") != moved["sale"].item()), moved]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_deleted_row_reopens_its_day(tmp_path: Path, kind: str) -> None:
    sales = KINDS[kind](tmp_path)
    lake = _lake(tmp_path, sales)
    gone = rows(DAYS[3])["sale"][0]
    sales.delete(gone)
    asked = lake.follow()
    assert DAYS[3] in asked
    # A file of the other tables holds rows of several days.
    assert len(asked) == 1 or kind != "file"
    lake.require(rows(*DAYS).filter(pl.col("sale") != gone))


def test_files_that_are_gone_fail_their_day_by_name(tmp_path: Path) -> None:
    sales = SalesFiles(tmp_path)
    lake = _lake(tmp_path, sales)
    for file in (tmp_path / DAYS[4]).iterdir():
        file.unlink()
    assert lake.tick() == [DAYS[4]]
    with pytest.raises(AssertionError, match=f"no file .* for {DAYS[4]}"):
        lake.read([DAYS[4]])


def test_a_change_whose_run_failed_is_requested_until_it_is_read(tmp_path: Path) -> None:
    """It was forgotten two days of changes later, because only newer dates were looked for."""
    sales = SalesDelta(tmp_path)
    lake = _lake(tmp_path, sales)
    corrected = rows(DAYS[0])[1].with_columns(
        sale=pl.lit(1, dtype=pl.Int64), changed_at=pl.col("changed_at") + timedelta(days=5)
    )
    sales.insert(corrected)
    assert lake.tick() == [DAYS[0]], "and its run fails"
    newer = rows(DAYS[4])[1].with_columns(
        sale=pl.lit(2, dtype=pl.Int64), changed_at=pl.col("changed_at") + timedelta(days=9)
    )
    sales.insert(newer)
    assert lake.tick() == [DAYS[0], DAYS[4]]
    lake.read([DAYS[4]])
    assert lake.follow() == [DAYS[0]]
    lake.require(pl.concat([rows(*DAYS), corrected, newer]))


@pytest.mark.parametrize("kind", KINDS)
def test_days_before_the_window_are_not_rechecked(tmp_path: Path, kind: str) -> None:
    """Unless the source dates its changes: a newer date is found in partitions of any age."""
    sales = KINDS[kind](tmp_path)
    lake = _lake(tmp_path, sales)
    late = rows(DAYS[1])[1].with_columns(
        sale=pl.lit(1, dtype=pl.Int64), changed_at=pl.col("changed_at") - timedelta(days=30)
    )
    sales.insert(late)
    assert lake.tick() == []
    wide = SalesLake(tmp_path / "home", sales.source | {"watch": {"recheck": "4d"}})
    assert wide.follow() == [DAYS[1]]
    newer = rows(DAYS[0])[1].with_columns(
        sale=pl.lit(2, dtype=pl.Int64), changed_at=pl.col("changed_at") + timedelta(days=30)
    )
    sales.insert(newer)
    assert lake.tick() == ([DAYS[0]] if "watermark_column" in sales.source else [])


@pytest.mark.parametrize("kind", ["file", pytest.param("delta", marks=pytest.mark.nightly)])
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changes=st.lists(CHANGES, max_size=8))
def test_main_follows_random_changes_of_its_source(kind: str, changes: list[Change]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sales = KINDS[kind](Path(folder))
        require_that_main_follows(sales, SalesLake(Path(folder, "home"), sales.source | ALL), changes)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changes=st.lists(CHANGES, max_size=20))
def test_main_follows_long_histories_of_its_source(kind: str, changes: list[Change]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sales = KINDS[kind](Path(folder))
        require_that_main_follows(sales, SalesLake(Path(folder, "home"), sales.source | ALL), changes)


def _spec(watch: dict[str, Any], **changes: Any) -> DatasetSpec:
    source = {"kind": "file", "path": "x/%Y-%m-%d.csv", "watch": watch}
    return DatasetSpec.model_validate(DATASET | {"source": source} | changes)


@pytest.mark.parametrize(
    ("watch", "expected"),
    [
        ({}, DAYS[3:]),
        ({"recheck": "1d"}, DAYS[4:]),
        ({"recheck": "36h"}, DAYS[3:]),
        ({"recheck": "400d"}, DAYS),
    ],
)
def test_the_window_counts_back_from_the_newest_partition(watch: dict[str, Any], expected: list[str]) -> None:
    assert sorted(rechecked(_spec(watch), DAYS)) == expected
    assert rechecked(_spec(watch), []) == frozenset()


def test_a_window_without_a_unit_is_refused() -> None:
    faults = attribute_faults(
        Dataset.get_model_cls(),
        DATASET | {"source": {"kind": "file", "path": "x.csv", "watch": {"recheck": "7"}}},
    )
    assert ("source", "watch", "recheck") in [path for path, _ in faults]


def test_a_tick_says_what_it_read(tmp_path: Path) -> None:
    lake = _lake(tmp_path, SalesFiles(tmp_path))
    last = "files listed 5 for 5 rechecked partitions"
    assert last in lake.said, "those that it had requested"
    assert lake.tick() == []
    assert "nothing moved since: " in lake.said
    assert last in lake.said


def test_the_page_says_what_a_tick_reads(tmp_path: Path) -> None:
    sales = SalesFiles(tmp_path)
    lake = _lake(tmp_path, sales)
    result = lake.installation.run(SALES, partition=DAYS[0])
    shown = materialized(result, SALES)[DAYS[0]].metadata["recheck"].value
    assert isinstance(shown, str)
    assert shown.startswith("2 partitions with 6 rows; ")
