"""The text of a category: one function for training, for the bundle's frames and rows, and for pandas.

A vocabulary holds texts, so a value that another door writes differently would be an unknown category there. Every
door names the type the column has in the feature table; the value becomes that type first, and text second.

This file is copied into every bundle and imports polars alone. Not here: vocabularies and ids (`encoding`).
"""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any

import polars as pl

CategoryValue = str | bool | int | float | date | datetime | None
"""A category of one row; numbers and booleans of numpy count, too."""

_TRUTH: Mapping[str, bool] = {"true": True, "false": False}
_REMEMBERED = 65_536
"""Texts of single values that are kept: converting one takes polars 8 µs."""


class NotACategory(ValueError):
    """A column or value has a type that no category has, or another kind than the feature table's column."""


def category_texts(column: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Text of each value of `column`, as a column of type `dtype` (of the feature table) holds it.

    Null where the value is missing, NaN, or no value of `dtype` (5.5 for an integer, "soon" for a date). Texts are
    read as ISO 8601 where `dtype` is a date or a datetime; a datetime without a zone is UTC. Raises `NotACategory`.
    """
    if column.dtype == pl.Null:
        return column.cast(pl.String)
    for kind in (dtype, column.dtype):
        if not _is_category(kind):
            raise NotACategory(
                f"{kind} has no text of its own: a category is a text, a number, a boolean, a date or a datetime"
            )
    values = column if column.dtype == dtype else _converted(column, dtype)
    if values.dtype.is_float():
        values = (values + 0.0).fill_nan(None)  # -0.0 is 0.0
    return values.cast(pl.String)


def category_text(value: CategoryValue, dtype: pl.DataType) -> str | None:
    """`category_texts` of one value. Raises `NotACategory`."""
    try:
        return _remembered_text(value, dtype)
    except (TypeError, pl.exceptions.PolarsError) as error:  # not hashable, or unknown to polars
        raise NotACategory(
            f"{type(value).__name__} has no text of its own: a category is a text, a number, a boolean, a date or a "
            "datetime"
        ) from error


@lru_cache(_REMEMBERED, typed=True)
def _remembered_text(value: CategoryValue, dtype: pl.DataType) -> str | None:
    return category_texts(pl.Series([value]), dtype)[0]


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
    """`column` as `dtype`, null where that is another value."""
    if _is_text(dtype):
        return category_texts(column, column.dtype)
    if _is_text(column.dtype):
        column = _read(column.cast(pl.String), dtype)
    if isinstance(dtype, pl.Date | pl.Datetime):
        return _moments(column, dtype)
    if column.dtype.is_temporal():
        raise NotACategory(f"{column.dtype} is of another kind than {dtype}, which the feature table has")
    converted = column.cast(dtype, strict=False)
    if dtype.is_float():
        return converted  # 0.1 is another number in 32 bits, and the same category
    return converted.set(converted.cast(column.dtype) != column, None)


def _read(texts: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Values that JSON has no type for, or that came as text."""
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
    """Dates and datetimes as `dtype`, a date where it is a midnight in UTC."""
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
