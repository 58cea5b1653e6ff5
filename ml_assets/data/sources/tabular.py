"""Common part of readers of tables: the filter of a partition, columns as the contract has them."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import polars as pl

from ml_assets.data.sources.protocol import ColumnsChanged, SourceRefused, SourceTable, Span, TabularSource
from ml_assets.data.tables.spec import UndatedRows
from ml_assets.data.validation.column_types import polars_type, type_name
from ml_assets.foundation.days import HOUR, UNITS_A_DAY, after, begin_of

FIRST_DAY, NEVER = date(1, 1, 1), date(9999, 12, 31)
"""First day with a name, and the day after the last one that a row may have."""
_EPOCH = date(1970, 1, 1).toordinal()


def time_column(section: TabularSource, table: SourceTable) -> str:
    """Return the column that decides a row's day. Raises `SourceRefused` if neither section nor contract names one."""
    named = section.time_column or table.event_time
    if named is None:
        raise SourceRefused(
            f"{table.name}: no column decides to which day a row belongs: set source.time_column, or "
            "contract.event_time"
        )
    return named


def typed_time_column(
    found: Mapping[str, pl.DataType], section: TabularSource, table: SourceTable, place: str
) -> tuple[str, pl.DataType]:
    """Return name and type of the column that decides a row's day: a date, or a datetime with a time zone.

    Only a datetime decides a row's hour. `found` are the columns of the source. Raises `SourceRefused`.
    """
    column = time_column(section, table)
    dtype = found.get(column)
    if isinstance(dtype, pl.Datetime) and dtype.time_zone is not None:
        return column, dtype
    if isinstance(dtype, pl.Date) and not table.is_hourly:
        return column, dtype
    kinds = "a datetime with a time zone (timestamptz in SQL)"
    raise SourceRefused(
        f"{table.name}: time_column '{column}' of {place} is {_said(dtype)}: it must be "
        f"{kinds if table.is_hourly else f'a date, or {kinds}'}. Set source.time_column to such a column, or change "
        "its type at the source"
    )


def has_time(column: str, dtype: pl.DataType) -> pl.Expr:
    """Return the filter of the rows with a time, by a column that `typed_time_column` returned.

    A null is not a time. Nor is a moment that no calendar has, such as PostgreSQL's `infinity`, or the last day of the
    year 9999, which many tables write for `never`.
    """
    return _is_before(NEVER.toordinal(), column, dtype)


def _is_before(end: int, column: str, dtype: pl.DataType) -> pl.Expr:
    """Return the filter of times from the first day to before the day `end`, an ordinal. Compares numbers, because
    polars panics at other years."""
    a_day = UNITS_A_DAY[dtype.time_unit] if isinstance(dtype, pl.Datetime) else 1
    least, below = ((day - _EPOCH) * a_day for day in (FIRST_DAY.toordinal(), end))
    number = pl.col(column).to_physical().cast(pl.Int64)
    is_in = (number >= max(least, -(2**63))) & (number < min(below, 2**63 - 1))
    return is_in.fill_null(value=False)


