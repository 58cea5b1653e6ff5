"""Decoding of JSON messages into rows of a contract. A message is a row or has a reason why it is none.

Pure functions. Strict: a value of another type is never converted, and no digit is lost. No reason repeats a value,
because it may be sensitive. Files of JSON lines use the same rules (`file_formats`).
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, NoReturn, cast
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from ml_assets.data.sources.text_values import DATE, DECIMAL, MOMENT, float_of, microseconds
from ml_assets.data.validation.column_types import polars_type
from ml_assets.data.validation.contract import Contract

Row = tuple[Any, ...]
"""Values of one row in the order of the contract. A moment is in microseconds since 1970 in UTC, a duration too."""

Kind = Literal["not JSON", "missing column", "null", "wrong type", "no event time", "future", "late"]
"""Class of the reasons why a message is not a row."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


FIRST_EVENT, END_OF_EVENTS = (
    (datetime(*day, tzinfo=UTC) - EPOCH) // MICROSECOND for day in ((1, 1, 3), (9999, 12, 30))
)
"""Microseconds since 1970 from and before which a moment has a day with neighbours in the calendar of each zone."""


class Fraction(str):
    """Digits of a JSON number with a point or an exponent, as they were written."""

    __slots__ = ()


_JSON_NAMES = {
    str: "a text",
    int: "a whole number",
    Fraction: "a fraction",
    bool: "a boolean",
    list: "a list",
    dict: "an object",
}


class BadMessage(Exception):
    """A message is not a row of the table."""

    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(reason)
        self.kind: Kind = kind


class Unfit(Exception):
    """A value does not fit the type of its column."""


class MessageDecoder:
    """Decoder of messages that are JSON objects with the columns of a contract. Further fields are ignored."""

    def __init__(self, contract: Contract, time_column: str, *, absent_is_null: bool = False) -> None:
        """`time_column` decides the day of a row. `absent_is_null`: a nullable column may be missing in a message."""
        self._columns = [
            (name, column.nullable, column.dtype, converter(column.dtype))
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
        document = json_object(value)
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
            except Unfit as error:
                raise BadMessage("wrong type", f"'{name}' {said_of(error, found, dtype)}") from error
        # Without this, the zero time of Go (0001-01-01T00:00:00Z) landed under a day that no reader can name.
        if not FIRST_EVENT <= self.event_time(tuple(row)) < END_OF_EVENTS:
            raise BadMessage(
                "no event time", f"the event time '{self._time_column}' is at an end of the calendar"
            )
        return tuple(row)

    def event_time(self, row: Row) -> int:
        """Return the event time of a row in microseconds since 1970; for a date, the begin of that day."""
        found: Any = row[self._time_at]
        if self._is_date:
            return micros(datetime.combine(found, time(), self._zone))
        return found

    def moment(self, row: Row) -> datetime:
        """Return `event_time` as a moment (UTC)."""
        return EPOCH + timedelta(microseconds=self.event_time(row))

    def frame(self, rows: Sequence[Row]) -> pl.DataFrame:
        """Return rows as a frame with the columns and types of the contract."""
        values = list(zip(*rows, strict=True)) if rows else [()] * len(self._types)
        return pl.DataFrame(
            [
                series_of(name, some, dtype)
                for (name, dtype), some in zip(self._types.items(), values, strict=True)
            ]
        )


def said_of(error: Unfit, value: Any, dtype: str) -> str:
    """Return why a value does not fit a type."""
    return str(error) or f"is {name_of(value)}, not {dtype}"


def name_of(value: Any) -> str:
    """Return the name of a JSON value's type, for a message."""
    return _JSON_NAMES.get(type(value), "null")


def json_object(value: bytes | None) -> Mapping[str, Any]:
    """Return a JSON object, with fractions as `Fraction`. Raises `BadMessage`."""
    if value is None:
        raise BadMessage("not JSON", "the message has no value")
    try:
        found: object = _DECODER.decode(value.decode())
    except _NamedTwice as error:
        raise BadMessage("not JSON", "the message has a field twice") from error
    except (ValueError, RecursionError) as error:
        raise BadMessage("not JSON", "the message is not valid JSON in UTF-8") from error
    if not isinstance(found, dict):
        raise BadMessage("not JSON", f"the message is {name_of(found)}, not an object")
    return cast("dict[str, Any]", found)


class _NamedTwice(ValueError):
    """An object has a name twice; all values but the last would be lost."""


def _with_each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _NamedTwice
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Made once: `json.loads` makes a decoder for each message.
_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=Fraction, object_pairs_hook=_with_each_name_once
)


