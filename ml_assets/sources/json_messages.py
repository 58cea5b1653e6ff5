"""Decoding of JSON messages into rows of a contract. A message is a row or has a reason why it is none.

Pure functions. Strict: a value of another type is never converted. No reason repeats a value, because it may be
sensitive.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, NoReturn, cast
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from ml_assets.validation.column_types import polars_type
from ml_assets.validation.contract import Contract

Row = tuple[Any, ...]
"""Values of one row in the order of the contract. A moment is in microseconds since 1970 in UTC, a duration too."""

Kind = Literal["not JSON", "missing column", "null", "wrong type", "no event time", "future", "late"]
"""Class of the reasons why a message is not a row."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_JSON_NAMES = {
    str: "a text",
    int: "a whole number",
    float: "a fraction",
    bool: "a boolean",
    list: "a list",
    dict: "an object",
}


class BadMessage(Exception):
    """A message is not a row of the table."""

    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(reason)
        self.kind: Kind = kind


class _Unfit(Exception):
    """A value does not fit the type of its column."""


class MessageDecoder:
    """Decoder of messages that are JSON objects with the columns of a contract. Further fields are ignored."""

    def __init__(self, contract: Contract, time_column: str, *, absent_is_null: bool = False) -> None:
        """`time_column` decides the day of a row. `absent_is_null`: a nullable column may be missing in a message."""
        self._columns = [
            (name, column.nullable, column.dtype, _converter(column.dtype))
            for name, column in contract.by_name.items()
        ]
        self._types = {name: polars_type(column.dtype) for name, column in contract.by_name.items()}
        self._absent_is_null = absent_is_null
        self._time_column = time_column
        self._time_at = contract.names.index(time_column)
        self._is_date = contract.by_name[time_column].dtype == "date"
        self._zone = ZoneInfo(contract.event_time_zone)

    def decode(self, value: bytes | None) -> Row:
        """Return the row of a message. Raises `BadMessage`."""
        document = _document(value)
        row: list[Any] = []
        for name, nullable, dtype, convert in self._columns:
            if name not in document and not (nullable and self._absent_is_null):
                kind = "no event time" if name == self._time_column else "missing column"
                raise BadMessage(kind, f"column '{name}' is missing")
            found = document.get(name)
            if found is None:
                if name == self._time_column:
                    raise BadMessage("no event time", f"the event time '{name}' is null")
                if not nullable:
                    raise BadMessage("null", f"'{name}' is null, and the contract does not allow it")
                row.append(None)
                continue
            try:
                row.append(convert(found))
            except _Unfit as error:
                raise BadMessage("wrong type", f"'{name}' {_said(error, found, dtype)}") from error
        return tuple(row)

    def event_time(self, row: Row) -> int:
        """Return the event time of a row in microseconds since 1970; for a date, the begin of that day."""
        found: Any = row[self._time_at]
        if self._is_date:
            return _micros(datetime.combine(found, time(), self._zone))
        return found

    def moment(self, row: Row) -> datetime:
        """Return `event_time` as a moment (UTC)."""
        return _EPOCH + timedelta(microseconds=self.event_time(row))

    def frame(self, rows: Sequence[Row]) -> pl.DataFrame:
        """Return rows as a frame with the columns and types of the contract."""
        values = list(zip(*rows, strict=True)) if rows else [()] * len(self._types)
        return pl.DataFrame(
            [
                _series(name, some, dtype)
                for (name, dtype), some in zip(self._types.items(), values, strict=True)
            ]
        )


def _said(error: _Unfit, value: Any, dtype: str) -> str:
    return str(error) or f"is {_JSON_NAMES.get(type(value), 'null')}, not {dtype}"