def in_calendar(frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows with null for each time that no calendar has: polars panics where it shows such a time. The last day
    of the year 9999 stays."""
    times = [
        pl.when(_is_before(NEVER.toordinal() + 1, name, dtype)).then(pl.col(name))
        for name, dtype in frame.schema.items()
        if isinstance(dtype, pl.Date | pl.Datetime)
    ]
    return frame.with_columns(times)


def undated_rows(frame: pl.DataFrame, column: str) -> UndatedRows:
    """Return rows without a time, as a file can keep them."""
    return UndatedRows(frame=in_calendar(frame), column=column)


def in_span(column: str, dtype: pl.DataType, span: Span, table: SourceTable) -> pl.Expr:
    """Return the filter of the rows of `span` by a column that `typed_time_column` returned."""
    if dtype == pl.Date:
        return pl.col(column).is_between(span.first, span.end, closed="left")
    first, end = span.moments(table.time_zone)
    return pl.col(column).is_between(first, end, closed="left")


def day_of(column: str, dtype: pl.DataType, table: SourceTable) -> pl.Expr:
    """Return the day of each row by a column that `typed_time_column` returned; its hour in an hourly table."""
    if table.is_hourly:
        return pl.col(column).dt.convert_time_zone("UTC").dt.truncate("1h")
    if isinstance(dtype, pl.Datetime):
        return pl.col(column).dt.convert_time_zone(table.time_zone).dt.date()
    return pl.col(column)


def newest_day(newest: date | datetime | None, table: SourceTable) -> date | None:
    """Return the day of the newest row. Of an hourly table, return the hour; a day then stands for the last one that
    ends with it or before."""
    if newest is None:
        return None
    if table.is_hourly:
        last = newest if isinstance(newest, datetime) else begin_of(after(newest), table.time_zone) - HOUR
        return last.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return newest.astimezone(ZoneInfo(table.time_zone)).date() if isinstance(newest, datetime) else newest


def watermark_of(frame: pl.DataFrame, column: str | None, table: SourceTable) -> datetime | None:
    """Return the greatest value of the watermark column; None without such a column or without rows."""
    if column is None:
        return None
    _require_watermark(frame.schema, column, table)
    newest = frame.filter(has_time(column, frame.schema[column])).get_column(column).max()
    return newest if isinstance(newest, datetime) else None


def _require_watermark(found: Mapping[str, pl.DataType], column: str, table: SourceTable) -> None:
    dtype = found.get(column)
    if not isinstance(dtype, pl.Datetime) or dtype.time_zone is None:
        raise SourceRefused(
            f"{table.name}: watermark_column '{column}' is {_said(dtype)}: name a column of the contract of type "
            "datetime"
        )


def _said(dtype: pl.DataType | None) -> str:
    return "missing" if dtype is None else type_name(dtype)


def faults_of_columns(
    found: Mapping[str, pl.DataType],
    section: TabularSource,
    table: SourceTable,
    place: str,
    remedy: str,
    *,
    rows_tell_day: bool = True,
) -> Sequence[str]:
    """Return a sentence with a remedy for each fault of a source's columns, without reading rows.

    `rows_tell_day`: a column decides to which day a row belongs.
    """
    rules: list[Callable[[], object]] = [lambda: require_columns(found, table, place, remedy)]
    if rows_tell_day and table.start is not None:
        rules.append(lambda: typed_time_column(found, section, table, place))
    if (mark := section.watermark_column) is not None:
        rules.append(lambda: _require_watermark(found, mark, table))
    return faults_of(*rules)


def faults_of(*rules: Callable[[], object]) -> list[str]:
    """Return the message of each rule that raises `SourceRefused`."""
    faults: list[str] = []
    for rule in rules:
        try:
            rule()
        except SourceRefused as error:
            faults.append(str(error))
    return faults


def require_columns(found: Mapping[str, pl.DataType], table: SourceTable, place: str, remedy: str) -> None:
    """Raise `ColumnsChanged` if a source's columns are not the contract's, apart from types that `fit` converts."""
    if table.contract is None:
        return
    expected = {name: polars_type(column.dtype) for name, column in table.contract.by_name.items()}
    said = {
        "added": [f"{name} ({type_name(dtype)})" for name, dtype in found.items() if name not in expected],
        "removed": [f"{name} ({type_name(dtype)})" for name, dtype in expected.items() if name not in found],
        "changed": [
            f"{name} (is {type_name(found[name])}, expected {type_name(dtype)})"
            for name, dtype in expected.items()
            if name in found and not _is_convertible(found[name], dtype)
        ],
    }
    differences = "; ".join(f"{what}: {', '.join(names)}" for what, names in said.items() if names)
    if differences:
        raise ColumnsChanged(
            f"{table.name}: {place} does not have the columns of the contract. {differences}. Change the contract, or "
            f"{remedy}"
        )


def fit(frame: pl.DataFrame, table: SourceTable, place: str, remedy: str) -> pl.DataFrame:
    """Return `frame` with the columns of the contract, in its order and with its types. No value changes.

    Raises `ColumnsChanged`, and `SourceRefused` if a value does not fit the contract's type.
    """
    if table.contract is None:
        return frame
    require_columns(frame.schema, table, place, remedy)
    columns: list[pl.Series] = []
    for name, column in table.contract.by_name.items():
        series, dtype = frame.get_column(name), polars_type(column.dtype)
        try:
            columns.append(series if series.dtype == dtype else _converted(series, dtype))
        except (
            pl.exceptions.PolarsError,
            pl.exceptions.PanicException,
        ) as error:  # a panic for a huge moment
            raise SourceRefused(
                f"{table.name}: {place} has values in '{name}' that do not fit {column.dtype}: choose a wider type in "
                "the contract, or correct the rows at the source"
            ) from error
    return pl.DataFrame(columns)


def _converted(series: pl.Series, dtype: pl.DataType) -> pl.Series:
    if (
        isinstance(dtype, pl.Datetime)
        and dtype.time_zone is not None
        and isinstance(series.dtype, pl.Datetime)
    ):
        if series.dtype.time_unit == "ns" and not (series.to_physical() % 1000 == 0).all():
            raise pl.exceptions.InvalidOperationError("nanoseconds")
        return series.dt.convert_time_zone(dtype.time_zone).cast(dtype)
    return series.cast(dtype, strict=True)


_EXACT_BITS = {pl.Float64(): 32, pl.Float32(): 16}
"""Widest integers of which each is a number of this type exactly."""


def _is_convertible(found: pl.DataType, expected: pl.DataType) -> bool:
    """True if `fit` converts a type without changing a value, or refuses the values that would change."""
    if found in (expected, pl.Null()) or (found.is_integer() and expected.is_integer()):
        return True
    if isinstance(expected, pl.Datetime):
        return isinstance(found, pl.Datetime) and (found.time_zone is None) == (expected.time_zone is None)
    if expected in _EXACT_BITS and found.is_integer():
        return int(type(found).__name__.removeprefix("U").removeprefix("Int")) <= _EXACT_BITS[expected]
    if expected == pl.Float64:
        return found == pl.Float32
    return expected == pl.String and isinstance(found, pl.Categorical | pl.Enum)
