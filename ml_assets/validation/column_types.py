"""Names of column types in this project, and the polars type of each.

The names are our own, because `str(polars_dtype)` changes between polars versions and a stored schema hash must not.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Literal

import polars as pl

TypeName = Literal[
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
    "bool",
    "string",
    "date",
    "datetime",
    "binary",
]
"""`datetime` is in microseconds and UTC. Other times get another name and so break the contract. `binary` is bytes:
an image, a sound, a text."""

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
    "binary": pl.Binary(),
}
NUMERIC = frozenset(name for name in POLARS_TYPES if name.startswith(("int", "uint", "float")))
FLOATS = frozenset({"float32", "float64"})

_NAMES = {dtype: name for name, dtype in POLARS_TYPES.items()}

Schema = tuple[tuple[str, str], ...]
"""Ordered (column name, type name)."""


def type_name(dtype: pl.DataType) -> str:
    """Return this project's name of a polars type. Types that no contract can name get a descriptive name."""
    if dtype in _NAMES:
        return _NAMES[dtype]
    if isinstance(dtype, pl.Datetime):
        return f"datetime[{dtype.time_unit}, {dtype.time_zone or 'no time zone'}]"
    if isinstance(dtype, pl.List):
        inner = dtype.inner
        return f"list[{type_name(inner() if isinstance(inner, type) else inner)}]"
    return type(dtype).__name__.lower()


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
