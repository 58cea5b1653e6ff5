"""The column that dates the rows of a table, the form of its dates, and the length of its partitions."""

from collections.abc import Mapping, Sequence

import polars as pl

from ml_assets.components.scaffold.column_values import of_own_type
from ml_assets.components.scaffold.date_forms import (
    DatedColumn,
    TimeColumn,
    dated_column,
    is_named,
    is_named_as_date,
    read_dates,
    texts_of,
)
from ml_assets.components.scaffold.refusals import CsvRefused
from ml_assets.components.scaffold.rows_of_file import FileRows
from ml_assets.components.scaffold.units import UNITS, PartitionUnit
from ml_assets.data.sources.text_values import TextForm, ValueRefused, typed
from ml_assets.data.tables.cadence import FIRST_YEAR, LAST_YEAR
from resources.words import name_some

_EIGHT_DIGITS = 10**7
_FEW = 20
"""Different dates below which another column of dates is more likely the event time."""
_TIMES = (
    "(.* )?(date|day|week|month|quarter|qtr|year|yr|fy|time|timestamp|period|season|"
    "datum|tag|woche|monat|quartal|jahr)"
)
"""Headings of columns that should hold dates."""
_FISCAL = ("FY%Y Q%q", "FY%YQ%q", "FY%Y-Q%q", "FY%y Q%q", "FY%yQ%q", "FY%y-Q%q", "Q%q FY%Y", "Q%q FY%y")
"""Forms of quarters that begin with another month in each company: read only if the person names the form."""

_WORD = r"^([^\W\d_]{2,}[.,]?)[ \t]+[0-9]"
"""A word before a number, such as a weekday of any language."""


def time_columns(
    rows: FileRows,
    frame: pl.DataFrame,
    titles: Mapping[str, str],
    plain: Mapping[str, pl.Series],
    wanted: str,
    form: str,
) -> list[TimeColumn]:
    """Return the columns of dates in `frame` [rows], the event time first. `plain` are its columns of plain numbers.

    `wanted` is the event time that the person named, `form` the format of its dates; empty if not given. Raises
    `CsvRefused` if the event time is missing or ambiguous, or if one of its values is not a date.
    """
    # Digits are dates if there are eight of them, or by their heading; so are fractions in no form.
    undated = {
        name
        for name, values in ({} if form else plain).items()
        if name in titles
        and name != wanted
        and not is_named_as_date(titles[name])
        and (values.abs() < _EIGHT_DIGITS).all()
    }
    columns = [
        dated_column(
            frame[name],
            title,
            form if wanted in ("", name) else "",
            is_wanted=name == wanted,
        )
        for name, title in titles.items()
        if name not in undated
        # A database has types: its texts are texts.
        and not (rows.form == "sql" and frame[name].dtype == pl.String)
    ]
    found = [
        one for one in columns if one and not (rows.form == "sql" and one.time.form and not one.time.is_year)
    ]
    found.sort(key=lambda one: (one.time.name != wanted, *_unlikeliness(one, found)))
    if not found or (wanted and found[0].time.name != wanted):
        raise _without_dates(rows, frame, titles, wanted, form)
    best = found[0]
    title, texts = titles[best.time.name], texts_of(frame[best.time.name])
    if texts is not None and len(best.forms) > 1:
        ways = (
            "as months and as quarters"
            if any("%q" in one for one in best.forms)
            else "with the day first and with the month first"
        )
        raise CsvRefused(
            f"{rows.path}: '{title}' reads {ways}, such as {texts.drop_nulls()[0]!r}: add "
            + " or ".join(f"--date-format '{one}'" for one in best.forms)
        )
    if texts is not None and best.wrong is not None:
        shown = f"written as '{form}'" if form else best.time.shown
        raise CsvRefused(
            f"{rows.place(best.wrong)}: '{title}' holds {texts[best.wrong]!r}, which is not a date {shown} like the "
            "others: correct it, or delete the row"
        )
    return [one.time for one in found if one.is_sure]


def moments_of(
    rows: FileRows, frame: pl.DataFrame, column: TimeColumn, title: str, time_zone: str
) -> pl.Series:
    """Return the event time as dates, or as moments (UTC). Raises `CsvRefused` for a value that is none."""
    texts = texts_of(frame[column.name]) if column.form else frame[column.name]
    assert texts is not None
    if texts.has_nulls():
        empty = int(texts.is_null().arg_max() or 0)
        more = f", and {texts.null_count() - 1} more rows" if texts.null_count() > 1 else ""
        raise CsvRefused(
            f"{rows.place(empty)}{more}: '{title}' is empty: give each row a date, or delete the row"
        )
    moments = _moments(rows, texts, column, title, time_zone)
    years = moments.dt.year()
    for wrong in (~years.is_between(FIRST_YEAR, LAST_YEAR)).arg_true().head(1):
        raise CsvRefused(
            f"{rows.place(wrong)}: '{title}' holds {texts.cast(pl.String)[wrong]}, and partitions are of the years "
            f"{FIRST_YEAR} to {LAST_YEAR}: correct it, or delete the row"
        )
    return moments


