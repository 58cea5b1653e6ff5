"""Forms in which files write days, months, quarters, years and moments, and those that fit a column.

Not here: which column dates the rows (`event_times`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

import polars as pl

from ml_assets.components.scaffold.column_values import of_own_type, present
from ml_assets.data.sources.text_values import time_format

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
_WEEKDAYS = {"%a ": "Wed ", "%a, ": "Wed, ", "%A ": "Wednesday ", "%A, ": "Wednesday, "}
_OF_WEEKDAYS = {
    weekday + form: name + example for weekday, name in _WEEKDAYS.items() for form, example in _DAYS.items()
}
"""Form of a day after its weekday, in English → an example."""
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
    "%Y/Q%q": "2024/Q1",
    "%Yq%q": "2024q1",
    "%Y-q%q": "2024-q1",
    "%yQ%q": "24Q1",
    "Q%q %Y": "Q1 2024",
    "Q%q-%Y": "Q1-2024",
    "Q%q/%Y": "Q1/2024",
    "Q%q %y": "Q1 24",
    "q%q %Y": "q1 2024",
    "%qQ%Y": "1Q2024",
    "%qQ%y": "1Q24",
}
"""Form of a month or a quarter, which stands for its first day → an example."""
_YEARS = {"%Y": "2024", "%Y.0": "2024.0", "FY%Y": "FY2024"}
"""Form of a year, which stands for its first day → an example. A float is written with `.0`."""
YEAR = r"((fiscal|calendar) ?)?(year|yr)|fy|yyyy|(kalender)?jahr"
"""Headings of columns with years; see `is_named`."""
_BY_HEADING = {
    "%Y": YEAR,
    "%Y.0": YEAR,
    "%Y%m": r"(year ?)?month|yyyymm|period|monat",
    "%Y%q": r"(year ?)?(quarter|qtr)|period|quartal",
}
"""Form → headings, in small letters, of columns in which such digits are dates. Elsewhere they are a number."""
_DIGITS = ("%Y%m%d", "%Y%m", "%Y%q")
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
_SOME = 20
"""Values of a column from which its form is guessed."""
_MOSTLY = 0.7
"""Share of the values that are dates, from which a column counts as one of dates with mistakes."""


@dataclass(frozen=True)
class TimeColumn:
    """A column that reads as dates or moments."""

    name: str
    form: str = ""
    """Format of texts, or of numbers as texts, in the notation of `time_format`; empty for the file's own dates."""
    dtype: pl.DataType = field(default_factory=pl.String)
    """Type in the file; a moment that is always midnight is a date."""

    @property
    def is_year(self) -> bool:
        """True if it names years, and nothing shorter."""
        return self.form in _YEARS

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
        days = _DAYS | _OF_WEEKDAYS
        shown = days | _MONTHS | _YEARS
        if self.form in shown or not self.is_time:
            return f"written as {shown.get(self.form) or repr(self.form)}"
        day = max((form for form in days if self.form.startswith(form)), key=len, default="")
        if not day:
            return f"written as '{self.form}'"
        offset = " and its offset from UTC" * self.has_offset
        return f"written as {days[day]}, with a time{offset}"


@dataclass(frozen=True)
class DatedColumn:
    """A column of dates, or one of which most values are."""

    time: TimeColumn
    dates: pl.Series
    """Day or time of each row, without a time zone; null for a value that is none."""
    forms: Sequence[str] = ()
    """Forms that fit all values: several if the column is ambiguous; none if values are wrong."""
    wrong: int | None = None
    """First row with a value that is not a date like the others, from 0."""

    @property
    def is_sure(self) -> bool:
        """True if all values are dates, with one meaning."""
        return self.wrong is None and len(self.forms) <= 1


def texts_of(column: pl.Series) -> pl.Series | None:
    """Return the texts that may be dates: those of a column of texts, categories or numbers; None for other types.

    They have no blanks around them, and are null where there is no value.
    """
    if column.dtype == pl.String:
        return present(column)
    return present(column.cast(pl.String)) if _has_text(column.dtype) else None


