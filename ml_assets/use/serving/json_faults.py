"""Faults of a body that the fast reader of JSON does not name by column: a repeated column, a number beyond JSON.

orjson takes the last of two equal columns without a word, and tells only the place of a `NaN`. Python's own reader
shows both, and takes ten times as long, so it reads only bodies that may have such a fault. Not here: rows and
refusals (`raw_rows`).
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

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


def fault_of_invalid(body: bytes) -> JsonFault | None:
    """Return the column that makes `body` invalid by its value; None if the fault is another one."""
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
