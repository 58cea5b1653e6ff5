"""Deterministic Parquet: equal rows give equal bytes, in any order and with any chunks or threads.

polars writes equal bytes for equal rows only if the rows are sorted, the row group size is given and the compression
is pinned. polars also writes its own version into the file, so the manifest records `WRITER`.
"""

import hashlib
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any

import polars as pl

from ml_assets.foundation.days import UNITS_A_DAY

ROW_GROUP_ROWS = 122_880
"""Rows per row group, at most."""
GROUP_BYTES = 16 * 2**20
"""Approximate bytes of binary columns in a row group. A reader of a few rows has to read their whole row group."""
FILE_ROWS = 4_000_000
"""Rows per file; larger partitions become several parts."""
COMPRESSION_LEVEL = 3
WRITER = f"polars {pl.__version__}"
"""Library and version that wrote the bytes. Another version may write the same rows differently."""


_LAST_YEAR = 99_999


class UnstorableFrame(Exception):
    """A frame holds values that no file can keep: Python objects, wide integers, times outside every calendar."""


def canonical(frame: pl.DataFrame, sort_key: Sequence[str]) -> pl.DataFrame:
    """Sort `frame` by `sort_key`, then by its other columns, so that the order of the rows has no effect.

    Negative zeros become zeros, and every NaN the same one: they compare equal, so no sort separates them, but their
    bytes differ (0/0 is a negative NaN on x86). Missing columns of the sort key are ignored, because a broken frame is
    kept as evidence too. Raises `UnstorableFrame`.
    """
    schema = frame.schema
    by = [c for c in sort_key if c in schema]
    by += [c for c, dtype in schema.items() if c not in by and not isinstance(dtype, pl.Struct)]
    objects = [c for c, dtype in schema.items() if dtype == pl.Object]
    if objects:
        raise UnstorableFrame(
            f"columns {', '.join(objects)} hold Python objects: cast them to a plain type in the source"
        )
    wide = [c for c, dtype in schema.items() if _is_wide(dtype)]
    if wide:
        raise UnstorableFrame(
            f"columns {', '.join(wide)} hold integers of 128 bits: cast them to int64 or a decimal in the source"
        )
    _refuse_infinite_times(frame, schema)
    # An expression for all columns of a type: one for each column took half of the time of a table of 3,000.
    frame = frame.with_columns(
        pl.when(pl.col(dtype) == 0)
        .then(pl.lit(0.0, dtype))
        .when(pl.col(dtype).is_nan())
        .then(pl.lit(math.nan, dtype))
        .otherwise(pl.col(dtype))
        .name.keep()
        for dtype in {dtype for dtype in schema.values() if dtype.is_float()}
    )
    return frame.sort(by, maintain_order=True) if by else frame


def _is_wide(dtype: Any) -> bool:
    """True for integers of 128 bits, also within lists and structs. Only polars reads files with them."""
    if isinstance(dtype, pl.Struct):
        return any(_is_wide(field.dtype) for field in dtype.fields)
    return (
        _is_wide(dtype.inner) if isinstance(dtype, pl.List | pl.Array) else dtype in (pl.Int128, pl.UInt128)
    )


def _refuse_infinite_times(frame: pl.DataFrame, schema: pl.Schema) -> None:
    """Refuse times that make polars panic when it formats them. PostgreSQL's `infinity` arrives as such a time."""
    for name, dtype in schema.items():
        if isinstance(dtype, pl.Date | pl.Datetime):
            days = frame[name].to_physical().cast(pl.Float64)
            if isinstance(dtype, pl.Datetime):
                days = days / UNITS_A_DAY[dtype.time_unit]
            beyond = int((days.abs() > _LAST_YEAR * 365.25).sum())
            if beyond:
                raise UnstorableFrame(
                    f"column {name!r} holds {beyond} times after the year {_LAST_YEAR} or as far before 1970, "
                    f"such as `infinity`: make them null in the source"
                )


def encode(frame: pl.DataFrame) -> Iterator[bytes]:
    """Yield the rows of `frame`, in order, as Parquet files with at most `FILE_ROWS` rows each; at least one file."""
    for start in range(0, max(frame.height, 1), FILE_ROWS):
        buffer = io.BytesIO()
        frame.slice(start, FILE_ROWS).rechunk().write_parquet(
            buffer,
            compression="zstd",
            compression_level=COMPRESSION_LEVEL,
            row_group_size=_group_rows(frame),
            statistics=True,
        )
        yield buffer.getvalue()


def column_digests(files: Iterable[bytes]) -> dict[str, str]:
    """Return column → 32 hex digits of the SHA-256 of its values. `files` are the parts of a partition, by `encode`.

    Equal columns have equal bytes in a file, whatever its other columns hold; so the digest is that of the bytes.
    """
    pyarrow: Any = import_module("pyarrow.parquet")  # it ships no types
    digests: dict[str, Any] = {}
    for content in files:
        with pyarrow.ParquetFile(io.BytesIO(content)) as file:
            found = file.metadata
            # A nested column has several leaves, such as `list.list.element`. Names may have dots, too.
            names = [field.name for field in file.schema_arrow for _ in range(_leaves(field.type))]
            for group in range(found.num_row_groups):
                for index in range(found.num_columns):
                    chunk = found.row_group(group).column(index)
                    start = chunk.data_page_offset
                    if chunk.dictionary_page_offset is not None:
                        start = min(start, chunk.dictionary_page_offset)
                    digest = digests.setdefault(names[index], hashlib.sha256())
                    digest.update(memoryview(content)[start : start + chunk.total_compressed_size])
    return {name: digest.hexdigest()[:32] for name, digest in digests.items()}


def _leaves(dtype: Any) -> int:
    """Return the number of columns that Parquet has for a type of pyarrow."""
    return sum(_leaves(dtype.field(place).type) for place in range(dtype.num_fields)) or 1


def _group_rows(frame: pl.DataFrame) -> int:
    binary = [name for name, dtype in frame.schema.items() if dtype == pl.Binary]
    size = sum(int(frame[name].bin.size().sum()) for name in binary)
    return max(1, min(ROW_GROUP_ROWS, GROUP_BYTES * frame.height // size)) if size else ROW_GROUP_ROWS
