"""Raw rows of a request: parsed, predicted, and if they are refused, the field and the reason in plain words.

orjson takes the last of two equal columns without a word, and tells only the place of a `NaN`. Python's own reader
shows both, and takes ten times as long, so it reads only bodies that may have such a fault. Here: from the bytes of a
body to the numbers of a prediction. Not here: HTTP (`app`), the prediction itself (`release.runtime`).
"""

import base64
import binascii
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import orjson
import polars as pl

from ml_assets.model.release.runtime import InputColumn, InputRefused, RowRefused, ServingModel

RawRow = dict[str, Any]
Prediction = float | dict[str, float]
"""A number, or the name of each number → number, such as class → probability."""
_NESTING = 100
"""Levels of lists and objects in a value. orjson reads 1,024 and writes 254."""
_SHOWN = 60
"""Characters of a refused value in a message."""


_SPACED = (b" :", b"\t:", b"\n:", b"\r:")


@dataclass(frozen=True)
class JsonFault:
    """A fault, its column, and its row of a list, from 0."""

    said: str
    """Fault and remedy, in words that follow the name of the column."""
    field: str
    row: int | None


class _Pairs(list[tuple[str, Any]]):
    """Keys and values of an object, also repeated ones."""


@dataclass(frozen=True)
class _Beyond:
    """Number that JSON does not have, or that no float holds."""

    text: str


def repeated_column(
    body: bytes, content: Mapping[str, Any] | Sequence[Mapping[str, Any]]
) -> JsonFault | None:
    """Return the first column that a row, or an object in it, has twice; None without one.

    `content` are the rows that orjson read from `body`.
    """
    rows = [content] if isinstance(content, Mapping) else content
    keys = sum(len(row) + sum(map(_keys_inside, row.values())) for row in rows)
    # Each key has a colon behind it, and a text may have more. So equal counts prove that no key was dropped.
    if body.count(b":") == keys:
        return None
    if body.count(b'":') == keys and not any(colon in body for colon in _SPACED):
        return None
    return next(_faults(body), None)


def _keys_inside(value: Any) -> int:
    if type(value) not in (dict, list):
        return 0
    found, level = 0, [value]
    while level:
        found += sum(len(cast("dict[str, Any]", one)) for one in level if isinstance(one, dict))
        inner = [
            x
            for one in level
            for x in (cast("dict[str, Any]", one).values() if isinstance(one, dict) else one)
        ]
        level = [one for one in inner if type(one) in (dict, list)]
    return found


def _faults(body: bytes) -> Iterator[JsonFault]:
    """Yield the faults of a body by row and column; none if Python cannot read it either."""
    try:
        content: Any = json.loads(
            body.decode(),
            object_pairs_hook=_Pairs,
            parse_constant=_Beyond,
            parse_float=_number,
            parse_int=_number,
        )
    except (ValueError, RecursionError):
        return
    is_row = isinstance(content, _Pairs)
    rows = cast("list[object]", [content] if is_row else content if isinstance(content, list) else [])
    for place, row in enumerate(rows):
        if not isinstance(row, _Pairs):
            continue
        where = None if is_row else place
        counts = Counter(name for name, _ in row)
        for name, value in row:
            said = "is there twice: send it once" if counts[name] > 1 else _fault_of_value(value)
            if said:
                yield JsonFault(said, name, where)


def _number(text: str) -> object:
    return _Beyond(text) if math.isinf(float(text)) else 0


def _fault_of_value(value: Any) -> str:
    level = [value]
    while level:
        inner: list[Any] = []
        for one in level:
            if isinstance(one, _Beyond):
                return f"holds {one.text[:60]}, which is no number of JSON: send null if the value is unknown"
            if (
                isinstance(one, str)
                and not one.isascii()
                and any("\ud800" <= sign <= "\udfff" for sign in one)
            ):
                return f"holds the text {one[:60]!a}, which is not valid Unicode: send whole characters"
            if isinstance(one, _Pairs):
                if repeated := [name for name, many in Counter(name for name, _ in one).items() if many > 1]:
                    return f"holds an object with {repeated[0]!r} twice: send it once"
                inner += [each for _, each in one]
            elif isinstance(one, list):
                inner += cast("list[Any]", one)
        level = inner
    return ""


