"""Names of column types in this project, and the polars type of each.

The names are our own, because `str(polars_dtype)` changes between polars versions and a stored schema hash must not.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated

import polars as pl
from pydantic import AfterValidator, Field

POLARS_TYPES: dict[str, pl.DataType] = {
    "int8": pl.Int8(),
    "int16": pl.Int16(),
    "int32": pl.Int32(),
    "int64": pl.Int64(),
    "uint8": pl.UInt8(),
    "uint16": pl.UInt16(),
    "uint32": pl.UInt32(),
    "uint64": pl.UInt64(),
    "float32": pl.Float32(),
    "float64": pl.Float64(),
    "bool": pl.Boolean(),
    "string": pl.String(),
    "date": pl.Date(),
    "datetime": pl.Datetime("us", "UTC"),
    "duration": pl.Duration("us"),
    "categorical": pl.Categorical(),
    "binary": pl.Binary(),
}
"""Names without arguments. `datetime` is in microseconds and UTC, `duration` in microseconds. Other times get another
name and so break the contract. `categorical` is a text that is stored as a dictionary. `binary` is bytes: an image, a
sound, a text."""
_WITH_ARGUMENTS = {
    "decimal": re.compile(r"decimal\[\s*(\d+)\s*,\s*(\d+)\s*\]"),
    "list": re.compile(r"list\[\s*(\w+)\s*\]"),
    "array": re.compile(r"array\[\s*(\w+)\s*,\s*(\d+)\s*\]"),
}
_MOST_DIGITS = 38
NUMERIC = frozenset(name for name in POLARS_TYPES if name.startswith(("int", "uint", "float")))
FLOATS = frozenset({"float32", "float64"})

_NAMES = {dtype: name for name, dtype in POLARS_TYPES.items()}

Schema = tuple[tuple[str, str], ...]
"""Ordered (column name, type name)."""


def polars_type(name: str) -> pl.DataType:
    """Return the polars type of a name: one of `POLARS_TYPES`, `decimal[18, 4]` (digits in all, after the point),
    `list[int64]`, or `array[float32, 384]` (a vector of fixed size, such as an embedding).

    Raises `ValueError` with the legal names.
    """
    if name in POLARS_TYPES:
        return POLARS_TYPES[name]
    if found := _WITH_ARGUMENTS["decimal"].fullmatch(name):
        digits, scale = map(int, found.groups())
        if not 1 <= digits <= _MOST_DIGITS or scale > digits:
            raise ValueError(
                f"'{name}' is not a type: a decimal has 1 to {_MOST_DIGITS} digits, and no more of them after the point"
            )
        return pl.Decimal(digits, scale)
    for kind in ("list", "array"):
        if found := _WITH_ARGUMENTS[kind].fullmatch(name):
            inner, *size = found.groups()
            if inner not in POLARS_TYPES or inner == "binary":
                raise ValueError(
                    f"'{name}' is not a type: items of a {kind} have a plain type such as float32"
                )
            if size and not int(size[0]):
                raise ValueError(f"'{name}' is not a type: a vector has at least one item")
            return pl.Array(POLARS_TYPES[inner], int(size[0])) if size else pl.List(POLARS_TYPES[inner])
    nearest = get_close_matches(name, POLARS_TYPES, n=1)
    raise ValueError(
        f"'{name}' is not a type{f'; did you mean {nearest[0]!r}?' if nearest else ''} There are "
        f"{', '.join(POLARS_TYPES)}, decimal[18, 4], list[int64] and array[float32, 384], with other numbers and items"
    )


def _must_be_a_type(name: str) -> str:
    return type_name(polars_type(name))  # normal form: `decimal[18,4]` and `decimal[18, 4]` are one type


TypeName = Annotated[
    str,
    AfterValidator(_must_be_a_type),
    Field(
        json_schema_extra={
            "anyOf": [
                {"enum": list(POLARS_TYPES)},
                {"pattern": r"^(decimal\[\d+, ?\d+\]|list\[\w+\]|array\[\w+, ?\d+\])$"},
            ]
        }
    ),
]
"""Name that `polars_type` knows, in its normal form."""


def is_nested(name: str) -> bool:
    """True for lists and vectors."""
    return name.startswith(("list[", "array["))


def is_decimal(name: str) -> bool:
    """True for decimals of any size."""
    return name.startswith("decimal[")


def type_name(dtype: pl.DataType) -> str:
    """Return this project's name of a polars type. Types that no contract can name get a descriptive name."""
    if dtype in _NAMES:
        return _NAMES[dtype]
    if isinstance(dtype, pl.Datetime):
        return f"datetime[{dtype.time_unit}, {dtype.time_zone or 'no time zone'}]"
    if isinstance(dtype, pl.List):
        return f"list[{_inner_name(dtype)}]"
    if isinstance(dtype, pl.Array):
        return f"array[{_inner_name(dtype)}, {dtype.size}]"
    if isinstance(dtype, pl.Decimal):
        return f"decimal[{dtype.precision}, {dtype.scale}]"
    if isinstance(dtype, pl.Duration):
        return f"duration[{dtype.time_unit}]"
    return type(dtype).__name__.lower()


def _inner_name(dtype: pl.List | pl.Array) -> str:
    inner = dtype.inner
    return type_name(inner() if isinstance(inner, type) else inner)


def schema_of(frame: pl.DataFrame | pl.LazyFrame) -> Schema:
    """Return (name, type name) of a frame's columns, in order."""
    return tuple((name, type_name(dtype)) for name, dtype in frame.collect_schema().items())


def schema_hash(schema: Sequence[tuple[str, str]]) -> str:
    """Return the SHA-256 (64 hex digits) of ordered (name, type name). Training compares it before it is launched."""
    canonical = json.dumps([list(column) for column in schema], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def explain_columns(found: Mapping[str, str], expected: Mapping[str, str]) -> str:
    """Return in words how `found` (column → type name, in order) differs from `expected`; empty if they are equal."""
    said = [
        f"{name} is {dtype}, not {expected[name]}"
        for name, dtype in found.items()
        if expected.get(name, dtype) != dtype
    ]
    said += [f"{name} ({dtype}) is missing" for name, dtype in expected.items() if name not in found]
    said += [f"{name} ({dtype}) is added" for name, dtype in found.items() if name not in expected]
    if not said and list(found) != list(expected):
        return "they have another order"
    return ", ".join(said)
