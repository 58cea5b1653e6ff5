"""Types of the columns of a file: numbers, booleans and texts, each with the form in which it is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import time

import polars as pl

from ml_assets.components.scaffold.refusals import CsvRefused
from ml_assets.components.scaffold.rows_of_file import FileRows
from ml_assets.data.sources.file_formats import CODE
from ml_assets.data.sources.text_values import TextForm, ValueRefused, typed
from ml_assets.data.sources.written_values import (
    BOOLEANS,
    UNIT,
    Decimal,
    number_form,
    plain_booleans,
    plain_numbers,
)

NULLS = ("NA", "N/A", "NaN", "nan", "null", "NULL", "None", "-", "?")
"""Texts that mean a missing value in columns that are not texts, in addition to an empty field."""
_MOSTLY = 0.9
"""Share of the texts that are numbers, from which a column counts as one of numbers with mistakes."""
_MARKS: tuple[Decimal, ...] = (".", ",")


@dataclass(frozen=True)
class Values:
    """A column with the type that all its texts have."""

    values: pl.Series
    """int64, float64, booleans, or the texts unchanged."""
    written: str = ""
    """`.` or `,` if a number has a unit, or marks between thousands; two words for true and false: `yes no`."""
    chain: str | None = None
    """Calls by which Python makes `values` of a column with a type of its own; None if `values` are read from texts."""
    cast: str = ""
    """Call that makes these texts of a column of another type: years of numbers."""
    is_inexact: bool = False
    """True for texts of digits that no number holds exactly."""
    odd: int | None = None
    """First row with a text that is not a number, in a column of texts most of which are."""


def present(column: pl.Series) -> pl.Series:
    """Return texts without blanks around them; null where a column that is not a text has no value."""
    text = column.str.strip_chars(" \t")
    return text.set(text.is_in(["", *NULLS]), None)


_WHOLE = r"^(0|-?[1-9][0-9]{0,14})$"
_NUMBER = r"^-?(0|[1-9][0-9]{0,8})(\.[0-9]{1,6})?$"
_FRACTION = r"\.[0-9]*[1-9]"
_NO_POINT = r"^-?([0-9]{1,3}(\.[0-9]{3})+|[0-9]+)$"
"""Text that is also a number if a point separates thousands."""


def plain_columns(texts: pl.DataFrame) -> dict[str, pl.Series]:
    """Return the columns of texts that are numbers beyond doubt: whole numbers, or some with a fraction.

    A few queries for all columns: a table may have thousands, and a question about one of them takes 0.3 ms.
    """
    texts = texts.select(pl.col(pl.String))
    if not texts.width:
        return {}
    text = pl.all().str.strip_chars(" \t")
    texts = texts.select(pl.when(text.is_in(["", *NULLS])).then(None).otherwise(text).name.keep())
    each = pl.all()
    asked = {
        "known": each.is_not_null().any(),
        "whole": each.str.contains(_WHOLE).all(),
        "number": each.str.contains(_NUMBER).all(),
        "fraction": each.str.contains(_FRACTION).any(),
        "point": (~each.str.contains(_NO_POINT)).any(),
    }
    said = {what: texts.select(one).row(0, named=True) for what, one in asked.items()}
    whole = [name for name in texts.columns if said["known"][name] and said["whole"][name]]
    others = [
        name
        for name in texts.columns
        if said["number"][name] and said["fraction"][name] and said["point"][name]
    ]
    found = texts.select(pl.col(whole).cast(pl.Int64), pl.col(others).cast(pl.Float64))
    return {column.name: column for column in found}


def typed_columns(
    rows: FileRows,
    frame: pl.DataFrame,
    titles: Mapping[str, str],
    plain: Mapping[str, pl.Series],
    decimal: Decimal | None,
    zone: str,
) -> list[Values]:
    """Return the columns of `frame`, of which those of texts get a type: `plain` those that have one already.

    `decimal` is the mark that the person named.

    Naive moments are of `zone`. Columns without a type of the contract, such as lists, are left out.

    Raises `CsvRefused` if all numbers of the file read with both marks.
    """
    # A database has types: its texts are texts.
    texts = [column for column in frame if column.dtype == pl.String and rows.form != "sql"]
    named = {column.name for column in texts}
    typed_as = [
        found for column in frame if column.name not in named and (found := of_own_type(column, zone))
    ]
    plain = {name: values for name, values in plain.items() if name in named}
    typed_as += [Values(column) for column in plain.values()]
    texts = [column for column in texts if column.name not in plain]
    marks = {column.name: _marks(present(column)) for column in texts}
    sure: set[Decimal] = {
        *([decimal] if decimal else []),
        *("." for column in plain.values() if column.dtype == pl.Float64),
        *(found[0] for found in marks.values() if len(found) == 1),
    }
    for column in texts:
        text = present(column)
        found = marks[column.name]
        if len(found) == 2 and text.str.contains(",", literal=True).any():
            if len(sure) != 1:
                first = int(text.str.contains(",", literal=True).fill_null(value=False).arg_max() or 0)
                raise CsvRefused(
                    f"{rows.place(first)}: '{titles[column.name]}' holds {text[first]!r}, which reads with a "
                    "decimal comma and with a comma between thousands: add --decimal comma or --decimal point"
                )
            found = tuple(sure)
        elif len(found) == 2:
            # 1.234 is a number with a point, unless other columns have decimal commas.
            has_point = text.str.contains(".", literal=True).any()
            found = tuple(sure) if has_point and len(sure) == 1 else (".",)
        typed_as.append(_values(column, text, found))
    return typed_as


def of_own_type(column: pl.Series, zone: str) -> Values | None:
    """Return a column with a type of the contract; None if it has none. Naive moments are of `zone`."""
    dtype = column.dtype
    if dtype.is_integer() or dtype.is_float() or dtype in (pl.Boolean, pl.Date, pl.String):
        return Values(column, chain="")
    if isinstance(dtype, pl.Categorical | pl.Enum):
        return Values(column.cast(pl.String), chain=".cast(pl.String)")
    if isinstance(dtype, pl.Decimal):
        return Values(column.cast(pl.Float64), chain=".cast(pl.Float64)")
    if not isinstance(dtype, pl.Datetime):
        return None
    if dtype.time_zone is None and (column.dt.time() == time()).all():
        return Values(column.dt.date(), chain=".dt.date()")
    moments, chain = column.dt.cast_time_unit("us"), '.dt.cast_time_unit("us")'
    if dtype.time_zone is None:
        moments = moments.dt.replace_time_zone(zone, ambiguous="null", non_existent="null")
        chain += ".dt.replace_time_zone(ZONE)"
    return Values(moments.dt.convert_time_zone("UTC"), chain=f'{chain}.dt.convert_time_zone("UTC")')


def _values(column: pl.Series, text: pl.Series, marks: Sequence[Decimal]) -> Values:
    if text.null_count() == len(text) or text.str.contains(CODE).any():
        return Values(column)
    plain = _number(text)
    if plain is not None and not (marks == (",",) and text.str.contains(".", literal=True).any()):
        return Values(plain)
    for mark in marks:
        number = _number(plain_numbers(text, mark))
        if number is not None:
            return Values(number, mark)
    lower = text.str.to_lowercase()
    words = {*lower.drop_nulls().unique()}
    for true, false in BOOLEANS:
        if words == {true, false} or ((true, false) == BOOLEANS[1] and words <= {true, false}):
            values = typed(plain_booleans(text, true, false), pl.Boolean(), TextForm())
            return Values(values, "" if (true, false) == BOOLEANS[1] else f"{true} {false}")
    return Values(column, is_inexact=bool(marks), odd=None if marks else _odd(text))


def _odd(text: pl.Series) -> int | None:
    """Return the first row whose text is not a number if at most one text in ten is not; None for other columns."""
    known = text.drop_nulls()
    reads = [text.str.contains(number_form(mark)) for mark in _MARKS]
    best = max(reads, key=lambda one: one.sum())
    if best.all() or best.sum() < _MOSTLY * len(known):
        return None
    return int((~best).fill_null(value=False).arg_max() or 0)


def _marks(text: pl.Series) -> tuple[Decimal, ...]:
    """Return the marks before a fraction with which all texts are numbers of one unit; empty if there is none."""
    known = text.drop_nulls()
    if known.is_empty() or known.str.extract(f"({UNIT})").n_unique() > 1:
        return ()
    return tuple(mark for mark in _MARKS if known.str.contains(number_form(mark)).all())


def _number(text: pl.Series) -> pl.Series | None:
    """Return texts as whole numbers or floats; None if there are none, or one would change."""
    for dtype in (pl.Int64(), pl.Float64()):
        try:
            found = typed(text, dtype, TextForm())
        except ValueRefused:
            continue
        if found.null_count() == text.null_count():
            return found
    return None
