"""Text of a category: the same function for training, for frames and rows in a bundle, and for pandas.

A vocabulary holds texts. If a caller wrote a value differently, the model would read an unknown category. Every caller
therefore names the column's type in the feature table. The value is converted to that type first, then to text.

This file is copied into every bundle and imports only polars. Not here: vocabularies and ids (`encoding`).
"""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

import polars as pl

CategoryValue = str | bool | int | float | date | datetime | None
"""Category of one row; numpy's numbers and booleans are allowed, too."""

_TRUTH: Mapping[str, bool] = {"true": True, "false": False}


class NotACategory(ValueError):
    """A type that no category can have, or a kind of value other than that of the feature table's column."""


def category_texts(column: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Return the text of each value of `column` after conversion to `dtype`, the type in the feature table.

    Null if the value is missing, NaN, or not a value of `dtype` (5.5 for an integer, "soon" for a date). If `dtype` is
    a date or a datetime, texts are read as ISO 8601; a datetime without a zone is UTC. If it is text, a whole number
    has one text, so 12 and 12.0 are "12". Raises `NotACategory`.
    """
    if column.dtype == pl.Null:
        return column.cast(pl.String)
    for kind in (dtype, column.dtype):
        if not _is_category(kind):
            raise NotACategory(
                f"{kind} cannot be a category: use a text, a number, a boolean, a date or a datetime"
            )
    values = column if column.dtype == dtype else _converted(column, dtype)
    if values.dtype.is_float():
        values = values.set(values == 0.0, 0.0).fill_nan(None)  # -0.0 equals 0.0 and has another text
    return values.cast(pl.String)


def category_text(value: CategoryValue, dtype: pl.DataType) -> str | None:
    """Return `category_texts` of a single value. Raises `NotACategory`."""
    try:
        return category_texts(pl.Series([value]), dtype)[0]
    except UnicodeError as error:
        raise NotACategory(
            "a text with half of a surrogate pair is not valid Unicode: send whole characters"
        ) from error
    except (TypeError, pl.exceptions.PolarsError) as error:  # unknown to polars
        raise NotACategory(
            f"{type(value).__name__} has no text of its own: a category is a text, a number, a boolean, a date or a "
            "datetime"
        ) from error


def _is_category(dtype: pl.DataType) -> bool:
    return (
        dtype.is_integer()
        or dtype.is_float()
        or _is_text(dtype)
        or isinstance(dtype, pl.Boolean | pl.Date | pl.Datetime)
    )


def _is_text(dtype: pl.DataType) -> bool:
    return isinstance(dtype, pl.String | pl.Categorical | pl.Enum)


def _converted(column: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Convert `column` to `dtype`; null where the conversion would change the value."""
    if _is_text(dtype):
        texts = category_texts(column, column.dtype)
        return _without_fraction(column, texts) if column.dtype.is_float() else texts
    if _is_text(column.dtype):
        column = _read(column.cast(pl.String), dtype)
    if isinstance(dtype, pl.Date | pl.Datetime):
        return _moments(column, dtype)
    if column.dtype.is_temporal():
        raise NotACategory(f"{column.dtype} is of another kind than {dtype}, which the feature table has")
    converted = column.cast(dtype, strict=False)
    if dtype.is_float():
        return converted  # 0.1 in 32 bits is another number, but the same category
    return converted.set(converted.cast(column.dtype) != column, None)


def _without_fraction(floats: pl.Series, texts: pl.Series) -> pl.Series:
    """Return `texts` with "12" in place of "12.0": pandas makes floats of whole numbers where one is missing."""
    whole = ((floats == floats.floor()) & (floats.abs() < 2**53)).fill_null(False)
    return floats.cast(pl.Int64, strict=False).cast(pl.String).zip_with(whole, texts)


def _read(texts: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Parse texts as values of `dtype`: JSON has no dates, and other values may come as text, too."""
    if not isinstance(dtype, pl.Boolean | pl.Date | pl.Datetime):
        return texts.cast(dtype, strict=False)
    words = texts.unique().drop_nulls()
    if isinstance(dtype, pl.Boolean):
        values = pl.Series([_TRUTH.get(word.lower()) for word in words], dtype=pl.Boolean)
    else:
        values = pl.Series([_moment(word) for word in words], dtype=pl.Datetime("us", "UTC"))
    return texts.replace_strict(words, values, default=None, return_dtype=values.dtype)


def _moment(text: str) -> datetime | None:
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return None
    return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)


def _moments(column: pl.Series, dtype: pl.Date | pl.Datetime) -> pl.Series:
    """Convert dates and datetimes to `dtype`. A datetime becomes a date only if it is a midnight in UTC, else null."""
    if not isinstance(column.dtype, pl.Date | pl.Datetime):
        raise NotACategory(f"{column.dtype} is of another kind than {dtype}, which the feature table has")
    if isinstance(column.dtype, pl.Datetime) and column.dtype.time_zone is not None:
        column = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    if isinstance(dtype, pl.Date):
        dates = column.cast(pl.Date)
        return dates.set(dates.cast(column.dtype) != column, None)
    moments = column.cast(pl.Datetime(dtype.time_unit))
    zone: Any = dtype.time_zone
    return moments if zone is None else moments.dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