class RequestRefused(Exception):
    """A request gets no prediction. The message has fault and remedy."""

    def __init__(self, status: int, message: str, field: str | None = None, row: int | None = None) -> None:
        """Refuse with a `status` of HTTP because of the column `field` in `row` of a batch, from 0."""
        super().__init__(message)
        self.status, self.message, self.field, self.row = status, message, field, row

    def at(self, row: int) -> Self:
        """Return the same refusal about another place in the batch."""
        said = self.message if self.row is None else self.message.replace(f"row {self.row}", f"row {row}")
        return type(self)(self.status, said, self.field, row)


def parse(body: bytes, most_rows: int) -> RawRow | list[RawRow]:
    """Return the row or the batch that a body holds. Raises `RequestRefused` if it is neither, or too long."""
    try:
        content: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if fault := next(_faults(body), None):
            raise _by_column(400, fault) from None
        raise RequestRefused(
            400,
            f"the body is not valid JSON: {error}. NaN and Infinity are not JSON: send null where a value is unknown",
        ) from None
    if isinstance(content, dict):
        row = cast(RawRow, content)
        _refuse_nesting(row, None)
        _refuse_repeated(body, row)
        return row
    if not isinstance(content, list):
        raise RequestRefused(
            422, f"the body is {_kind(content)}: send an object, which is one row, or a list of objects"
        )
    rows = cast(list[Any], content)
    if not rows:
        raise RequestRefused(422, "the list is empty: send at least one row")
    if len(rows) > most_rows:
        raise RequestRefused(
            413, f"the list has {len(rows)} rows, and at most {most_rows} are allowed: send several requests"
        )
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise RequestRefused(
                422, f"row {number} is {_kind(row)}: send an object, column → value", row=number
            )
        _refuse_nesting(cast(RawRow, row), number)
    _refuse_repeated(body, rows)
    return rows


def _refuse_repeated(body: bytes, content: RawRow | list[RawRow]) -> None:
    """Raise `RequestRefused` for a column that is sent twice: two readers could take two values."""
    if fault := repeated_column(body, content):
        raise _by_column(422, fault)


def _by_column(status: int, fault: JsonFault) -> RequestRefused:
    return RequestRefused(status, f"column {fault.field!r} {fault.said}", fault.field, fault.row)


def _refuse_nesting(row: RawRow, number: int | None) -> None:
    """Raise `RequestRefused` for a value that is nested so deeply that the log could not write it as JSON."""
    for name, value in row.items():
        if type(value) not in (list, dict):
            continue
        level = [value]
        for _ in range(_NESTING):
            level = [inner for one in level for inner in _inside(one)]
            if not level:
                break
        else:
            raise RequestRefused(
                422,
                f"column {name!r} is nested more than {_NESTING} levels deep: send it as a text",
                name,
                number,
            )


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast(dict[str, Any], value).values()
    return cast(list[Any], value) if isinstance(value, list) else ()


def predict_one(model: ServingModel, row: RawRow) -> Prediction:
    """Return the prediction for one row. Raises `RequestRefused`."""
    try:
        return model.predict_row(_with_blob(model, row))
    except Exception as error:
        _refuse_faults(model, row, None)
        raise _refusal(model, error, None) from error


