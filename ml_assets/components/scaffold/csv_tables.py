"""Facts of a table that a person hands in as a file: types, event time, cadence, keys, series, label, past.

Each fact is a guess from the rows in the file, or an option that the person gave; `guesses` has a line for each. Here:
their order. Not here: how one is made (the modules beside this one), and the written files (`scaffolders`).
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from itertools import accumulate
from keyword import iskeyword
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import polars as pl
import polars.selectors as cs
from pydantic import TypeAdapter, ValidationError

from ml_assets.components.scaffold.column_values import Values, of_own_type, plain_columns, typed_columns
from ml_assets.components.scaffold.date_forms import YEAR, TimeColumn, is_named
from ml_assets.components.scaffold.date_parts import divided, joined_date, parts_of_date, with_joined
from ml_assets.components.scaffold.event_times import moments_of, time_columns, units_of
from ml_assets.components.scaffold.labels import Label, label_of, typed_as
from ml_assets.components.scaffold.past_columns import PastColumns, choose_past
from ml_assets.components.scaffold.refusals import CsvRefused
from ml_assets.components.scaffold.row_keys import ID, is_unique, naming_a_series, primary_key, series_of
from ml_assets.components.scaffold.rows_of_file import FileForm, FileRows
from ml_assets.components.scaffold.units import UNITS, PartitionUnit
from ml_assets.data.features.encoding import LARGEST_FLOAT32
from ml_assets.data.features.holiday_calendar import HOLIDAY_COLUMNS, CalendarUnknown, holidays_of
from ml_assets.data.features.telling import Telling, telling_columns
from ml_assets.data.sources.s3_object import S3Object
from ml_assets.data.sources.text_values import time_format
from ml_assets.data.sources.written_values import Decimal
from ml_assets.data.tables.cadence import OF_MONTHS, Cadence
from ml_assets.data.validation.column_types import NUMERIC, type_name
from ml_assets.foundation.sections import TimeZone
from resources.extras import missing_extra
from resources.words import counted, did_you_mean, name_some

LEAST_PARTITIONS = 20
"""Partitions with rows below which the splits of a first model would be too small to measure anything."""
_OF_PAST = re.compile(r"(.+)_(last|change|mean|season|[0-9]+(?:d|w|mo|q|y)?)")
"""Names of features, after the name of their column."""
_PLATFORM = frozenset(
    [
        "known_at",
        "partition_date",
        "predicted_at",
        "label_known_at",
        "weekday",
        "hour",
        "season_sin",
        "season_cos",
    ]
)
"""Columns that the written files add. A column of the file with such a name is renamed."""


class Guess(NamedTuple):
    """A fact for a person to check."""

    about: str
    value: str
    otherwise: str = ""
    """The runner-up, and the option that chooses it."""


@dataclass(frozen=True)
class GivenOptions:
    """Options that a person gave, as they were typed; empty if not given."""

    label: str = ""
    known: Sequence[str] = ()
    date: str = ""
    date_format: str = ""
    entity: Sequence[str] = ()
    cadence: str = ""
    decimal: str = ""
    time_zone: str = ""
    holidays: str = ""


@dataclass(frozen=True)
class CsvColumn:
    """A column of the file, with its name in the table."""

    name: str
    title: str
    """Heading in the file."""
    dtype: str
    """Type of the contract: int64, float64, bool, string, date or datetime."""
    nullable: bool
    written: str = ""
    """Form of its texts, see `Values.written`."""
    chain: str | None = None
    """See `Values.chain`."""
    cast: str = ""
    """See `Values.cast`."""
    ge: float | None = None
    le: float | None = None


@dataclass(frozen=True)
class CsvTable:
    """Facts about the table in a file."""

    path: Path | S3Object
    form: FileForm
    sql: Mapping[str, str]
    """See `FileRows.sql`."""
    separator: str
    columns: tuple[CsvColumn, ...]
    time: TimeColumn
    """Column of the event time."""
    together: tuple[str, ...]
    """Headings of the columns that are joined to the event time, the year first; empty if it is a column."""
    time_zone: str
    """Zone in which days begin, and of times without an offset."""
    cadence: Cadence
    """Partitions from the first to the last with rows that is over."""
    rows: int
    present: int
    """Partitions with rows that are over."""
    unevenness: float
    """Largest difference of a partition's number of rows from its usual one, as a share; see `_unevenness`."""
    primary_key: tuple[str, ...]
    series: tuple[str, ...]
    """Columns that name a row together with the event time: a store, a sensor. Empty if the file is a single series."""
    label: Label
    known: tuple[str, ...]
    """Columns that are known before their partition begins, such as a plan or a price: features of their own row."""
    by_hour: bool
    """True if days have rows of many hours: the past of a row is that of the same hour."""
    by_minute: bool
    """True if an hour has several rows, such as half hours: the past of a row is that of the same time of day."""
    past: PastColumns
    """Other columns whose earlier values are features."""
    holidays: str
    """Calendar whose public holidays are features, see `holidays_of`; empty for none."""
    recent: tuple[int, ...]
    """Distances, in partitions, of the recent past."""
    season: tuple[int, ...]
    """Distances, in partitions, of the same season."""
    window: Mapping[str, int]
    """Partitions of each split of a first model; see `window_of`."""
    training_rows: int
    """Rows of its training split."""
    guesses: tuple[Guess, ...] = field(default=(), compare=False)

    @property
    def column(self) -> CsvColumn:
        """Column of the event time."""
        return next(column for column in self.columns if column.name == self.time.name)

    @property
    def unit(self) -> PartitionUnit:
        """Length of a partition."""
        return UNITS[self.cadence.kind]

    @property
    def keys(self) -> list[str]:
        """Keys of all partitions from the first to the last with rows."""
        return self.cadence.keys(date.min, date.max)

    @property
    def gaps(self) -> int:
        """Partitions without a row among `keys`."""
        return len(self.keys) - self.present


