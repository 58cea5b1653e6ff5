"""Columns that identify a row of a table, and those that tell one series from another, such as a store."""

import re
from collections.abc import Iterator, Sequence
from itertools import combinations

import polars as pl

from ml_assets.components.scaffold.refusals import CsvRefused
from ml_assets.components.scaffold.rows_of_file import FileRows

ID = re.compile(r"(^|_)(id|uuid|key|code|nr|no|number)$")
"""Names of columns that identify."""


def is_unique(frame: pl.DataFrame, columns: Sequence[str]) -> bool:
    """Return True if no two rows have the same values in `columns`."""
    return frame.select(columns).n_unique() == len(frame)


def series_of(frame: pl.DataFrame, event_time: str, candidates: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the sets of at most two columns that name a row together with the event time, the smallest first.

    The first is empty if the event time is enough.
    """
    naming = sorted(naming_a_series(frame, candidates), key=lambda name: frame.schema[name] != pl.String)
    return [
        columns
        for size in range(3)
        for columns in combinations(naming, size)
        if is_unique(frame, (event_time, *columns))
    ]


def naming_a_series(frame: pl.DataFrame, candidates: Sequence[str]) -> list[str]:
    """Return the categories whose values repeat: on average five times or more."""
    return [name for name in candidates if _names_a_series(frame[name])]


def _names_a_series(column: pl.Series) -> bool:
    few = column.n_unique() * 5 <= len(column)
    if column.null_count() or not few:
        return False
    is_id = bool(ID.search(column.name)) or column.n_unique() <= 50
    return column.dtype == pl.String or (column.dtype.is_integer() and is_id)


def primary_key(
    rows: FileRows, frame: pl.DataFrame, event_time: str, candidates: Sequence[str], series: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the first combination of columns that is unique. Raises `CsvRefused` if none of up to four columns is."""
    for key in _keys(frame, event_time, candidates, series):
        if is_unique(frame, key):
            return key
    shared = [event_time, *series]
    numbered = frame.with_row_index("__row")
    twice = numbered.filter(pl.struct(shared).is_duplicated())
    first, second = twice.filter(pl.struct(shared) == twice.select(pl.struct(shared).first()).to_series())[
        "__row"
    ].head(2)
    lines = f"lines {rows.line(first)} and {rows.line(second)}"
    raise CsvRefused(
        f"{rows.path}, {lines}: both have the same {' and '.join(shared)}, and no columns identify a row: add a column "
        "that numbers the rows, or delete one of the two"
    )


def _keys(
    frame: pl.DataFrame, event_time: str, candidates: Sequence[str], series: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """Yield combinations in the order to try them. Leaves out measurements: they may be unique by chance."""
    ids = [name for name in candidates if _identifies(frame.schema[name]) and ID.search(name)]
    others = [name for name in candidates if name not in ids and frame.schema[name] == pl.String]
    usable = [name for name in (*ids, *others) if not frame[name].null_count()][:_MOST_NAMES]
    yield (event_time,)
    yield from ((name,) for name in ids if name in usable)
    if series:
        yield (event_time, *series)
    for size in (1, 2, 3):
        yield from ((event_time, *columns) for columns in combinations(usable, size))


def _identifies(dtype: pl.DataType) -> bool:
    return dtype == pl.String or dtype.is_integer()


_MOST_NAMES = 12
"""Columns among which a key is searched: of 100 columns there are 160,000 sets of three."""
