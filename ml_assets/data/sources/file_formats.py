"""Content of a file as a frame: Parquet, CSV or JSON lines, with the contract's types where the format has none.

A text becomes exactly the value that it means, or `ValueRefused` says why not (`text_values`, `json_messages`).
"""

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import dropwhile
from typing import Any, Literal

import polars as pl

from ml_assets.data.sources.json_messages import (
    BadMessage,
    Fraction,
    Unfit,
    converter,
    json_object,
    name_of,
    said_of,
    series_of,
    text_of,
)
from ml_assets.data.sources.text_values import TextForm, ValueRefused, times, typed
from ml_assets.data.validation.column_types import polars_type
from ml_assets.data.validation.contract import Column, Contract

FileFormat = Literal["parquet", "csv", "jsonl"]
GZIP = b"\x1f\x8b"
"""Begin of a compressed file."""
csv.field_size_limit(2**31 - 1)  # of the whole process: as long a field as polars reads
_TIMES = (pl.Date(), pl.Datetime("us", "UTC"))
_TRIED = (pl.Int64(), pl.Float64(), pl.Boolean(), *_TIMES)
"""Types that the texts of a column may have, for a table without a contract, in the order of the tries."""
CODE = r"^(\+[0-9]+|-?0[0-9]+)$"
"""Digits that are a code, such as a postcode: as a number it would lose its zeros."""


def parsed(
    content: bytes, form: FileFormat, separator: str, contract: Contract | None, texts: TextForm
) -> pl.DataFrame:
    """Return the rows of a file.

    Values of CSV and JSON get the types of the contract, columns that it lacks and values without a contract those that
    all texts of the column have. Raises `ValueRefused`, polars' errors, and `OSError`, `EOFError` and
    `UnicodeDecodeError` for a damaged file.
    """
    if form == "parquet":
        return pl.read_parquet(io.BytesIO(content))
    columns = contract.by_name if contract else {}
    if form == "jsonl":
        return _of_json(content, columns, texts)
    frame = texts_of_csv(content, separator)
    return pl.DataFrame(
        [
            typed(one, polars_type(columns[one.name].dtype), texts)
            if one.name in columns
            else _guessed(one, texts)
            for one in frame
        ]
    )


def _guessed(values: pl.Series, texts: TextForm) -> pl.Series:
    """Return texts as the first type that holds each of them exactly; as texts if there is none."""
    if values.null_count() == values.len() or values.str.contains(CODE).any():
        return values
    return _first_exact(values, _TRIED, texts)


def _first_exact(values: pl.Series, tried: Sequence[pl.DataType], texts: TextForm) -> pl.Series:
    for dtype in tried:
        with suppress(ValueRefused):
            return typed(values, dtype, texts)
    return typed(values, pl.String(), texts)


def unpacked(content: bytes) -> bytes:
    """Return the text of a file, which may be compressed. Raises `OSError`, `EOFError` and `zlib.error` for a damaged
    file."""
    return gzip.decompress(content) if content[:2] == GZIP else content


def texts_of_csv(content: bytes, separator: str) -> pl.DataFrame:
    """Return the rows of a CSV file as texts; null for an empty field without quotes.

    Raises polars' errors, and `OSError`, `EOFError` and `UnicodeDecodeError` for a damaged file.
    """
    content = unpacked(content)
    heading = _heading(content, separator)
    frame = pl.read_csv(content, separator=separator, infer_schema=False)
    if frame.width != len(heading):
        raise pl.exceptions.ComputeError("the first line does not name the columns")
    frame.columns = heading
    if b'"' in content:
        _require_same_rows(content, separator, frame)
    # polars cuts off a carriage return at the end of a field.
    elif content.count(b"\r") > content.count(b"\r\n"):
        raise pl.exceptions.ComputeError("it has carriage returns within lines: write such texts in quotes")
    elif frame.width > 1 and frame.to_series(-1).has_nulls():
        short = _short_line(content, separator, frame.width)
        if short is not None:
            raise pl.exceptions.ComputeError(f"line {short} has fewer than {frame.width} fields")
    return frame