def infer(rows: FileRows, asked: GivenOptions = GivenOptions(), now: datetime | None = None) -> CsvTable:
    """Infer the facts of the table in `rows`.

    Without `asked.label`, a column is predicted whose name says so, or the last one. Columns are named by
    their headings or names. Days begin at midnight in `asked.time_zone` (default: UTC), which is also the zone of times
    without an offset: without it, such times are refused. Partitions that are not over at `now` are left to later runs,
    as is a last one of which the file has only a part. Raises `CsvRefused`.
    """
    zone = _zone(asked.time_zone)
    texts, titles = _renamed(rows.frame, [*_PLATFORM, *(HOLIDAY_COLUMNS if asked.holidays else ())])
    entity = tuple(_named("--entity", name, titles) for name in asked.entity)
    plain = plain_columns(texts) if rows.form != "sql" else {}
    texts, titles, dated, together = _dated(rows, texts, titles, plain, asked, entity)
    time = dated[0]
    if time.is_time and not (time.has_offset or zone):
        raise CsvRefused(
            f"'{titles[time.name]}' has times without an offset from UTC: give their time zone, such as --time-zone "
            "Europe/Berlin or --time-zone UTC"
        )
    zone = zone or "UTC"
    moments = moments_of(rows, texts, time, titles[time.name], zone)
    others = typed_columns(rows, texts.drop(time.name), titles, plain, _decimal(asked.decimal), zone)
    values = {found.values.name: found for found in others}
    if not time.form:
        values[time.name] = Values(
            moments, chain=(of_own_type(texts[time.name], zone) or Values(moments)).chain
        )
    elif texts.schema[time.name] != pl.String:
        values[time.name] = Values(moments, cast=".cast(pl.String)")
    nested = [titles[name] for name in texts.columns if name not in values and name != time.name]
    frame = pl.DataFrame(
        [
            moments if name == time.name else values[name].values
            for name in texts.columns
            if titles[name] not in nested
        ]
    )
    _refuse_infinite(rows, frame, titles)
    local = moments.dt.convert_time_zone(zone) if time.is_time else None
    days = moments if local is None else local.dt.date()
    today = (now or datetime.now(UTC)).astimezone(ZoneInfo(zone)).date()
    over = {one: _over(days, local, one, today) for one in units_of(days)}
    unit = _unit(rows, asked.cadence, over)
    starts = days.dt.truncate(f"1{unit.suffix}")
    present_days = over[unit]
    running = int((starts > present_days[-1]).sum())
    first, last = present_days[0], present_days[-1]
    cadence = Cadence(unit.cadence, first, last)
    holidays = _holidays(asked.holidays, unit, first, last)
    keys = cadence.keys(first, last)
    of_start = dict(starts.value_counts().iter_rows())
    rows_of_keys = [of_start.get(date.fromisoformat(key), 0) for key in keys]
    window = window_of(rows_of_keys)
    validation = date.fromisoformat(keys[-window["validation"] - window["holdout"]])
    holdout = date.fromisoformat(keys[-window["holdout"]])

    wanted = _named("--label", asked.label, titles)
    _require_entity(frame, entity, time.name, wanted)
    # A part of the date is neither label nor entity, nor has it a past.
    parts = [
        *(one.name for one in dated[1:] if one.is_year and is_named(titles[one.name], YEAR)),
        *parts_of_date(texts.select(frame.columns), {name: titles[name] for name in frame.columns}, days),
    ]
    parts = [name for name in dict.fromkeys(parts) if name not in (time.name, wanted, *entity)]
    candidates = [name for name in frame.columns if name not in (time.name, wanted, *parts)]
    undated = [name for name in candidates if name not in (*entity, *(one.name for one in dated))]
    named = series_of(frame, time.name, undated)
    series = entity or (named[0] if named else ())
    key = primary_key(rows, frame, time.name, candidates, series)
    taken = (time.name, *key, *series, *(one.name for one in dated), *parts)
    odd = {name: found.odd for name, found in values.items() if found.odd is not None}
    known = [_named("--known", name, titles) for name in asked.known]
    label, possible = label_of(rows, frame, titles, wanted, taken, known, starts, validation, holdout, odd)
    in_advance = tuple(
        dict.fromkeys(_known(name, titles, frame, time.name, label.name) for name in asked.known)
    )
    # Rows that are events of their own have no value that continues.
    continues = bool(entity) or is_unique(frame, (time.name, *series))
    hours = None if local is None else local.dt.hour().alias(_HOUR)
    by_hour = hours is not None and continues and _has_many_hours(frame, series, starts, hours)
    by_minute = False
    if local is not None and hours is not None and by_hour:
        times = (hours + local.dt.minute() / 60).alias(_HOUR)
        by_minute = _has_times_of_day(frame, series, starts, hours, times)
        hours = times if by_minute else hours
    of_past = [name for name in frame.columns if name not in (*taken, label.name, *in_advance)]
    past = choose_past(
        frame.with_columns(hours) if by_hour else frame,
        of_past if continues else [],
        starts=starts,
        series=[*series, *([_HOUR] if by_hour else [])],
        label=label,
        before=validation,
    )
    # The label of rows to come is empty, which says nothing about those of days that are over.
    seen = frame.filter(starts <= present_days[-1])
    labelled = frame.select(
        *series, *([hours] if by_hour and hours is not None else []), starts.alias(_START)
    )
    labelled = labelled.filter(frame[label.name].is_not_null() & (starts <= present_days[-1])).unique()
    trained = labelled.filter(pl.col(_START) < validation)
    recent = _recent(unit, labelled, trained)
    if not recent:
        of_entity = f" of one {' and '.join(series)}" if series else ""
        raise CsvRefused(
            f"{rows.path}: values of '{titles[label.name]}'{of_entity} are more than {unit.recent[1]} {unit.word}s "
            "apart in the rows of the training, so no earlier value can be a feature: "
            f"{'leave --entity out, or ' if entity else ''}choose a longer --cadence"
        )
    _require_known(rows, frame.filter(starts < validation), in_advance, titles)
    table = CsvTable(
        path=rows.path,
        form=rows.form,
        sql=rows.sql,
        separator=rows.separator,
        columns=tuple(
            _column(seen[name], titles[name], values.get(name), name in key) for name in frame.columns
        ),
        time=time,
        together=together,
        time_zone=zone,
        cadence=cadence,
        rows=len(frame),
        present=len(present_days),
        unevenness=_unevenness(
            starts.filter(starts <= present_days[-1]), by_weekday=unit.cadence not in OF_MONTHS
        ),
        primary_key=key,
        series=series,
        label=label,
        known=in_advance,
        by_hour=by_hour,
        by_minute=by_minute,
        past=past,
        holidays=asked.holidays,
        recent=recent,
        season=_season(unit, labelled, trained),
        window=window,
        training_rows=sum(rows_of_keys[-sum(window.values()) :][: window["train"]]),
    )
    words = [name for name in candidates if frame[name].dtype == pl.String or ID.search(name)]
    naming = [name for name in naming_a_series(frame, words) if name not in (*series, label.name)]
    inexact = [
        titles[name] for name, found in values.items() if found.is_inexact and name not in (label.name, *key)
    ]
    return _with_guesses(
        table,
        rows,
        _with_enough(over),
        running,
        parts,
        titles,
        dated,
        named,
        naming,
        possible,
        inexact,
        {name: row for name, row in odd.items() if name not in (*key, label.name)},
        telling_columns(frame.filter(starts < validation), in_advance, label.name),
        nested,
        holidays,
    )