def _document(value: bytes | None) -> Mapping[str, Any]:
    if value is None:
        raise BadMessage("not JSON", "the message has no value")
    try:
        found: object = json.loads(value.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadMessage("not JSON", "the message is not valid JSON in UTF-8") from error
    if not isinstance(found, dict):
        raise BadMessage("not JSON", f"the message is {_JSON_NAMES.get(type(found), 'null')}, not an object")
    return cast("dict[str, Any]", found)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _series(name: str, values: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    if isinstance(dtype, pl.Datetime | pl.Duration):
        return pl.Series(name, values, pl.Int64()).cast(dtype)
    if isinstance(dtype, pl.Categorical):
        return pl.Series(name, values, pl.String()).cast(dtype)
    if isinstance(dtype, pl.List | pl.Array) and isinstance(dtype.inner, pl.Datetime | pl.Duration):
        plain = pl.List(pl.Int64()) if isinstance(dtype, pl.List) else pl.Array(pl.Int64(), dtype.size)
        return pl.Series(name, values, plain).cast(dtype)
    return pl.Series(name, values, dtype)


def _converter(dtype: str) -> Callable[[Any], Any]:
    """Return the function that turns a JSON value, never null, into a value of a column. It raises `_Unfit`."""
    kind = polars_type(dtype)
    if kind.is_integer():
        limits = np.iinfo(dtype)
        return _integer(dtype, int(limits.min), int(limits.max))
    if isinstance(kind, pl.List | pl.Array):
        inner = dtype.partition("[")[2].rstrip("]").partition(",")[0]
        return _list(inner, kind.size if isinstance(kind, pl.Array) else None)
    if isinstance(kind, pl.Decimal):
        return _decimal(kind.precision or 38, kind.scale)
    return _CONVERTERS[dtype]


def _integer(dtype: str, low: int, high: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        if type(value) is not int:
            raise _Unfit
        if not low <= value <= high:
            raise _Unfit(f"is outside the range of {dtype}")
        return value

    return convert


def _float64(value: Any) -> float:
    if type(value) is int:
        if abs(value) > 2**53:
            raise _Unfit("is a whole number that float64 does not hold exactly")
        return float(value)
    if type(value) is not float:
        raise _Unfit
    if value in (float("inf"), float("-inf")):  # JSON has no infinity, but 1e999 is one
        raise _Unfit("is outside the range of float64")
    return value


def _float32(value: Any) -> float:
    found = _float64(value)
    if abs(found) > float(np.finfo(np.float32).max):
        raise _Unfit("is outside the range of float32")
    return found


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _Unfit
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _Unfit
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise _Unfit("has half of a surrogate pair, which is no character") from error
    return value


def _date(value: Any) -> date:
    text = _text(value)
    try:
        if len(text) == len("2024-03-08"):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise _Unfit("is not a date such as 2024-03-08")


def _moment(value: Any) -> int:
    text = _text(value)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise _Unfit("is not a moment with its offset from UTC, such as 2024-03-08T12:00:00Z")
    digits = re.split("[.,]", text)[-1].rstrip("Zz").partition("+")[0].partition("-")[0]
    if len(digits) > len("123456") and re.search("[.,]", text) and digits[6:].strip("0"):
        raise _Unfit("is more precise than microseconds")
    return _micros(found)


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def _seconds(value: Any) -> int:
    return round(_float64(value) * 1e6)


def _base64(value: Any) -> bytes:
    try:
        return base64.b64decode(_text(value), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _Unfit("is not base64") from error


def _decimal(precision: int, scale: int) -> Callable[[Any], Decimal]:
    def convert(value: Any) -> Decimal:
        if type(value) not in (int, str):
            raise _Unfit("is neither a whole number nor a text: write a decimal as text, such as '1.50'")
        try:
            found = Decimal(value)
        except InvalidOperation as error:
            raise _Unfit("is not a decimal") from error
        if not found.is_finite():
            raise _Unfit("is not a decimal")
        _, digits, exponent = found.as_tuple()
        zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
        if -int(exponent) - zeros > scale or found.adjusted() >= precision - scale > 0 != found:
            raise _Unfit(f"does not fit decimal[{precision}, {scale}]")
        return found

    return convert


def _list(inner: str, size: int | None) -> Callable[[Any], list[Any]]:
    convert = _converter(inner)

    def convert_all(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _Unfit
        items = cast("list[Any]", value)
        if size is not None and len(items) != size:
            raise _Unfit(f"has {len(items)} items, not {size}")
        found: list[Any] = []
        for item in items:
            try:
                found.append(None if item is None else convert(item))
            except _Unfit as error:
                raise _Unfit(f"has an item that {_said(error, item, inner)}") from error
        return found

    return convert_all


_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "float32": _float32,
    "float64": _float64,
    "bool": _bool,
    "string": _text,
    "categorical": _text,
    "date": _date,
    "datetime": _moment,
    "duration": _seconds,
    "binary": _base64,
}
