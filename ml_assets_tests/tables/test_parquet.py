"""The same rows give the same bytes."""

import io
import math
import re
from random import Random

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ml_assets.data.tables import parquet
from ml_assets_tests.tables.orders_table import OrdersTable, day, keys

ROW = st.tuples(
    st.integers(0, 5),
    st.none() | st.text("abc", max_size=2),
    st.none() | st.floats(allow_nan=True, width=32),
)
SCHEMA = {"id": pl.Int64, "name": pl.String, "value": pl.Float64}


def frame_of(rows: list[tuple[object, ...]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, max_size=30), st.randoms(use_true_random=False), st.integers(1, 30))
@example([(4, "", 0.0), (4, "", -0.0), (0, None, None)], Random(5), 1)
@example([(4, "", math.nan), (4, "", -math.nan), (0, None, None)], Random(5), 1)
def test_row_order_and_chunks_do_not_change_the_bytes(rows, random, cut) -> None:
    shuffled = random.sample(rows, len(rows))
    chunked = pl.concat([frame_of(shuffled[:cut]), frame_of(shuffled[cut:])], rechunk=False)
    one, other = (b"".join(parquet.encode(parquet.canonical(f, ["id"]))) for f in (frame_of(rows), chunked))
    assert one == other


def test_rows_survive_in_sort_order() -> None:
    frame = frame_of([(2, "b", 1.0), (1, None, None), (2, "a", 2.0)])
    (data,) = parquet.encode(parquet.canonical(frame, ["id", "name"]))
    assert pl.read_parquet(io.BytesIO(data)).rows() == [(1, None, None), (2, "a", 2.0), (2, "b", 1.0)]


def test_an_empty_frame_is_one_file_with_its_columns() -> None:
    (data,) = parquet.encode(parquet.canonical(frame_of([]), ["id"]))
    assert pl.read_parquet(io.BytesIO(data)).schema == pl.Schema(SCHEMA)


def test_a_long_partition_becomes_several_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "FILE_ROWS", 10)
    frame = pl.DataFrame({"id": range(25)})
    files = list(parquet.encode(frame))
    assert len(files) == 3
    assert pl.concat([pl.read_parquet(io.BytesIO(f)) for f in files]).equals(frame)


def test_rows_with_many_bytes_come_in_groups_that_can_be_read_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_BYTES", 1000)
    frame = pl.DataFrame({"id": range(25), "picture": pl.Series([b"x" * 100] * 24 + [None], dtype=pl.Binary)})
    (data,) = parquet.encode(frame)
    assert pq.ParquetFile(io.BytesIO(data)).num_row_groups == 3
    assert pl.read_parquet(io.BytesIO(data)).equals(frame)


def test_zeros_and_nans_are_one_in_every_float_column() -> None:
    """Other bits of a value, and other columns, stay."""
    values = [1.5, -0.0, math.nan, -math.nan, None, -math.inf, 5e-324]
    frame = pl.DataFrame(
        {"n": range(7), "wide": values, "narrow": values, "zero": [0] * 7},
        schema_overrides={"narrow": pl.Float32},
    )
    found = parquet.canonical(frame, ["n"])
    assert found.schema == frame.schema
    for name, form in (("wide", "f8"), ("narrow", "f4")):
        kept = np.array([1.5, 0.0, math.nan, math.nan, 0.0, -math.inf, 5e-324], form)
        assert found[name].is_null().to_list() == [value is None for value in values]
        assert found[name].fill_null(0.0).to_numpy().tobytes() == kept.tobytes()


def test_a_frame_without_its_sort_key_can_still_be_kept() -> None:
    assert parquet.canonical(pl.DataFrame({"x": [2, 1]}), ["id"])["x"].to_list() == [1, 2]


@pytest.mark.parametrize(
    "dtype", [pl.Int128(), pl.UInt128(), pl.List(pl.Int128()), pl.Struct({"a": pl.Int128()})]
)
def test_wide_integers_are_refused_by_name(orders: OrdersTable, dtype: pl.DataType) -> None:
    """Only their partition fails. pyarrow cannot open such a file, and that ended the run for all partitions."""
    one, other = keys(2)
    wide = day(one).with_columns(pl.Series("x", [None] * 40, dtype))
    result = orders.publish({one: wide, other: day(other)})
    assert list(result.merged) == [other]
    assert re.search("^columns x .* 128 bits: cast .* int64", result.failed[one])


def test_digests_of_columns_tell_names_with_dots_apart() -> None:
    frame = pl.DataFrame({"a.b": [1], "a.list.element": ["x"], "a": [[1, 2]], "s": [{"b": 1, "c": [2]}]})
    digests = parquet.column_digests(parquet.encode(frame))
    assert list(digests) == frame.columns
    changed = parquet.column_digests(parquet.encode(frame.with_columns(pl.lit("y").alias("a.list.element"))))
    assert {name for name in digests if digests[name] != changed[name]} == {"a.list.element"}


def test_python_objects_are_refused_by_name() -> None:
    frame = pl.DataFrame({"good": [1], "odd": pl.Series([object()], dtype=pl.Object)})
    with pytest.raises(parquet.UnstorableFrame, match="odd"):
        parquet.canonical(frame, ["good"])
