"""Partitions that workers make: the same objects as in one process."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing.parametric import dataframes

from ml_assets.data.tables import parquet
from ml_assets.data.tables.publish.prepare import make, prepared_of
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming
from ml_assets_tests.tables import orders_table
from ml_assets_tests.tables.deadly_features import KILLS, TABLE, made
from resources.lake.local import LocalStore
from resources.pool import TaskFailed

IN_PROCESS = {"pool": "in-process"}
PROCESSES = {"pool": "processes", "pool_workers": 2, "pool_after_seconds": 0}


@settings(max_examples=3)
@given(
    first=st.integers(0, 10),
    count=st.integers(1, 8),
    most=st.integers(1, 4),
    workers=st.integers(1, 3),
    kills=st.integers(0, 2),
)
def test_neither_workers_nor_kills_change_an_object(
    first: int, count: int, most: int, workers: int, kills: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Files and manifests, of any range, in any pieces."""
    folder = tmp_path_factory.mktemp("kills")
    alone = made(tmp_path_factory.mktemp("alone"), first, count, 100, **IN_PROCESS)
    assert len(alone) == 2 * count
    for number in range(kills if count > most else 0):  # a single task runs in this process
        (folder / str(number)).touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KILLS, str(folder))
        home = tmp_path_factory.mktemp("workers")
        assert made(home, first, count, most, **PROCESSES | {"pool_workers": workers}) == alone
    assert not list(folder.iterdir())
    assert not [path for path in (home / "artifacts").rglob("*") if path.is_file()]
    assert not [*(home / "cache" / "pool").glob("*")]


def test_a_failing_function_ends_the_range_at_its_partition(tmp_path: Path) -> None:
    """The partitions before it are on main, and nothing else: neither a branch nor a file of a worker."""
    with pytest.raises(
        TaskFailed, match=rf"{TABLE} 2013-01-31 to 2013-02-01: FeatureFunctionError: "
    ) as error:
        made(tmp_path, 26, 8, 2, **PROCESSES | {"pool_workers": 3})
    assert str(error.value).endswith("habits raised ZeroDivisionError: no orders in February")
    lake = LocalStore(tmp_path / "lake" / "local")
    assert TableReader.at(lake).keys(TABLE) == orders_table.keys(4, 26)
    assert list(lake.branches()) == ["main"]
    assert not [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]
    assert not [*(tmp_path / "cache" / "pool").glob("*")]


@settings(max_examples=60)
@given(
    dataframes(
        max_cols=4,
        max_size=12,
        excluded_dtypes=[pl.Int128, pl.UInt128, pl.Object, pl.Null],
        allow_masked_out_nulls=True,
    )
)
def test_a_partition_is_the_same_after_its_way_from_a_worker(frame: pl.DataFrame) -> None:
    """Also if the publisher sets rows aside, and encodes the rest again."""
    one = make(orders_table.spec(), Incoming(key="2013-01-01", data=frame))
    if one.ready is None:
        return
    contents = [one.ready.stored.objects[file.path] for file in one.ready.manifest.files]
    arrived = prepared_of(one.ready.manifest, [content for content in contents if isinstance(content, bytes)])
    assert arrived.stored == one.ready.stored
    assert arrived.manifest == one.ready.manifest
    assert arrived.frame.schema == one.ready.frame.schema
    assert arrived.frame.equals(one.ready.frame)
    for rest in (slice(0, None, 2), slice(0, 3)):
        assert list(parquet.encode(arrived.frame[rest])) == list(parquet.encode(one.ready.frame[rest]))
