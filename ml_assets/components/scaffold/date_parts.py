"""Dates whose parts stand in several columns: a year and its quarter, month or day.

They are joined where headings and ranges leave no doubt, or where a person names the columns. Not here: which column
dates the rows (`event_times`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from ml_assets.components.scaffold.date_forms import TimeColumn, is_named, read_dates, texts_of
from ml_assets.components.scaffold.labels import typed_as
from ml_assets.components.scaffold.refusals import CsvRefused
from ml_assets.components.scaffold.rows_of_file import FileRows
from ml_assets.data.sources.written_values import JOINED, joined_parts


class _Part(NamedTuple):
    """A part of a date in a column of its own."""

    word: str
    heading: str
    values: str
    of: Callable[[pl.Series], pl.Series]
    """The number of the part, of days."""
    whole: str
    """Example of a date with this part."""
    forms: tuple[str, ...] = ()
    """Forms of its texts; none if a year and this part do not make a day."""


_PARTS = {
    one.word: one
    for one in (
        _Part(
            "day of the year",
            "day of (the )?year|doy",
            "[0-9]{1,3}",
            lambda days: days.dt.ordinal_day(),
            "2024-01-31",
            ("%j",),
        ),
        _Part(
            "day",
            "day( of (the )?month)?|dd|tag",
            "[0-9]{1,2}",
            lambda days: days.dt.day(),
            "2024-01-31",
            ("%d",),
        ),
        _Part("week", "week|wk|woche|kw", "[Ww]?[0-9]{1,2}", lambda days: days.dt.week(), "2024-01-31"),
        _Part(
            "month",
            "(fiscal )?(month|mon|mm|monat)",
            "[0-9]{1,2}|[A-Za-z]{3,9}",
            lambda days: days.dt.month(),
            "2024-01",
            ("%m", "%b", "%B"),
        ),
        _Part(
            "quarter",
            "(fiscal )?(quarter|qtr|q|quartal)",
            "[Qq]?[0-9]",
            lambda days: days.dt.quarter(),
            "2024Q1",
            ("%q", "Q%q", "q%q"),
        ),
        _Part(
            "weekday",
            "weekday|day of week|dow|wochentag",
            "[0-9]",
            lambda days: days.dt.weekday(),
            "2024-01-31",
        ),
    )
}
"""The finer ones first, because the example of a whole date is that of the first one found."""
_TOGETHER = (("day of the year",), ("month", "day"), ("month",), ("quarter",))
"""Parts that make a date together with a year."""
_FISCAL = "fiscal .*|fy"
_LAST_WEEKDAY = 7


class JoinedDate(NamedTuple):
    """A date that is written in several columns."""

    names: tuple[str, ...]
    """Its columns, the year first."""
    form: str
    """Form of the texts, joined by `-`."""


def divided(
    rows: FileRows,
    frame: pl.DataFrame,
    titles: Mapping[str, str],
    time: TimeColumn,
    entity: Sequence[str],
    *,
    is_named_alone: bool,
) -> JoinedDate | None:
    """Return the columns to join if the event time is a year, and other columns have its quarter, month or day.

    A column that the person named as `entity` is not part of a date. Raises `CsvRefused` if the columns may mean
    something else, also if the person named the year, or its format (`is_named_alone`).
    """
    if not time.is_year or frame[time.name].n_unique() == len(frame):
        return None
    found = {
        word: name
        for word, part in reversed(_PARTS.items())
        for name, title in titles.items()
        if name not in (time.name, *entity) and is_named(title, part.heading) and _holds(frame[name], part)
    }
    if not found:
        return None
    finest = next(word for word in _PARTS if word in found)
    words = next((one for one in _TOGETHER if finest in one and set(one) <= set(found)), ())
    year, other = titles[time.name], titles[found[finest]]
    names = (time.name, *(found[word] for word in words))
    option = typed_as(",".join(titles[name] for name in names))
    if not words or is_named_alone or rows.form == "sql":
        write = "make a view" if rows.form == "sql" else "write one column"
        join = f"; or add --date {option}" if words and rows.form != "sql" else ""
        raise CsvRefused(
            f"{rows.path}: '{year}' and '{other}' are a date in two columns: {write} with dates such as "
            f"{_PARTS[finest].whole}{join}; or add --entity {other}, if each {other} is a series with a row per {year}"
        )
    if fiscal := [titles[name] for name in names if is_named(titles[name], _FISCAL)]:
        raise CsvRefused(
            f"{rows.path}: '{fiscal[0]}' may begin with another month than January: write one column with dates such "
            f"as {_PARTS[finest].whole}; or add --date {option}, which reads them as of the calendar"
        )
    if finest == "day" and (largest := _largest(frame[found["day"]])) <= _LAST_WEEKDAY:
        raise CsvRefused(
            f"{rows.path}: '{other}' holds numbers up to {largest}, which may be days of the week: add --date {option} "
            f"for days of the month, or --date {typed_as(','.join(titles[name] for name in names[:-1]))}"
        )
    return joined_date(rows, frame, titles, names, "")


def joined_date(
    rows: FileRows, frame: pl.DataFrame, titles: Mapping[str, str], names: Sequence[str], form: str
) -> JoinedDate:
    """Return how the parts of a date in the columns `names`, the year first, read together.

    `form` is the format that the person named for the joined texts, or empty. Raises `CsvRefused`.
    """
    if form:
        return JoinedDate(tuple(names), form)
    option = ",".join(titles[name] for name in names)
    if rows.form == "sql":
        raise CsvRefused(f"--date {option}: make a view of the table with one column of dates, and name that")
    if not _holds(frame[names[0]], _Part("", "", "[0-9]{4}", lambda days: days.dt.year(), "")):
        raise CsvRefused(
            f"--date {option}: '{titles[names[0]]}' does not hold years such as 2024: name the year first"
        )
    forms = ["%Y"]
    for place, name in enumerate(names[1:], 1):
        words = _words_of(frame[name], titles[name], place)
        if len(words) != 1:
            meant = (
                f"may be {' or '.join(words)}"
                if words
                else "is neither quarter, month nor day by its numbers"
            )
            raise CsvRefused(
                f"--date {option}: '{titles[name]}' {meant}: add --date-format for the texts joined by "
                f"{JOINED}, such as --date-format '%Y-%m'"
            )
        forms = [f"{before}{JOINED}{one}" for before in forms for one in _PARTS[words[0]].forms]
    texts = joined_parts(frame.rename(dict(titles)), *(titles[name] for name in names))
    valid = [one for one in forms if _is_form(one)]
    if not valid:
        raise CsvRefused(
            f"--date {option}: these parts do not make a day: name year and month, or year, month and day"
        )
    return JoinedDate(tuple(names), max(valid, key=lambda one: read_dates(texts, one).count()))


def with_joined(
    frame: pl.DataFrame, titles: Mapping[str, str], joined: JoinedDate
) -> tuple[pl.DataFrame, dict[str, str], str]:
    """Return the frame with one column in place of the parts, the headings of its columns, and the name of that one."""
    heading = JOINED.join(titles[name] for name in joined.names)
    column = "_".join(joined.names)
    values = joined_parts(frame.rename(dict(titles)), *(titles[name] for name in joined.names)).alias(column)
    frame = frame.insert_column(frame.columns.index(joined.names[0]), values).drop(joined.names)
    return frame, {name: heading if name == column else titles[name] for name in frame.columns}, column


def _words_of(column: pl.Series, title: str, place: int) -> list[str]:
    """Return the parts that a column can be: the one of its heading, or those of its values.

    `place` is 1 for the column after the year.
    """
    named = [word for word, part in _PARTS.items() if part.forms and is_named(title, part.heading)]
    if named:
        return named
    texts = texts_of(column)
    if texts is None or texts.is_null().all():
        return []
    numbers = _numbers(texts)
    if texts.str.contains("^[Qq][1-4]$").all():
        return ["quarter"]
    if numbers.has_nulls():
        return ["month"] if texts.str.contains("^[A-Za-z]{3,9}$").all() else []
    low, high = _largest(column, -1), _largest(column)
    limits = (("quarter", 4), ("month", 12)) if place == 1 else (("day", 31),)
    return [word for word, most in limits if low >= 1 and high <= most]


def _numbers(texts: pl.Series) -> pl.Series:
    return texts.str.strip_suffix(".0").cast(pl.Int64, strict=False)


def _largest(column: pl.Series, sign: int = 1) -> int:
    """Return the largest number of a column of whole numbers; the smallest for `sign` -1."""
    texts = texts_of(column)
    assert texts is not None
    found = (_numbers(texts) * sign).max()
    return sign * (found if isinstance(found, int) else 0)


def _is_form(form: str) -> bool:
    try:
        read_dates(pl.Series(["2024"]), form)
    except ValueError:
        return False
    return True


def _holds(column: pl.Series, part: _Part) -> bool:
    texts = texts_of(column)
    if texts is None or texts.is_null().all():
        return False
    return bool(texts.drop_nulls().str.contains(rf"^({part.values})(\.0)?$").all())


def parts_of_date(frame: pl.DataFrame, titles: Mapping[str, str], days: pl.Series) -> list[str]:
    """Return the columns of `frame` [rows] that repeat the quarter, month, week or day of `days` [rows]."""
    named = [
        (name, part)
        for name, title in titles.items()
        for part in _PARTS.values()
        if is_named(title, part.heading)
    ]
    return [name for name, part in named if _repeats(frame[name], part.of(days))]


def _repeats(column: pl.Series, numbers: pl.Series) -> bool:
    texts = texts_of(column)
    if texts is None:
        return False
    found = texts.str.extract(r"([0-9]{1,3})(\.0)?$").cast(pl.Int64)
    # Some count months and weekdays from 0.
    return not found.has_nulls() and (found - numbers).n_unique() == 1