def _heading(content: bytes, separator: str) -> list[str]:
    """Return the names of the columns. polars renames a name that occurs twice."""
    heading = next(filter(None, csv.reader(_lines(content), delimiter=separator)), [])
    if twice := sorted({name for name in heading if heading.count(name) > 1}):
        raise pl.exceptions.DuplicateError(f"the first line names {', '.join(twice)} more than once")
    return heading


def _lines(content: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")


def _require_same_rows(content: bytes, separator: str, frame: pl.DataFrame) -> None:
    """Raise `ComputeError` unless a CSV file with quotes has the rows of `frame`, and each quote a meaning.

    polars drops some quotes that have none, such as those of `""tea""`, and reads missing fields as null.
    """
    rows = csv.reader(_lines(content), delimiter=separator, strict=True)
    count = 0
    try:
        for count, row in enumerate(dropwhile(_is_empty, rows)):  # noqa: B007 - the number of the last row
            # A line without a character is a null, if there is one column.
            if len(row) != frame.width and (row or frame.width > 1):
                how = "fewer" if len(row) < frame.width else "more"
                raise pl.exceptions.ComputeError(
                    f"line {rows.line_num} has {how} than {frame.width} fields, or a carriage return without quotes"
                )
    except csv.Error as error:
        raise pl.exceptions.ComputeError(
            f"line {rows.line_num} has text after a closing quote: double the quotes within a text in quotes"
        ) from error
    if count != frame.height:
        raise pl.exceptions.ComputeError("it has a carriage return within a line: write such texts in quotes")


def _is_empty(row: Sequence[str]) -> bool:
    return not row


def _short_line(content: bytes, separator: str, width: int) -> int | None:
    """Return the number of the first line of a CSV file without quotes, from 1, with fewer than `width` fields; None
    without one.

    polars reads the missing fields as null.
    """
    mark = separator.encode()
    if content.count(mark) == content.count(b"\n") * (width - 1):
        return None
    return next((n for n, line in enumerate(content.splitlines(), 1) if line.count(mark) < width - 1), None)


def _of_json(content: bytes, columns: Mapping[str, Column], texts: TextForm) -> pl.DataFrame:
    """Return the rows of JSON lines. A field that a line lacks is null; one that all lines lack is no column."""
    found: list[Mapping[str, Any]] = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            try:
                found.append(json_object(line))
            except BadMessage as error:
                raise pl.exceptions.ComputeError(f"line {number}: {error}") from error
    names = dict.fromkeys(name for one in found for name in one)
    return pl.DataFrame(
        [
            _column_of_json(name, [one.get(name) for one in found], columns.get(name), texts)
            for name in (names or columns)
        ]
    )


def _column_of_json(name: str, values: list[Any], column: Column | None, texts: TextForm) -> pl.Series:
    if column is None:
        return _guessed_of_json(name, values, texts)
    is_time = column.dtype in ("date", "datetime")
    convert = text_of if is_time else converter(column.dtype)
    for row, value in enumerate(values, 1):
        if value is not None:
            try:
                values[row - 1] = convert(value)
            except Unfit as error:
                raise ValueRefused(name, row, said_of(error, value, column.dtype)) from error
    if is_time:
        return times(pl.Series(name, values, pl.String()), polars_type(column.dtype), texts)
    return series_of(name, values, polars_type(column.dtype))


def _guessed_of_json(name: str, values: Sequence[Any], texts: TextForm) -> pl.Series:
    kinds = {type(value): name_of(value) for value in values if value is not None}
    if set(kinds) == {str}:
        return _first_exact(pl.Series(name, values, pl.String()), _TIMES, texts)
    plain = [_plain(value) for value in values]
    if set(kinds) == {int, Fraction}:
        plain = [None if value is None else float(value) for value in plain]
    elif len(kinds) > 1:
        first = next(type(value) for value in values if value is not None)
        row = next(n for n, value in enumerate(values, 1) if value is not None and type(value) is not first)
        raise ValueRefused(name, row, f"has values of different types: {' and '.join(kinds.values())}")
    try:
        return pl.Series(name, plain, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise ValueRefused(name, 1, "has values of different types, or beyond 64 bits") from error


def _plain(value: Any) -> Any:
    if isinstance(value, Fraction):
        return float(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return value
