"""Content of a file as a frame: Parquet, CSV or JSON lines, with the contract's types where the format has none."""

import gzip
import io
from collections.abc import Mapping
from typing import Literal

import polars as pl

from ml_assets.sources.text_values import short_line, typed
from ml_assets.validation.column_types import polars_type
from ml_assets.validation.contract import Contract

FileFormat = Literal["parquet", "csv", "jsonl"]
_NULLS = ("", "NA", "NULL", "null")
GZIP = b"\x1f\x8b"
"""Begin of a compressed file."""
_GUESSED = {
    r"^\d{4}-\d{2}-\d{2}$": pl.Date(),
    r"^\d{4}-\d{2}-\d{2}[T ].*(Z|[+-]\d{2}:?\d{2})$": pl.Datetime("us", "UTC"),
}
"""Form of the texts of a column → its type, for a table without a contract."""


def parsed(content: bytes, form: FileFormat, separator: str, contract: Contract | None) -> pl.DataFrame:
    """Return the rows of a file.

    Values of CSV and JSON get the types of the contract (`text_values.typed`); without a contract, texts become dates
    and moments where all values are written as such. Raises polars' errors, and `OSError` and `EOFError` for a damaged
    gzip file.
    """
    if form == "parquet":
        return pl.read_parquet(io.BytesIO(content))
    types = {name: polars_type(one.dtype) for name, one in contract.by_name.items()} if contract else {}
    # Without all rows, a column that is null in the first rows would be read as null.
    is_csv = form == "csv"
    frame = (
        _of_csv(content, separator, types) if is_csv else pl.read_ndjson(content, infer_schema_length=None)
    )
    if contract is None:
        types = {name: dtype for name in frame.columns if (dtype := _guessed(frame[name])) is not None}
    return frame.with_columns(
        typed(frame[name], dtype) for name, dtype in types.items() if name in frame.columns
    )


def _of_csv(content: bytes, separator: str, types: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return the rows of a CSV file, with texts where `typed` makes the value."""
    if content[:2] == GZIP:
        content = gzip.decompress(content)
    frame = pl.read_csv(
        content,
        separator=separator,
        schema_overrides={name: _read_as(dtype) for name, dtype in types.items()},
        null_values=list(_NULLS),
        infer_schema_length=None,
    )
    if frame.width > 1 and frame.to_series(-1).has_nulls():
        short = short_line(content, separator, frame.width)
        if short is not None:
            raise pl.exceptions.ComputeError(f"line {short} has fewer than {frame.width} fields")
    return frame


def _read_as(dtype: pl.DataType) -> pl.DataType:
    """Return the type as which polars reads a column of CSV."""
    if isinstance(dtype, pl.Duration):
        return pl.Float64()
    is_plain = dtype.is_integer() or dtype.is_float() or dtype in (pl.Boolean, pl.Date)
    # Moments are texts with an offset, which polars does not read as UTC by itself. It would round decimals.
    return dtype if is_plain else pl.String()


def _guessed(values: pl.Series) -> pl.DataType | None:
    if values.dtype != pl.String or values.null_count() == values.len():
        return None
    for form, dtype in _GUESSED.items():
        if values.drop_nulls().str.contains(form).all():
            try:
                typed(values, dtype)
            except pl.exceptions.PolarsError:
                return None
            return dtype
    return None