def _moments(rows: FileRows, texts: pl.Series, column: TimeColumn, title: str, time_zone: str) -> pl.Series:
    if not column.form:
        found = of_own_type(texts, time_zone)
        assert found is not None
        if found.values.has_nulls():
            row = int(found.values.is_null().arg_max() or 0)
            raise CsvRefused(
                f"{rows.place(row)}: '{title}' holds {texts[row]}, which clocks in {time_zone} show twice or never, "
                "because they are set: write moments with their offset from UTC"
            )
        return found.values
    dtype = pl.Datetime("us", "UTC") if column.is_time else pl.Date()
    form = TextForm(formats={title: column.form}, time_zone=time_zone)
    try:
        return typed(texts.alias(title), dtype, form).alias(column.name)
    except ValueRefused as error:
        raise CsvRefused(f"{rows.place(error.row - 1)}: '{title}' {error.reason}") from error


def units_of(days: pl.Series) -> list[PartitionUnit]:
    """Return the partitions that the days with rows can have, from short to long.

    The first ones are those that fit the usual distance between the days: shorter ones would mostly be empty.
    """
    gaps = days.unique().sort().diff().drop_nulls().dt.total_days()
    usual = float(gaps.median() or 0) if len(gaps) else 0.0  # pyright: ignore[reportArgumentType]
    units = [*UNITS.values()]
    return units[sum(usual >= one.least_days for one in units) - 1 :]


def _unlikeliness(one: DatedColumn, found: Sequence[DatedColumn]) -> tuple[bool, int, bool]:
    """Return what is lower for the event time: for dates in order, for many, and for more than their years."""
    dates = one.dates.drop_nulls()
    # A table is usually in the order of its event time; dates of birth are not.
    is_in_order = dates.is_sorted() or dates.is_sorted(descending=True)
    is_year = one.time.is_year
    others = [other.dates for other in found if not other.time.is_year] if is_year else []
    # A fiscal year is that of its dates, the year before or the year after.
    repeats = any(((one.dates.dt.year() - dates.dt.year()).abs() <= 1).all() for dates in others)
    return repeats, 2 * (dates.n_unique() < _FEW and not is_year) + (not is_in_order), is_year


def _without_dates(
    rows: FileRows, frame: pl.DataFrame, titles: Mapping[str, str], wanted: str, form: str
) -> CsvRefused:
    """Return the error, which names the first value of the column that should hold dates."""
    named = [name for name in frame.columns if is_named(titles[name], _TIMES)]
    for name in [wanted] if wanted else named:
        texts = texts_of(frame[name])
        if texts is not None and not texts.is_null().all():
            row = int(texts.is_not_null().arg_max() or 0)
            by = f"that --date-format '{form}' reads" if form else "that is understood"
            return CsvRefused(
                f"{rows.place(row)}: '{titles[name]}' holds {texts[row]!r}, which is not a date {by}: "
                + _remedy(texts.slice(row, 1))
            )
    return CsvRefused(
        f"{rows.path}: no column holds dates: there are {name_some(list(titles.values()))}. A table needs one, written "
        "as 2024-01-31, 31.01.2024, Jan 31 2024 or 2024-01-31 13:45:00"
    )


def _remedy(text: pl.Series) -> str:
    """Return what makes a date of `text` [1], which is in no form that is understood."""
    word = str(text.str.extract(_WORD)[0] or "")
    if word and dated_column(text.str.strip_prefix(word).str.strip_chars(" \t"), "", "", is_wanted=True):
        return f"delete the word '{word}', and those like it: weekdays are read in English, such as Wed 31.01.2024"
    names = ", with English names of months" if text.str.contains(r"[^\W\d_]{3}").all() else ""
    fiscal = [one for one in _FISCAL if not read_dates(text, one).has_nulls()]
    option = f"'{fiscal[0]}', which reads quarters of the calendar" if fiscal else "'%d.%m.%Y'"
    return f"write dates as 2024-01-31, 2024-01, 2024Q1 or 2024{names}, or give --date-format {option}"
