"""Columns that identify a row of a table, and those that tell one series from another, such as a store."""

import re
from collections.abc import Iterator, Sequence
from itertools import combinations

import polars as pl

from ml_assets.components.scaffold.refusals import CsvRefused
from ml_assets.components.scaffold.rows_of_file import FileRows
from resources.words import counted

ID = re.compile(r"(^|_)(id|uuid|key|code|nr|no|number)$")
"""Names of columns that identify."""


def is_unique(frame: pl.DataFrame, columns: Sequence[str]) -> bool:
    """Return True if no two rows have the same values in `columns`."""
    return frame.select(columns).n_unique() == len(frame)


def series_of(frame: pl.DataFrame, event_time: str, candidates: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the sets of at most two columns that name a row together with the event time, the smallest first.

    Only the empty set if the event time is enough, or nearly so: of a single row that is there twice, each measurement
    that differs would name a series.
    """
    if 11 * frame[event_time].n_unique() > 10 * len(frame):
        return [()]
    naming = sorted(naming_a_series(frame, candidates), key=lambda name: frame[name].dtype != pl.String)
    return [
        columns
        for size in (1, 2)
        for columns in combinations(naming if size == 1 else naming[:_MOST_NAMES], size)
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
    raise _without_key(rows, frame, event_time, candidates, series)


def _without_key(
    rows: FileRows, frame: pl.DataFrame, event_time: str, candidates: Sequence[str], series: tuple[str, ...]
) -> CsvRefused:
    """Return the error, which names two lines: of equal rows, or of rows that share the likeliest key."""
    if not is_unique(frame, frame.columns):
        first, second, others = _twice(frame, frame.columns)
        more = f", and so are {counted(others, 'more row')}" if others else ""
        return CsvRefused(
            f"{rows.path}, lines {rows.line(first)} and {rows.line(second)} are equal{more}: delete all but one of "
            "them, or add a column that numbers the rows"
        )
    keys = [(event_time, *series)] if series else list(_keys(frame, event_time, candidates, series))
    key = max(keys, key=lambda one: frame.select(one).n_unique())
    first, second, others = _twice(frame, key)
    more = f", and so have {counted(others, 'more row')}" if others else ""
    return CsvRefused(
        f"{rows.path}, lines {rows.line(first)} and {rows.line(second)}: both have the same {' and '.join(key)}{more}, "
        "and no columns identify a row: add a column that numbers the rows, or delete one of the two"
    )


def _twice(frame: pl.DataFrame, columns: Sequence[str]) -> tuple[int, int, int]:
    """Return the first two rows with the same `columns`, and how many more rows repeat those of an earlier row."""
    numbered = frame.with_row_index("__row")
    alike = (
        numbered.group_by(columns, maintain_order=True)
        .agg(pl.col("__row"))
        .filter(pl.col("__row").list.len() > 1)
    )
    first, second = alike["__row"][0].head(2)
    return first, second, int((alike["__row"].list.len() - 1).sum()) - 1


def _keys(
    frame: pl.DataFrame, event_time: str, candidates: Sequence[str], series: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """Yield combinations in the order to try them. Leaves out measurements: they may be unique by chance."""
    ids = [name for name in candidates if _identifies(frame[name].dtype) and ID.search(name)]
    others = [name for name in candidates if name not in ids and frame[name].dtype == pl.String]
    usable = [name for name in (*ids, *others) if not frame[name].null_count()][:_MOST_NAMES]
    yield (event_time,)
    yield from ((name,) for name in ids if name in usable)
    if series:
        yield (event_time, *series)
    for size in (1, 2, 3):
        yield from ((event_time, *columns) for columns in combinations(usable, size))
    yield from ((name,) for name in candidates if _numbers_the_rows(frame[name]))


def _numbers_the_rows(column: pl.Series) -> bool:
    """Return True for whole numbers without a gap, each once, in any order: whatever the column is called."""
    first, last = column.min(), column.max()
    if not (column.dtype.is_integer() and isinstance(first, int) and isinstance(last, int)):
        return False
    return not column.null_count() and column.n_unique() == len(column) == last - first + 1


def _identifies(dtype: pl.DataType) -> bool:
    return dtype == pl.String or dtype.is_integer()


_MOST_NAMES = 12
"""Columns among which a key is searched: of 100 columns there are 160,000 sets of three."""