def series_of(name: str, values: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    """Return values of a row's column, see `Row`, as a series."""
    if isinstance(dtype, pl.Datetime | pl.Duration):
        return pl.Series(name, values, pl.Int64()).cast(dtype)
    if isinstance(dtype, pl.Categorical):
        return pl.Series(name, values, pl.String()).cast(dtype)
    if isinstance(dtype, pl.List | pl.Array) and isinstance(dtype.inner, pl.Datetime | pl.Duration):
        plain = pl.List(pl.Int64()) if isinstance(dtype, pl.List) else pl.Array(pl.Int64(), dtype.size)
        return pl.Series(name, values, plain).cast(dtype)
    return pl.Series(name, values, dtype)


def converter(dtype: str) -> Callable[[Any], Any]:
    """Return the function that turns a JSON value, never null, into a value of a column. It raises `Unfit`."""
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
            raise Unfit
        if not low <= value <= high:
            raise Unfit(f"is outside the range of {dtype}")
        return value

    return convert


def _float(dtype: str) -> Callable[[Any], float]:
    def convert(value: Any) -> float:
        if type(value) not in (int, Fraction):
            raise Unfit
        try:
            return float_of(str(value), dtype)
        except ValueError as error:
            raise Unfit(str(error)) from error

    return convert


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise Unfit
    return value


def text_of(value: Any) -> str:
    """Return a JSON text. Raises `Unfit` for another value, and for half of a surrogate pair."""
    if type(value) is not str:
        raise Unfit
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Unfit("has half of a surrogate pair, which is no character") from error
    return value


def _date(value: Any) -> date:
    text = text_of(value)
    try:
        if re.fullmatch(DATE, text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise Unfit("is not a date such as 2024-03-08")


def _moment(value: Any) -> int:
    found = re.fullmatch(MOMENT, text_of(value))
    if found is None or found["offset"] is None:
        raise Unfit("is not a moment with its offset from UTC, such as 2024-03-08T12:00:00Z")
    if (found["fraction"] or "")[6:].strip("0"):
        raise Unfit("is more precise than microseconds")
    try:
        return micros(datetime.fromisoformat(value).astimezone(UTC))
    except (ValueError, OverflowError) as error:
        raise Unfit("is not a moment of the calendar, in the years 1 to 9999") from error


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def _seconds(value: Any) -> int:
    if type(value) not in (int, Fraction):
        raise Unfit
    try:
        return microseconds(str(value))
    except ValueError as error:
        raise Unfit(str(error)) from error


def _base64(value: Any) -> bytes:
    try:
        found = base64.b64decode(text_of(value), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Unfit("is not base64") from error
    if base64.b64encode(found).decode() != value:  # it has bits after the last byte, which would be lost
        raise Unfit("is not base64")
    return found


def _decimal(precision: int, scale: int) -> Callable[[Any], Decimal]:
    def convert(value: Any) -> Decimal:
        if type(value) not in (int, str):
            raise Unfit("is neither a whole number nor a text: write a decimal as text, such as '1.50'")
        if not re.fullmatch(DECIMAL, str(value)):
            raise Unfit("is not a decimal")
        found = Decimal(value)
        _, digits, exponent = found.as_tuple()
        zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
        if -int(exponent) - zeros > scale or found.adjusted() >= precision - scale > 0 != found:
            raise Unfit(f"does not fit decimal[{precision}, {scale}]")
        return found

    return convert


def _list(inner: str, size: int | None) -> Callable[[Any], list[Any]]:
    convert = converter(inner)

    def convert_all(value: Any) -> list[Any]:
        if type(value) is not list:
            raise Unfit
        items = cast("list[Any]", value)
        if size is not None and len(items) != size:
            raise Unfit(f"has {len(items)} items, not {size}")
        found: list[Any] = []
        for item in items:
            try:
                found.append(None if item is None else convert(item))
            except Unfit as error:
                raise Unfit(f"has an item that {said_of(error, item, inner)}") from error
        return found

    return convert_all


_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "float32": _float("float32"),
    "float64": _float("float64"),
    "bool": _bool,
    "string": text_of,
    "categorical": text_of,
    "date": _date,
    "datetime": _moment,
    "duration": _seconds,
    "binary": _base64,
}
