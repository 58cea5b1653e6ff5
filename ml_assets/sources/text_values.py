"""Values of text formats as the types of a contract. A value that the type does not hold exactly is an error.

CSV has only texts; JSON has one type of number, texts and lists. Not here: reading the files (`file_formats`).
"""

import csv
import io
from typing import cast

import polars as pl

_EXACT = 2**53
"""Whole numbers up to this are floats exactly."""
_DECIMAL = r"^[+-]?(\d+\.?\d*|\.\d+)$"


def typed(values: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Return `values` as `dtype`, or unchanged if the format has no such form of it, as a text is no number.

    Moments are texts with their offset from UTC, durations numbers of seconds, decimals texts, bytes base64. Raises
    polars' errors, without a value in the message that this module writes.
    """
    if values.dtype == dtype:
        return values
    if values.dtype == pl.String:
        return _from_text(values, dtype)
    if values.dtype == pl.Null or (values.dtype.is_integer() and dtype.is_integer()):
        return values.cast(dtype, strict=True)
    if isinstance(dtype, pl.Duration) and values.dtype.is_numeric():
        return (values * 1e6).round().cast(pl.Int64, strict=True).cast(dtype)
    if dtype.is_float() and values.dtype.is_numeric():
        return _as_float(values, dtype)
    if isinstance(values.dtype, pl.List) and isinstance(dtype, pl.List | pl.Array):
        return _as_list(values, dtype)
    return values


def _from_text(values: pl.Series, dtype: pl.DataType) -> pl.Series:
    if isinstance(dtype, pl.Datetime):
        return values.str.to_datetime(time_unit="us", time_zone="UTC", strict=True)
    if dtype == pl.Date:
        return values.str.to_date(strict=True)
    if dtype == pl.Binary:
        return values.str.decode("base64")
    if isinstance(dtype, pl.Categorical):
        return values.cast(dtype)
    return _decimal(values, dtype) if isinstance(dtype, pl.Decimal) else values


def _decimal(values: pl.Series, dtype: pl.Decimal) -> pl.Series:
    # A cast would round.
    digits = values.str.strip_chars()
    fits = digits.str.contains(_DECIMAL) & ~digits.str.contains(rf"\.\d{{{dtype.scale}}}\d*[1-9]")
    if not fits.fill_null(value=True).all():
        raise pl.exceptions.InvalidOperationError(
            f"'{values.name}' has a value that is no decimal with {dtype.scale} digits after the point"
        )
    return digits.cast(dtype, strict=True)


def _as_float(values: pl.Series, dtype: pl.DataType) -> pl.Series:
    if values.dtype.is_integer() and not values.is_between(-_EXACT, _EXACT).fill_null(value=True).all():
        raise pl.exceptions.InvalidOperationError(
            f"'{values.name}' has a whole number that {dtype} does not hold exactly"
        )
    found = values.cast(dtype, strict=True)
    if (found.is_infinite() & ~values.cast(pl.Float64).is_infinite()).any():
        raise pl.exceptions.InvalidOperationError(
            f"'{values.name}' has a number outside the range of {dtype}"
        )
    return found


def _as_list(values: pl.Series, dtype: pl.List | pl.Array) -> pl.Series:
    inner = cast("pl.DataType", dtype.inner)
    if typed(values.explode(), inner).dtype != inner:
        return values
    each = pl.element().map_batches(lambda items: typed(items, inner), return_dtype=inner)
    return values.list.eval(each).cast(pl.List(inner)).cast(dtype, strict=True)


def short_line(content: bytes, separator: str, width: int) -> int | None:
    """Return the number of the first line of a CSV file, from 1, with fewer than `width` fields; None without one.

    polars reads the missing fields as null.
    """
    mark = separator.encode()
    if b'"' not in content:
        if content.count(mark) == content.count(b"\n") * (width - 1):
            return None
        return next(
            (n for n, line in enumerate(content.splitlines(), 1) if line.count(mark) < width - 1), None
        )
    # A quoted field may hold separators and line breaks.
    rows = csv.reader(io.StringIO(content.decode(), newline=""), delimiter=separator)
    return next((rows.line_num for row in rows if len(row) < width), None)
