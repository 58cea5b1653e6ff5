"""Deterministic Parquet: the same rows give the same bytes, whatever their order, chunks or threads.

polars writes equal bytes for equal rows only when rows are sorted, the row group size is given and the
compression is pinned; its own version is in the file, so the manifest records `WRITER`.
"""

import io
from collections.abc import Iterator, Sequence

import polars as pl

ROW_GROUP_ROWS = 122_880
"""Rows per row group, at most."""
GROUP_BYTES = 16 * 2**20
"""Approximate bytes of binary columns in a row group: a reader of some of its rows reads all of it."""
FILE_ROWS = 4_000_000
"""Rows per file; larger partitions become several parts."""
COMPRESSION_LEVEL = 3
WRITER = f"polars {pl.__version__}"
"""Writer of the bytes: another version may write the same rows differently."""


_LAST_YEAR = 99_999
_UNITS_A_DAY = {"ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}


class UnstorableFrame(Exception):
    """A frame holds values Parquet cannot (Python objects), or times that no calendar has."""


def canonical(frame: pl.DataFrame, sort_key: Sequence[str]) -> pl.DataFrame:
    """`frame` sorted by `sort_key`, then by its other columns, so that row order carries nothing.

    A negative zero becomes zero: the two compare equal, so no sort tells rows with them apart, but their
    bytes differ.
    Columns of the sort key that are missing are passed over: a broken frame is kept as evidence too.
    """
    by = [c for c in sort_key if c in frame.columns]
    by += [c for c, dtype in frame.schema.items() if c not in by and not dtype.is_nested()]
    objects = [c for c, dtype in frame.schema.items() if dtype == pl.Object]
    if objects:
        raise UnstorableFrame(
            f"columns {', '.join(objects)} hold Python objects: cast them to a plain type in the source"
        )
    _refuse_infinite_times(frame)
    frame = frame.with_columns(
        pl.when(pl.col(c) == 0).then(pl.lit(0.0, dtype)).otherwise(pl.col(c)).alias(c)
        for c, dtype in frame.schema.items()
        if dtype.is_float()
    )
    return frame.sort(by, maintain_order=True) if by else frame


def _refuse_infinite_times(frame: pl.DataFrame) -> None:
    """polars panics where it writes such a time as text; PostgreSQL's `infinity` arrives as one."""
    for name, dtype in frame.schema.items():
        if isinstance(dtype, pl.Date | pl.Datetime):
            days = frame[name].to_physical().cast(pl.Float64)
            if isinstance(dtype, pl.Datetime):
                days = days / _UNITS_A_DAY[dtype.time_unit]
            beyond = int((days.abs() > _LAST_YEAR * 365.25).sum())
            if beyond:
                raise UnstorableFrame(
                    f"column {name!r} holds {beyond} times after the year {_LAST_YEAR} or as far before 1970, as "
                    "`infinity` is: make them null in the source"
                )


def encode(frame: pl.DataFrame) -> Iterator[bytes]:
    """Parquet files with the rows of `frame`, in order: one, or more where it is long."""
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


def _group_rows(frame: pl.DataFrame) -> int:
    binary = [name for name, dtype in frame.schema.items() if dtype == pl.Binary]
    size = sum(int(frame[name].bin.size().sum()) for name in binary)
    return max(1, min(ROW_GROUP_ROWS, GROUP_BYTES * frame.height // size)) if size else ROW_GROUP_ROWS