def predict_many(model: ServingModel, rows: Sequence[RawRow]) -> list[Prediction]:
    """Return the predictions for rows, the same as of one row at a time. Raises `RequestRefused`."""
    frame = None if model.blob else _frame(model, rows)
    if frame is not None:
        try:
            found = model.predict(frame).tolist()
        except (InputRefused, pl.exceptions.PolarsError):
            pass  # the loop below finds the row
        else:
            return [dict(zip(model.columns, one, strict=True)) for one in found] if model.columns else found
    answers: list[Prediction] = []
    for number, row in enumerate(rows):
        try:
            answers.append(model.predict_row(_with_blob(model, row, number)))
        except RequestRefused:
            raise
        except Exception as error:
            _refuse_faults(model, row, number)
            raise _refusal(model, error, number) from error
    return answers


def numbers_of(prediction: Prediction) -> list[float]:
    """Return the numbers of a prediction, in the order of `ServingModel.columns`."""
    return list(prediction.values()) if isinstance(prediction, dict) else [prediction]


def _frame(model: ServingModel, rows: Sequence[RawRow]) -> pl.DataFrame | None:
    """Return the columns that the model reads; None if one is missing, or mixes values of several kinds."""
    try:
        return pl.DataFrame([_column(column, [row[column.name] for row in rows]) for column in model.inputs])
    except (KeyError, TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        return None


def _column(column: InputColumn, values: list[Any]) -> pl.Series:
    if column.kind != "numeric":
        kinds: set[type[object]] = {type(value) for value in values if value is not None}
        if len(kinds) > 1:
            raise TypeError  # in one series 1 becomes "1.0" beside 2.5
        return pl.Series(column.name, values, strict=True)
    if not all(value is None or isinstance(value, int | float) for value in values):
        raise TypeError
    return pl.Series(
        column.name, [None if value is None else float(value) for value in values], dtype=pl.Float64
    )


def _with_blob(model: ServingModel, row: RawRow, number: int | None = None) -> Mapping[str, Any]:
    """Return the row with its blob as bytes: JSON has only text, so a blob is sent as base64."""
    content = row.get(model.blob) if model.blob else None
    if not isinstance(content, str):
        return row
    try:
        return {**row, model.blob: base64.b64decode(content, validate=True)}
    except (binascii.Error, ValueError):
        raise RequestRefused(
            422,
            f"column {model.blob!r} is not base64: send the bytes of the blob as base64",
            model.blob,
            number,
        ) from None


def _refuse_faults(model: ServingModel, row: RawRow, number: int | None) -> None:
    """Raise `RequestRefused` for the first column that is missing or holds a value of another kind."""
    for column in model.inputs:
        if column.name not in row:
            raise RequestRefused(
                422,
                f"column {column.name!r} is missing: send {_wanted(column)}",
                column.name,
                number,
            )
        value = row[column.name]
        is_right = value is None or (
            isinstance(value, bool | int | float)
            if column.kind == "numeric"
            else isinstance(value, str)
            if column.kind == "blob"
            else isinstance(value, bool | int | float | str)
        )
        if not is_right:
            raise RequestRefused(
                422,
                f"column {column.name!r} holds {_kind(value)}: send {_wanted(column)}",
                column.name,
                number,
            )


def _refusal(model: ServingModel, error: Exception, number: int | None) -> Exception:
    """Return the refusal for an error of the runtime; an error of another kind stays as it is."""
    if not isinstance(error, InputRefused):
        return error
    said = str(error)
    if isinstance(error, RowRefused):
        said = str(error.named("of the request" if number is None else str(number)))
    field = next((column.name for column in model.inputs if repr(column.name) in said), None)
    return RequestRefused(422, said, field, number)


def _wanted(column: InputColumn) -> str:
    if column.kind == "numeric":
        return f"a number or a boolean ({column.dtype}), or null if it is unknown"
    return (
        "bytes as base64"
        if column.kind == "blob"
        else f"a category ({column.dtype}), or null if it is unknown"
    )


def _kind(value: object) -> str:
    """Describe a JSON value for a message, shortened."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case dict():
            return "an object"
        case list():
            return "a list"
        case str():
            return f"the text {value[:_SHOWN]!r}"
        case _:
            return f"the number {value}"