_LEAST_HOLDOUT, _LEAST_VALIDATION, _LEAST_TRAIN = 5, 3, LEAST_PARTITIONS - 8
"""Partitions with rows that each split has at least."""


def window_of(rows: Sequence[int]) -> dict[str, int]:
    """Return the partitions of each split: about a sixth as holdout, a tenth for validation, at most 730 to train.

    `rows` are the rows of each partition, oldest first, from the first to the last with some: at least
    `LEAST_PARTITIONS` have some. If the rows become more, as polls do before an election, a sixth of the partitions may
    have most of them: the holdout has at most a quarter of the rows, and the validation split a sixth of the others,
    unless that leaves them too few partitions. More than 730 train if fewer would have too few with rows.
    """
    partitions, present = len(rows), sum(map(bool, rows))
    holdout, validation = (
        -(-share * partitions // present)
        for share in (
            min(56, max(_LEAST_HOLDOUT, present // 6)),
            min(28, max(_LEAST_VALIDATION, present // 10)),
        )
    )
    holdout = _sized(rows, holdout, _LEAST_HOLDOUT, 1 / 4, _LEAST_VALIDATION + _LEAST_TRAIN)
    validation = _sized(rows[:-holdout], validation, _LEAST_VALIDATION, 1 / 6, _LEAST_TRAIN)
    others = rows[: -holdout - validation]
    return {
        "train": _sized(others, min(730, len(others)), _LEAST_TRAIN, 1.0, 0),
        "validation": validation,
        "holdout": holdout,
    }


def _sized(rows: Sequence[int], last: int, least: int, share: float, before: int) -> int:
    """Return a number of partitions near `last`: the last ones have together at most `share` of the rows, and leave
    `before` partitions with rows, unless fewer than `least` of them would have some."""
    # Of the last n partitions, for each n: a table with a first date of 1900 has 45,000 days.
    present = [0, *accumulate(map(bool, reversed(rows)))]
    counts = [0, *accumulate(reversed(rows))]
    last = min(last, len(rows))
    while present[last] < least:
        last += 1
    while present[last - 1] >= least and (
        counts[last] > share * counts[-1] or present[-1] - present[last] < before
    ):
        last -= 1
    return last


def _with_guesses(
    table: CsvTable,
    rows: FileRows,
    units: Sequence[PartitionUnit],
    running: int,
    parts: Sequence[str],
    titles: Mapping[str, str],
    dated: Sequence[TimeColumn],
    named: Sequence[tuple[str, ...]],
    naming: Sequence[str],
    labels: Sequence[str],
    inexact: Sequence[str],
    odd: Mapping[str, int],
    telling: Sequence[Telling],
    nested: Sequence[str],
    holidays: str,
) -> CsvTable:
    """Return the table with a line per guess, each with its runner-up."""
    unit, kind = table.unit.word, table.unit.cadence
    gaps = f"{table.gaps} of {len(table.keys)} {unit}s have no row" if table.gaps else ""
    at = units.index(table.unit)
    longer = units[at + 1 : at + 2]
    likelier = longer[0] if longer and 2 * table.gaps > len(table.keys) else None
    others = " or ".join(one.cadence for one in (*units[:at][-1:], *longer))
    if likelier:
        other_cadence = f"{gaps}: is this {likelier.cadence}? --cadence {likelier.cadence}"
    else:
        other_cadence = f"--cadence {others}" if others else ""
    other_dates = [one.name for one in dated[1:] if one.name not in parts or table.time.is_year]
    unused = [f"{name_some(parts)}: parts of the date"] * bool(parts)
    left_out = "; ".join([*unused, *([table.past.note] if table.past.note else [])])
    runners_up = [columns for columns in named if not set(table.series) <= set(columns)] or [
        (one,) for one in naming
    ]
    other = "" if not runners_up or (table.series and not named) else ", ".join(runners_up[0])
    past = ", ".join((table.label.name, *table.past.numbers, *table.past.words))
    hour = f" at the same {'time of day' if table.by_minute else 'hour'}" * table.by_hour
    renamed = [
        f"{column.title!r} is {column.name}" for column in table.columns if column.name != column.title
    ]
    written = [f"{column.name} ({_written(column.written)})" for column in table.columns if column.written]
    guesses = [
        Guess(
            "event time",
            f"{table.time.name}, {table.time.shown}"
            + f": {', '.join(map(repr, table.together))} joined" * bool(table.together),
            f"{other_dates[0]} also holds dates: --date {other_dates[0]}" if other_dates else "",
        ),
        Guess("cadence", kind + (f"; {gaps}" if gaps and not likelier else ""), other_cadence),
        Guess(
            "time zone",
            table.time_zone,
            "--time-zone Europe/Berlin" if table.time_zone == "UTC" else "",
        ),
        Guess("primary key", ", ".join(table.primary_key), "primary_key in defs.yaml"),
        Guess(
            "entity",
            ", ".join(table.series) or "none: all rows are about the same thing",
            f"{other} also repeats: --entity {other.replace(' ', '')}" if other else "",
        ),
        Guess(
            "label",
            f"{table.label.name}, {table.label.kind}" + f"; {table.label.why}" * bool(table.label.why),
            f"{labels[0]} could be predicted, too: --label {typed_as(labels[0])}" if labels else "",
        ),
        Guess("in advance", ", ".join(table.known) or "no column is known", "--known COLUMN,COLUMN"),
        *(
            Guess("suspicious", one.explain(), "known only afterwards? leave it out of --known")
            for one in telling
        ),
        *([Guess("holidays", holidays, "HOLIDAYS in features.py")] * bool(holidays)),
        Guess("past of", past, f"values of earlier {unit}s{hour} are features"),
        *([Guess("not over", f"{counted(running, 'row')}, of a {unit} that runs or comes")] * bool(running)),
        *([Guess("left out", left_out)] * bool(left_out)),
        *([Guess("new names", name_some(renamed))] * bool(renamed)),
        *([Guess("written", name_some(written))] * bool(written)),
        *(
            [Guess("not read", f"{name_some(nested)}: lists and other types that a table cannot have")]
            * bool(nested)
        ),
        *([Guess("as text", f"{name_some(inexact)}: as numbers, digits would be lost")] * bool(inexact)),
        *([Guess("as text", _with_lines(rows, odd), "if it is a number: correct such values")] * bool(odd)),
    ]
    return replace(table, guesses=tuple(guesses))


def _written(form: str) -> str:
    words = form.split()
    if len(words) == 2:
        return f"{words[0]} is true, {words[1]} false"
    return "with a decimal comma" if form == "," else "without unit and marks between thousands"


def _with_lines(rows: FileRows, odd: Mapping[str, int]) -> str:
    some = [f"{name} (line {rows.line(row)} is not a number)" for name, row in [*odd.items()][:_ODD_SHOWN]]
    return ", ".join(some) + (f" and {len(odd) - _ODD_SHOWN} more" if len(odd) > _ODD_SHOWN else "")


_ODD_SHOWN = 3


def _zone(name: str) -> str:
    """Return a time zone; empty for an empty name."""
    try:
        return TypeAdapter(TimeZone).validate_python(name) if name else ""
    except ValidationError as error:
        raise CsvRefused(f"--time-zone: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error


def _holidays(calendar: str, unit: PartitionUnit, first: date, last: date) -> str:
    """Return the number of holidays of a calendar in the days of the file, in words; empty if none is asked for."""
    if not calendar:
        return ""
    if unit.cadence != "daily":
        raise CsvRefused(
            f"--holidays {calendar}: a {unit.word} has many days, holidays and others: leave it out, or name a column "
            "with their number in --known"
        )
    try:
        days = holidays_of(calendar, first, last)
    except CalendarUnknown as error:
        raise CsvRefused(f"--holidays {calendar}: {error}") from error
    except ModuleNotFoundError as error:
        raise CsvRefused(f"--holidays {calendar}: {missing_extra(error)}") from error
    return f"{calendar}: {days['on_holiday'].sum():.0f} of {counted(days.height, 'day')}"


def _date_format(form: str) -> str:
    try:
        return time_format(form).text if form else ""
    except ValueError as error:
        raise CsvRefused(f"--date-format {error}") from error


def _decimal(word: str) -> Decimal | None:
    marks: dict[str, Decimal] = {"comma": ",", "point": "."}
    if word and word not in marks:
        raise CsvRefused(f"--decimal {word}: write comma or point")
    return marks.get(word)


def _unit(rows: FileRows, word: str, over: Mapping[PartitionUnit, Sequence[date]]) -> PartitionUnit:
    """Return the unit that `--cadence` names, or the first that fits the days with rows.

    `over`: units that fit → first days of the partitions with rows that are over.
    """
    if word == "hourly":
        raise CsvRefused(
            "--cadence hourly: a model is trained by days or longer partitions. Leave it out: each hour is a row of "
            "its day, and the hours of a day are predicted when the day begins"
        )
    if word and word not in UNITS:
        raise CsvRefused(f"--cadence {word}{did_you_mean(word, UNITS)}")
    first = next(iter(over))
    unit = UNITS[word] if word else first
    if unit not in over:
        raise CsvRefused(
            f"--cadence {word}: the rows are a {first.word} apart or more, so most {unit.word}s would be empty: "
            f"leave it out, or choose {' or '.join(one.cadence for one in over)}"
        )
    if (present := len(over[unit])) < LEAST_PARTITIONS:
        enough = _with_enough(over)
        remedy = f", or try --cadence {enough[-1].cadence}" if enough else ""
        raise CsvRefused(
            f"{rows.path} has rows of {present} {unit.word}s that are over: a first model needs at least "
            f"{LEAST_PARTITIONS} for training, validation and holdout: give a file with more{remedy}"
        )
    return unit


def _with_enough(over: Mapping[PartitionUnit, Sequence[date]]) -> list[PartitionUnit]:
    """Return the units of which a first model has enough partitions."""
    return [one for one, days in over.items() if len(days) >= LEAST_PARTITIONS]


def _over(days: pl.Series, local: pl.Series | None, unit: PartitionUnit, today: date) -> list[date]:
    """Return the first days of the partitions with rows that are over when `today` begins, oldest first.

    `local` has the moment of each row, None for dates. Without the last partition if the file ends within it.
    """
    starts = days.dt.truncate(f"1{unit.suffix}")
    running = pl.Series([today]).dt.truncate(f"1{unit.suffix}")
    over = starts.filter(starts < running[0]).unique().sort().to_list()
    ends_within = over and local is not None and _ends_within(over[-1], starts, local)
    return over[:-1] if ends_within else over


def _ends_within(newest: date, starts: pl.Series, local: pl.Series) -> bool:
    """Return True if the file ends before its newest partition does, as where days of UTC are cut in another zone.

    That partition then has fewer rows than each of the seven before it, and its last row is earlier. `starts`: the
    partition of each row; `local`: the row's moment in the zone in which partitions begin.
    """
    rows = pl.DataFrame(
        {"start": starts, "since": local.dt.replace_time_zone(None) - starts.cast(pl.Datetime("us"))}
    )
    found = rows.filter(pl.col("start") <= newest).group_by("start").agg(pl.len(), pl.col("since").max())
    *before, last = found.sort("start").tail(_COMPARED + 1).rows()
    return len(before) == _COMPARED and all(last[1] < one[1] and last[2] < one[2] for one in before)


_COMPARED = 7


def _renamed(frame: pl.DataFrame, reserved: Collection[str]) -> tuple[pl.DataFrame, dict[str, str]]:
    """Return the frame with Python names, and each name's heading in the file."""
    titles: dict[str, str] = {}
    names = [_name(title, place, reserved) for place, title in enumerate(frame.columns, start=1)]
    for name, title in zip(names, frame.columns, strict=True):
        # `sold_last` beside `sold` would be the name of a feature, too.
        feature = _OF_PAST.fullmatch(name)
        name = f"{name}_in_file" if feature and feature[1] in names else name
        while name in titles:
            name += "_2"
        titles[name] = title
    return frame.rename({title: name for name, title in titles.items()}), titles


def _name(title: str, place: int, reserved: Collection[str]) -> str:
    """Return a heading as a Python name that no column of the written files has."""
    name = re.sub(r"\W+", "_", title).strip("_").lower() or f"column_{place}"
    name = name if name.isidentifier() else f"column_{name}"
    return f"{name}_in_file" if name in reserved or iskeyword(name) else name


def _named(option: str, wanted: str, titles: Mapping[str, str]) -> str:
    """Return the name of a column that an option names by its heading or name; empty if the option is not given."""
    for name, title in titles.items():
        if wanted in (name, title):
            return name
    if wanted:
        raise CsvRefused(f"{option} {wanted} is not a column{did_you_mean(wanted, titles.values())}")
    return ""


def _dated(
    rows: FileRows,
    texts: pl.DataFrame,
    titles: Mapping[str, str],
    plain: Mapping[str, pl.Series],
    asked: GivenOptions,
    entity: Sequence[str],
) -> tuple[pl.DataFrame, Mapping[str, str], list[TimeColumn], tuple[str, ...]]:
    """Return the columns, with a date in one column; their headings; those of dates, the event time first; and the
    headings of the columns that were joined to it."""
    form, columns = _date_format(asked.date_format), _date_columns(asked.date, titles)
    if len(columns) > 1:
        joined = joined_date(rows, texts, titles, columns, form)
    else:
        dated = time_columns(rows, texts, titles, plain, columns[0], form)
        is_named_alone = bool(asked.date or form)
        joined = divided(rows, texts, titles, dated[0], entity, is_named_alone=is_named_alone)
        if joined is None:
            return texts, titles, dated, ()
    whole, headings, column = with_joined(texts, titles, joined)
    dated = time_columns(rows, whole, headings, plain, column, joined.form)
    return whole, headings, dated, tuple(titles[name] for name in joined.names)


def _date_columns(wanted: str, titles: Mapping[str, str]) -> list[str]:
    """Return the names of the columns that `--date` names: one (empty if not given), or the parts of a date."""
    parts = [part.strip() for part in wanted.split(",")]
    if len(parts) < 2 or wanted in (*titles, *titles.values()):
        return [_named("--date", wanted, titles)]
    names = [_named("--date", part, titles) for part in parts if part]
    if len({*names}) < len(parts):
        raise CsvRefused(
            f"--date {wanted}: name the columns of year, month and day once each, with commas between"
        )
    return names


def _known(wanted: str, titles: Mapping[str, str], frame: pl.DataFrame, event_time: str, label: str) -> str:
    named = _named("--known", wanted, titles)
    if named == label:
        raise CsvRefused(f"--known {wanted} is the label, which the model predicts: leave it out")
    if named == event_time:
        raise CsvRefused(f"--known {wanted} is the event time, which is always known: leave it out")
    distinct = frame[named].n_unique()
    if frame.schema[named] == pl.String and distinct * 2 > len(frame):
        raise CsvRefused(
            f"--known {wanted} has {distinct} different texts in {len(frame)} rows, such as {frame[named][0]!r}: a "
            "model learns nothing from texts that do not repeat, so leave it out"
        )
    return named


def _require_entity(frame: pl.DataFrame, entity: Sequence[str], event_time: str, label: str) -> None:
    for name in entity:
        if name in (event_time, label):
            raise CsvRefused(
                f"--entity {name} is the {'event time' if name == event_time else 'label'}: leave it out"
            )
        if empty := frame[name].null_count():
            raise CsvRefused(f"--entity {name} is empty in {empty} rows: fill it, or leave it out")
    if entity and frame.select(entity).n_unique() * 2 > len(frame):
        raise CsvRefused(
            f"--entity {','.join(entity)} names {frame.select(entity).n_unique()} things in {len(frame)} rows: an "
            "entity has rows at many dates, such as a store"
        )


_HOUR = "__hour"
_MANY_HOURS = 6


def _has_many_hours(frame: pl.DataFrame, series: Sequence[str], starts: pl.Series, hours: pl.Series) -> bool:
    """Return True if a partition of a series has rows of six hours or more, on average."""
    found = frame.select(*series, starts.alias("__start"), hours)
    return found.n_unique() >= _MANY_HOURS * found.drop(_HOUR).n_unique()


_MOST_TIMES = 12
"""Times in an hour, as of rows that are five minutes apart. Rows that are closer share the past of their hour."""


def _has_times_of_day(
    frame: pl.DataFrame, series: Sequence[str], starts: pl.Series, hours: pl.Series, times: pl.Series
) -> bool:
    """Return True if hours have several rows, at the same few times on most days. `times` [rows] are hours, too."""
    rows = frame.select(*series, starts.alias("__start"), hours.alias("__whole"), times)
    of_days, of_hours = rows.drop("__whole").n_unique(), rows.drop(_HOUR).n_unique()
    of_series = rows.select(*series, _HOUR).n_unique()
    in_an_hour = (times % 1).round(4).n_unique()
    return (
        2 * of_days >= 3 * of_hours
        and in_an_hour <= _MOST_TIMES
        and 2 * of_days >= of_series * starts.n_unique()
    )


def _unevenness(starts: pl.Series, *, by_weekday: bool) -> float:
    """Return the largest distance of a row count from the median of the last four of its weekday, as a share of it.

    Without `by_weekday`, of the last four. `starts`: the partition of each row. The volume rule of a table compares in
    the same way.
    """
    counted = starts.alias("start").value_counts().sort("start").cast({"count": pl.Float64})
    usual = pl.col("count").shift(1).rolling_median(4)
    usual = usual.over(pl.col("start").dt.weekday()) if by_weekday else usual
    return float(counted.select((pl.col("count") / usual - 1).abs().max()).item() or 0)


_START = "__start"
"""Column of the partition of a row."""


def _recent(unit: PartitionUnit, labelled: pl.DataFrame, trained: pl.DataFrame) -> tuple[int, ...]:
    """Return the smallest distances at which a fifth of `labelled` have earlier values; without any, at which some do.

    `labelled` has a row for each partition of a series with a label, `trained` those of the training. Only distances at
    which a training row has an earlier value count: a column without values cannot be learned from.
    """
    number, largest = unit.recent
    some = [lag for lag in range(1, largest + 1) if _with_earlier(unit, trained, lag)]
    found = [lag for lag in some if 5 * _with_earlier(unit, labelled, lag) >= len(labelled)]
    return tuple((found or some)[:number])


def _season(unit: PartitionUnit, labelled: pl.DataFrame, trained: pl.DataFrame) -> tuple[int, ...]:
    """Return distances of the same season at which half of `labelled` have earlier values, and a row of `trained`."""
    return tuple(
        lag
        for lag in unit.seasons
        if 2 * _with_earlier(unit, labelled, lag) >= len(labelled) and _with_earlier(unit, trained, lag)
    )


def _with_earlier(unit: PartitionUnit, labelled: pl.DataFrame, lag: int) -> int:
    """Return the number of rows whose series has a row `lag` partitions before, too."""
    later = labelled.with_columns(pl.col(_START).dt.offset_by(f"{lag}{unit.suffix}"))
    return labelled.join(later, on=labelled.columns, how="semi").height


def _require_known(
    rows: FileRows, trained: pl.DataFrame, in_advance: Sequence[str], titles: Mapping[str, str]
) -> None:
    """Raise `CsvRefused` for a number known in advance that no training row has, or that float32 does not hold."""
    for column in trained.select(cs.by_name(*in_advance) & cs.numeric()):
        named = f"{rows.path}: '{titles[column.name]}'"
        if column.null_count() == len(column):
            raise CsvRefused(f"{named} is empty in the rows of the training: leave it out of --known")
        if float(column.abs().max() or 0.0) > LARGEST_FLOAT32:  # pyright: ignore[reportArgumentType]
            raise CsvRefused(
                f"{named} holds numbers beyond float32, in which a network computes: write it in another unit, or "
                "leave it out of --known"
            )


def _refuse_infinite(rows: FileRows, frame: pl.DataFrame, titles: Mapping[str, str]) -> None:
    """Raise `CsvRefused` for the first infinite number: no range of a contract holds it, and no model reads it."""
    for column in frame.select(pl.col(pl.Float32, pl.Float64)):
        infinite = column.is_infinite().fill_null(value=False)
        if infinite.any():
            raise CsvRefused(
                f"{rows.place(int(infinite.arg_max() or 0))}: '{titles[column.name]}' is infinite: leave it empty, or "
                "give a number"
            )


def _column(values: pl.Series, title: str, found: Values | None, names_rows: bool) -> CsvColumn:
    dtype = type_name(values.dtype)
    ge, le = (None, None) if names_rows or dtype not in NUMERIC else _generous_range(values)
    found = found or Values(values)
    return CsvColumn(
        values.name, title, dtype, values.has_nulls(), found.written, found.chain, found.cast, ge, le
    )


def _generous_range(values: pl.Series) -> tuple[float | None, float | None]:
    """Return bounds at ten times the largest absolute value, none where no number is so large. The lower is 0 if no
    value is negative. Flags get 0, 1."""
    known = values.drop_nulls().cast(pl.Float64)
    if set(known.unique().to_list()) == {0.0, 1.0} and values.dtype.is_integer():
        return 0.0, 1.0
    largest = float(known.abs().max() or 0.0)  # pyright: ignore[reportArgumentType]
    if not largest:
        return (0.0 if len(known) else None), None
    limit = float(f"{10 * largest:.1g}")
    limit = limit if limit >= 5 * largest else 10 * largest
    limit = limit if math.isfinite(limit) else None
    is_negative = float(known.min() or 0.0) < 0  # pyright: ignore[reportArgumentType]
    return (0.0 if not is_negative else None if limit is None else -limit), limit