def dated_column(column: pl.Series, title: str, form: str, *, is_wanted: bool) -> DatedColumn | None:
    """Return the column as dates; None if it holds none. `title` is its heading, `form` the format that a person named.

    A person who names the column (`is_wanted`) means any dates in it; otherwise 70 % of its values must be dates.
    """
    if isinstance(column.dtype, pl.Date | pl.Datetime):
        native = of_own_type(column, "UTC")
        is_day = native is not None and native.values.dtype == pl.Date
        local = column.dt.replace_time_zone(None) if isinstance(column.dtype, pl.Datetime) else column
        return DatedColumn(TimeColumn(column.name, dtype=pl.Date() if is_day else column.dtype), local)
    if not _has_text(column.dtype):
        return None
    digits = [one for one, named in _BY_HEADING.items() if is_wanted or is_named(title, named)]
    known = column.drop_nulls()
    if not form and not _forms_like(known.head(_SOME).cast(pl.String), digits):
        return None  # before the whole column is converted: a table may have thousands
    texts = texts_of(column)
    assert texts is not None
    if texts.null_count() * 2 > len(texts) and not is_wanted:
        return None
    some = texts.drop_nulls().unique(maintain_order=True)
    if some.is_empty():
        return None
    likely = [form] if form else _forms_like(some.head(1), digits)
    fitting = _distinct([one for one in likely if _fits(some, one)], some)
    if fitting:
        return DatedColumn(TimeColumn(column.name, fitting[0]), read_dates(texts, fitting[0]), fitting)
    likely = [form] if form else _forms_like(some.head(_SOME), digits)
    return _with_mistakes(texts, likely, 0.0 if is_wanted else _MOSTLY)


def read_dates(texts: pl.Series, form: str) -> pl.Series:
    """Return the times of a clock in `texts`; null for a text of another form."""
    return time_format(form).read(texts).local


def is_named(title: str, expression: str) -> bool:
    """Return True if a heading, in small letters and with blanks between its words, matches all of `expression`."""
    return re.fullmatch(expression, re.sub(r"[\W_]+", " ", title).strip().lower()) is not None


def is_named_as_date(title: str) -> bool:
    """Return True for a heading below which digits are years, months or quarters."""
    return any(is_named(title, named) for named in _BY_HEADING.values())


def _has_text(dtype: pl.DataType) -> bool:
    return dtype == pl.String or dtype.is_numeric() or isinstance(dtype, pl.Categorical | pl.Enum)


def _forms_like(texts: pl.Series, digits: Sequence[str]) -> list[str]:
    """Return the forms that one of `texts` may have; `digits` are those that a number could have, too."""
    found: dict[str, None] = {}
    for text in texts.drop_nulls().str.strip_chars(" \t"):
        if not _any(tuple(digits)).match(text):
            continue  # most columns of a table hold no dates, and there are many forms
        known = (*_DAYS, *_OF_WEEKDAYS) if text[0].isalpha() else _DAYS
        days = [one for one in known if _beginning(one).match(text)]
        months = [one for one in (*_MONTHS, "FY%Y", *digits) if _beginning(one).match(text)]
        found |= dict.fromkeys((*days, *months, *(day + end for day in days for end in _ENDS)))
    return list(found)


@lru_cache(maxsize=100)
def _any(digits: Sequence[str]) -> re.Pattern[str]:
    forms = (*_DAYS, *_OF_WEEKDAYS, *_MONTHS, "FY%Y", *digits)
    return re.compile("|".join(_beginning(one).pattern for one in forms))


@lru_cache(maxsize=1000)
def _beginning(form: str) -> re.Pattern[str]:
    # Digits may be a number: only years that a table has.
    expression = time_format(form).expression.removesuffix("$")
    return re.compile(f"(?=(19|20)[0-9]){expression}" if form in _DIGITS else expression)


def _distinct(forms: Sequence[str], some: pl.Series) -> list[str]:
    """Return forms without those that read the same dates as an earlier one: `%S` and `%S%.f`, `%b` and `%B` of May."""
    kept: dict[tuple[object, ...], str] = {}
    for form in forms:
        kept.setdefault(tuple(read_dates(some.head(1000), form).to_physical()), form)
    return list(kept.values())


def _fits(some: pl.Series, form: str) -> bool:
    return read_dates(some.head(3), form).null_count() == 0 and read_dates(some, form).null_count() == 0


def _with_mistakes(texts: pl.Series, forms: Sequence[str], share: float) -> DatedColumn | None:
    """Return the column by the form that reads most of its values; None unless more than `share` of them are dates."""
    some = texts.drop_nulls().head(1000)
    read = {form: read_dates(some, form).is_not_null() for form in forms}
    if not forms or pl.DataFrame(read).select(pl.any_horizontal(pl.all()).mean()).item() <= share:
        return None
    best = max(forms, key=lambda form: read[form].sum())
    dates = read_dates(texts, best)
    wrong = dates.is_null() & texts.is_not_null()
    return DatedColumn(TimeColumn(texts.name, best), dates, wrong=int(wrong.arg_max() or 0))
