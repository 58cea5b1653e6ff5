"""The column that dates the rows of a table, the form of its dates, and the length of its partitions."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

import polars as pl

from ml_assets.components.scaffold.column_values import of_own_type, present
from ml_assets.components.scaffold.refusals import CsvRefused
from ml_assets.components.scaffold.rows_of_file import FileRows
from ml_assets.components.scaffold.units import UNITS, PartitionUnit
from ml_assets.data.sources.text_values import TextForm, ValueRefused, time_format, typed
from resources.words import name_some

_DAYS = {
    "%Y-%m-%d": "2024-01-31",
    "%Y/%m/%d": "2024/01/31",
    "%Y.%m.%d": "2024.01.31",
    "%Y%m%d": "20240131",
    "%d.%m.%Y": "31.01.2024",
    "%d/%m/%Y": "31/01/2024",
    "%m/%d/%Y": "01/31/2024",
    "%d-%m-%Y": "31-01-2024",
    "%m-%d-%Y": "01-31-2024",
    "%d.%m.%y": "31.01.24",
    "%d/%m/%y": "31/01/24",
    "%m/%d/%y": "01/31/24",
    "%b %d %Y": "Jan 31 2024",
    "%b %d, %Y": "Jan 31, 2024",
    "%B %d %Y": "January 31 2024",
    "%B %d, %Y": "January 31, 2024",
    "%d %b %Y": "31 Jan 2024",
    "%d %B %Y": "31 January 2024",
    "%d-%b-%Y": "31-Jan-2024",
    "%d-%b-%y": "31-Jan-24",
}
"""Form of a day → an example."""
_MONTHS = {
    "%Y-%m": "2024-01",
    "%Y/%m": "2024/01",
    "%m/%Y": "01/2024",
    "%b %Y": "Jan 2024",
    "%B %Y": "January 2024",
    "%b-%Y": "Jan-2024",
    "%Y-%q": "2024-1",
    "%Y/%q": "2024/1",
    "%q/%Y": "1/2024",
    "%Y-Q%q": "2024-Q1",
    "%YQ%q": "2024Q1",
    "%Y Q%q": "2024 Q1",
    "Q%q %Y": "Q1 2024",
    "Q%q-%Y": "Q1-2024",
}
"""Form of a month or a quarter, which stands for its first day → an example."""
_YEAR = "%Y"
_NAMES_OF_YEARS = frozenset(["year", "jahr", "yr"])
"""Headings, in small letters, of columns in which four digits are a year. Elsewhere they are a number."""
_TIMES = (
    " %H:%M:%S",
    "T%H:%M:%S",
    " %H:%M",
    "T%H:%M",
    " %H:%M:%S%.f",
    "T%H:%M:%S%.f",
    " %I:%M %p",
    " %I:%M:%S %p",
)
_OFFSETS = ("", "%#z")
_ENDS = ["".join(parts) for parts in product(_TIMES, _OFFSETS)]
"""Forms of what may follow a day."""
_FEW = 20
"""Different dates below which another column of dates is more likely the event time."""
_MOSTLY = 0.7
"""Share of the values that are dates, from which a column counts as one of dates with mistakes."""


@dataclass(frozen=True)
class TimeColumn:
    """A column that reads as dates or moments."""

    name: str
    form: str = ""
    """Format of texts, in the notation of `time_format`; empty if the file has a type for them."""
    dtype: pl.DataType = field(default_factory=pl.String)
    """Type in the file; a moment that is always midnight is a date."""

    @property
    def is_time(self) -> bool:
        """True if it has times of day."""
        return "%H" in self.form or "%I" in self.form or isinstance(self.dtype, pl.Datetime)

    @property
    def has_offset(self) -> bool:
        """True if its moments include their offset from UTC."""
        return "%#z" in self.form or (
            isinstance(self.dtype, pl.Datetime) and self.dtype.time_zone is not None
        )

    @property
    def shown(self) -> str:
        """Words for its form, with an example."""
        if not self.form:
            offset = " with their offset from UTC" * self.has_offset
            return f"moments{offset}" if self.is_time else "dates"
        if self.form == _YEAR:
            return "written as 2024"
        day = max((form for form in (*_DAYS, *_MONTHS) if self.form.startswith(form)), key=len, default="")
        if not day:
            return f"written as '{self.form}'"
        offset = " and its offset from UTC" * self.has_offset
        return "written as " + (_DAYS | _MONTHS)[day] + (f", with a time{offset}" if self.is_time else "")


def time_columns(
    rows: FileRows, frame: pl.DataFrame, titles: Mapping[str, str], wanted: str, form: str
) -> list[TimeColumn]:
    """Return the columns of dates in `frame` [rows], the most likely event time first.

    `wanted` is the event time that the person named, `form` the format of its dates; empty if not given. Raises
    `CsvRefused` without a column of dates, for a value among dates that is none, and for an ambiguous column.
    """
    asked = [wanted] if wanted else frame.columns
    found: list[TimeColumn] = []
    ambiguous: list[tuple[str, list[str]]] = []
    for name in asked:
        dtype = frame.schema[name]
        if isinstance(dtype, pl.Date | pl.Datetime):
            native = of_own_type(frame[name], "UTC")
            is_day = native is not None and native.values.dtype == pl.Date
            found.append(TimeColumn(name, dtype=pl.Date() if is_day else dtype))
        if dtype != pl.String or rows.form == "sql":
            continue
        forms = _forms_of(frame[name], form)
        found += [TimeColumn(name, one) for one in forms if len(forms) == 1]
        ambiguous += [(name, forms)] * (len(forms) > 1)
    if not (found or ambiguous):
        years = [name for name in asked if name == wanted or titles[name].lower() in _NAMES_OF_YEARS]
        years = [name for name in years if frame.schema[name] == pl.String and _forms_of(frame[name], _YEAR)]
        found = [TimeColumn(name, _YEAR) for name in years]
    if found:
        # A table is usually in the order of its event time; dates of birth are not.
        return sorted(found, key=lambda one: _unlikeliness(frame[one.name], one))
    if ambiguous:
        name, forms = ambiguous[0]
        first = present(frame[name]).drop_nulls()[0]
        has_quarters = any("%q" in one for one in forms)
        ways = "as months and as quarters" if has_quarters else "with the day first and with the month first"
        raise CsvRefused(
            f"{rows.path}: '{titles[name]}' reads {ways}, such as {first!r}: add "
            + " or ".join(f"--date-format '{one}'" for one in forms)
        )
    for name in [name for name in asked if frame.schema[name] == pl.String and rows.form != "sql"]:
        _refuse_a_bad_date(rows, frame[name], titles[name], form, 0.0 if wanted else _MOSTLY)
    raise CsvRefused(
        f"{rows.path}: no column holds dates: there are {name_some(list(titles.values()))}. A table needs one, written "
        "as 2024-01-31, 31.01.2024, Jan 31 2024 or 2024-01-31 13:45:00"
    )


def moments_of(
    rows: FileRows, frame: pl.DataFrame, column: TimeColumn, title: str, time_zone: str
) -> pl.Series:
    """Return the event time as dates, or as moments (UTC). Raises `CsvRefused` for a value that is none."""
    texts = frame[column.name] if not column.form else present(frame[column.name])
    if texts.has_nulls():
        empty = int(texts.is_null().arg_max() or 0)
        more = f", and {texts.null_count() - 1} more rows" if texts.null_count() > 1 else ""
        raise CsvRefused(
            f"{rows.place(empty)}{more}: '{title}' is empty: give each row a date, or delete the row"
        )
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


def unit_of(days: pl.Series) -> PartitionUnit:
    """Return the partitions that fit the usual distance between the days with rows."""
    gaps = days.unique().sort().diff().drop_nulls().dt.total_days()
    usual = float(gaps.median() or 0) if len(gaps) else 0.0  # pyright: ignore[reportArgumentType]
    return [one for one in UNITS.values() if usual >= one.least_days][-1]


def _forms_of(column: pl.Series, wanted: str) -> list[str]:
    """Return the forms that fit all dates of `column`; several if it is ambiguous."""
    texts = present(column)
    if texts.null_count() > len(texts) // 2:
        return []
    some = texts.drop_nulls().unique(maintain_order=True)
    forms = [wanted] if wanted or some.is_empty() else _forms_like(some[0])
    return _distinct([form for form in forms if form and _fits(some, form)], some)


def _forms_like(text: str) -> list[str]:
    """Return the forms of which `text` has the day. A table may have thousands of columns, and most hold no dates."""
    days = [day for day in _DAYS if _beginning(day).match(text)]
    months = [month for month in _MONTHS if _beginning(month).match(text)]
    return [*days, *months, *(day + end for day in days for end in _ENDS)]


@lru_cache(maxsize=1000)
def _beginning(form: str) -> re.Pattern[str]:
    # Eight digits may be a number: only years that a table has.
    return re.compile(
        time_format(form).expression.removesuffix("$") if form != "%Y%m%d" else r"^(19|20)\d{6}"
    )


def _distinct(forms: Sequence[str], some: pl.Series) -> list[str]:
    """Return forms without those that read the same dates as an earlier one: `%S` and `%S%.f`, `%b` and `%B` of May."""
    kept: dict[tuple[object, ...], str] = {}
    for form in forms:
        kept.setdefault(tuple(_dates(some.head(1000), form).to_physical()), form)
    return list(kept.values())


def _fits(some: pl.Series, form: str) -> bool:
    if form.startswith("%Y%m%d") and not all(map(_beginning("%Y%m%d").match, some.head(3))):
        return False
    return _dates(some.head(3), form).null_count() == 0 and _dates(some, form).null_count() == 0


def _unlikeliness(column: pl.Series, time: TimeColumn) -> int:
    """Return a number that is lower for a column in order, and higher for few different dates."""
    dates = _dates(present(column), time.form) if time.form else column
    is_in_order = dates.is_sorted() or dates.is_sorted(descending=True)
    return 2 * (dates.n_unique() < _FEW) + (not is_in_order)


def _dates(texts: pl.Series, form: str) -> pl.Series:
    return time_format(form).read(texts).local


def _refuse_a_bad_date(rows: FileRows, column: pl.Series, title: str, wanted: str, share: float) -> None:
    """Raise `CsvRefused` for the first value that is not a date if more than `share` of the column's values are."""
    texts = present(column)
    some = texts.drop_nulls().head(1000)
    if some.is_empty():
        return
    found = {form: None for text in some.head(20) for form in _forms_like(text)}
    forms = [wanted] if wanted else list(found)
    read = {form: 1 - _dates(some, form).null_count() / len(some) for form in forms}
    best = max(read, key=lambda form: read[form], default="")
    if not best or read[best] <= share:
        if share == 0.0:
            raise CsvRefused(
                f"{rows.place(int(texts.is_not_null().arg_max() or 0))}: '{title}' holds {some[0]!r}, which is not a "
                "date that is understood: write dates as 2024-01-31, or give --date-format '%d.%m.%Y'"
            )
        return
    wrong = _dates(texts, best).is_null() & texts.is_not_null()
    row = int(wrong.arg_max() or 0)
    shown = TimeColumn(column.name, best).shown if not wanted else f"written as '{wanted}'"
    raise CsvRefused(
        f"{rows.place(row)}: '{title}' holds {texts[row]!r}, which is not a date {shown} like the others: "
        "correct it, or delete the row"
    )
