"""Rows with any value of each type of a contract, their texts, and the comparison bit for bit."""

import base64
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import numpy as np
import polars as pl
from hypothesis import strategies as st

from ml_assets.data.validation.column_types import polars_type
from ml_assets.data.validation.contract import Contract

Row = dict[str, Any]
_WIDE = Context(prec=60)


def _whole(bits: int, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high) | st.sampled_from([low, high])


_TEXTS = st.text() | st.sampled_from(
    ["", " ", "NA", "null", "007", "+1", "1.50", "TRUE", "a\r\nb", '"', "'", ",;\t", "\\"]
)
_MOMENTS = st.datetimes(timezones=st.just(UTC)) | st.sampled_from(
    [datetime(1, 1, 1, tzinfo=UTC), datetime(1677, 1, 1, tzinfo=UTC), datetime(2262, 5, 1, tzinfo=UTC)]
)
PLAIN: Mapping[str, st.SearchStrategy[Any]] = {
    **{
        f"{'' if signed else 'u'}int{bits}": _whole(bits, signed)
        for bits in (8, 16, 32, 64)
        for signed in (True, False)
    },
    "float32": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "string": _TEXTS,
    "categorical": _TEXTS,
    "date": st.dates(),
    "datetime": _MOMENTS,
    "duration": _whole(64, signed=True).map(lambda ticks: timedelta(microseconds=ticks)),
    "binary": st.binary(),
    "decimal[6, 2]": st.decimals(-9999, 9999, places=2),
    "decimal[38, 10]": st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(n).scaleb(-10, _WIDE)),
}
"""Type → its values, without infinities, which JSON has no text for."""
_LIMITS = {
    name: (int(np.iinfo(name).min), int(np.iinfo(name).max))
    for name in PLAIN
    if name.startswith(("int", "uint"))
}
LISTS: Mapping[str, st.SearchStrategy[Any]] = {
    f"list[{inner}]": st.lists(st.none() | PLAIN[inner], max_size=3)
    for inner in ("int64", "float64", "string", "date", "datetime", "duration", "bool")
} | {"array[float32, 2]": st.lists(PLAIN["float32"], min_size=2, max_size=2)}


def names_of(types: Sequence[str]) -> dict[str, str]:
    """Return column → type, a column for each type."""
    return {f"c{number}": dtype for number, dtype in enumerate(types)}


def contract_of(types: Sequence[str]) -> Contract:
    """Return the contract of `rows_of`: a key, and a nullable column for each type."""
    columns = [{"name": name, "dtype": dtype, "nullable": True} for name, dtype in names_of(types).items()]
    return Contract.model_validate(
        {"primary_key": ["id"], "columns": [{"name": "id", "dtype": "int64"}, *columns]}
    )


def rows_of(types: Sequence[str]) -> st.SearchStrategy[list[Row]]:
    """Draw one to four rows with any value, or null, of each type."""
    columns = {name: st.none() | (PLAIN | LISTS)[dtype] for name, dtype in names_of(types).items()}
    rows = st.lists(st.fixed_dictionaries(columns), min_size=1, max_size=4)
    return rows.map(lambda some: [{"id": number, **row} for number, row in enumerate(some)])


EDGES: Mapping[str, Sequence[Any]] = {
    "float32": [float(np.float32(0.1)), 3.4028234663852886e38, 1.401298464324817e-45],
    "float64": [2.0**-44, 1.7976931348623157e308, 5e-324],
    "string": ["NA", "", " 007\r\n"],
    "categorical": ["null", "+1", "Größe"],
    "date": [date(1, 1, 1), date(9999, 12, 31)],
    "datetime": [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)],
    "duration": [timedelta(seconds=8, milliseconds=200), timedelta(microseconds=-(2**63))],
    "decimal[6, 2]": [Decimal("-9999.99"), Decimal("1.50")],
}
"""Type → values at its edges, and values that parsers like to change."""


def edges(types: Sequence[str]) -> list[Row]:
    """Return rows with the edges of each type, and a row of nulls."""
    rows: list[Row] = [{"id": number, **dict.fromkeys(names_of(types))} for number in range(4)]
    for name, dtype in names_of(types).items():
        whole = _LIMITS.get(dtype)
        for row, value in zip(rows, whole or EDGES.get(dtype, ()), strict=False):
            row[name] = value
    return rows


def frame_of(rows: Sequence[Row], types: Sequence[str]) -> pl.DataFrame:
    """Return rows as a frame with the types of `contract_of`."""
    schema = {"id": pl.Int64(), **{name: polars_type(dtype) for name, dtype in names_of(types).items()}}
    return pl.DataFrame(rows, schema=schema, orient="row")


def exact(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows by `id`: bits of floats, ticks of times. The lake writes -0.0 as 0.0, which equals it."""
    ticks = frame.with_columns(
        pl.col(name).cast(pl.List(pl.Int64) if dtype.is_nested() else pl.Int64)
        for name, dtype in frame.schema.items()
        if isinstance(getattr(dtype, "inner", dtype), pl.Datetime | pl.Duration)
    )
    return [tuple(map(_bits, row)) for row in ticks.sort("id").iter_rows()]


def _bits(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if value != value else struct.pack("<d", value or 0.0)
    return [_bits(item) for item in value] if isinstance(value, list) else value


def as_csv(rows: Sequence[Row], types: Sequence[str]) -> str:
    """Return rows as CSV, by rules of its own: each value in quotes, an empty field for null."""
    kinds = {"id": "int64", **names_of(types)}
    lines = [",".join(kinds)]
    for row in rows:
        texts = (
            None if row[name] is None else _TEXT_OF.get(dtype, str)(row[name])
            for name, dtype in kinds.items()
        )
        lines.append(",".join("" if text is None else '"' + text.replace('"', '""') + '"' for text in texts))
    return "\n".join(lines) + "\n"


def as_json(rows: Sequence[Row], types: Sequence[str]) -> list[str]:
    """Return rows as JSON objects."""
    kinds = {"id": "int64", **names_of(types)}
    return [
        "{" + ", ".join(f'"{name}": {_json(row[name], dtype)}' for name, dtype in kinds.items()) + "}"
        for row in rows
    ]


def _json(value: Any, dtype: str) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        inner = dtype.partition("[")[2].rstrip("]").partition(",")[0]
        return f"[{', '.join(_json(item, inner) for item in value)}]"  # pyright: ignore[reportUnknownVariableType]
    text = _TEXT_OF.get(dtype, str)(value)
    is_bare = dtype.startswith(("int", "uint", "float")) or dtype in ("bool", "duration")
    return text if is_bare else json.dumps(text)


_MICROSECOND = timedelta(microseconds=1)
_TEXT_OF: Mapping[str, Callable[[Any], str]] = {
    "float32": lambda value: str(np.float32(value)),
    "float64": repr,
    "bool": lambda value: str(value).lower(),
    "date": date.isoformat,
    "datetime": datetime.isoformat,
    "duration": lambda value: f"{Decimal(value // _MICROSECOND).scaleb(-6, _WIDE):f}",
    "binary": lambda value: base64.b64encode(value).decode(),
    "decimal[6, 2]": lambda value: f"{value:f}",
    "decimal[38, 10]": lambda value: f"{value:f}",
}
