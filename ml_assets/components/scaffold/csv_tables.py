"""Inference of a table's facts from a CSV file: types, event time, cadence, primary key, series, label.

Reading and inference only; `scaffolders.py` writes the files. Each fact is a guess from the rows in the file, so
`notes` has a line for each that a person can check.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import combinations
from keyword import iskeyword
from pathlib import Path

import polars as pl
from pydantic import TypeAdapter, ValidationError

from ml_assets.components.scaffold.past_columns import PastColumns, choose_past
from ml_assets.data.sources.file_formats import CODE, texts_of_csv
from ml_assets.data.sources.text_values import TextForm, ValueRefused, time_format, typed
from ml_assets.data.validation.column_types import NUMERIC, type_name
from ml_assets.foundation.objective_facts import ObjectiveName, facts_of
from ml_assets.foundation.sections import TimeZone
from resources.words import did_you_mean, name_some

NULLS = ("NA", "N/A", "NaN", "nan", "null", "NULL", "None")
"""Texts that mean a missing value in columns that are not texts, in addition to an empty field."""
LEAST_PARTITIONS = 20
"""Days or weeks with rows below which the splits of a first model would be too small to measure anything."""
_DATES = (
    ("%Y-%m-%d", "2024-01-31"),
    ("%Y/%m/%d", "2024/01/31"),
    ("%Y%m%d", "20240131"),
    ("%d.%m.%Y", "31.01.2024"),
    ("%d/%m/%Y", "31/01/2024"),
    ("%m/%d/%Y", "01/31/2024"),
    ("%d-%m-%Y", "31-01-2024"),
)
_TIMES = ("", " %H:%M:%S", "T%H:%M:%S", " %H:%M", "T%H:%M", " %H:%M:%S%.f", "T%H:%M:%S%.f")
_OFFSETS = ("", "%#z")
_OF_PAST = re.compile(r"(.+)_(last|change|mean|season|[0-9]+[dw])")
"""Names of features, after the name of their column."""
_PLATFORM = frozenset(
    {
        "known_at",
        "partition_date",
        "predicted_at",
        "label_known_at",
        "weekday",
        "hour",
        "season_sin",
        "season_cos",
    }
)
"""Columns that the written files add. A column of the file with such a name is renamed."""
_COMMA = r"^[+-]?[0-9]+,[0-9]+$"
_THOUSANDS = r"^[+-]?[0-9]{1,3},[0-9]{3}$"
"""Numbers that may have a decimal comma, or a comma between thousands."""
_NUMBER = r"^[+-]?[0-9.,]*[0-9][0-9.,]*([eE][+-]?[0-9]+)?$"
_ID = re.compile(r"(^|_)(id|uuid|key|code|nr|no|number)$")


class CsvRefused(ValueError):
    """A file cannot become a pipeline. The message is one line with the remedy."""


@dataclass(frozen=True)
class CsvColumn:
    """A column of the file, with its name in the table."""

    name: str
    title: str
    """Heading in the file."""
    dtype: str
    """Type of the contract: int64, float64, bool, string, date or datetime."""
    nullable: bool
    ge: float | None = None
    le: float | None = None


@dataclass(frozen=True)
class CsvTable:
    """Facts about the table in a file."""

    path: Path
    separator: str
    decimal_comma: bool
    columns: tuple[CsvColumn, ...]
    event_time: str
    date_format: str
    """Format of the event time, in polars' notation."""
    has_offset: bool
    """True if the file's moments include their offset from UTC."""
    time_zone: str
    """Zone in which days begin, and of times without an offset."""
    cadence: str
    first_day: date
    last_day: date
    """First and last day with rows, in `time_zone`."""
    rows: int
    partitions: int
    """Days or weeks from the first to the last with rows."""
    gaps: int
    """Partitions without a row among them."""
    unevenness: float
    """Largest difference of a partition's number of rows from its usual one, as a share; see `_unevenness`."""
    primary_key: tuple[str, ...]
    series: tuple[str, ...]
    """Columns that name a row together with the event time: a store, a sensor. Empty if the file is a single series."""
    label: str
    texts: tuple[str, ...]
    """Columns that look like numbers but stay texts, because no number is exactly what they say."""
    known: tuple[str, ...]
    """Columns that are known before their day or week begins, such as a plan or a price: features of their own row."""
    objective: ObjectiveName
    typical: float
    """Mean absolute label."""
    by_hour: bool
    """True if days have rows of many hours: the past of a row is that of the same hour."""
    past: PastColumns
    """Other columns whose earlier values are features."""
    season: tuple[int, ...]
    """Distances, in partitions, of the same season, at which earlier rows exist."""

    @property
    def window(self) -> dict[str, int]:
        """Partitions of each split of a first model."""
        return window_of(self.partitions, self.gaps)

    @property
    def label_is_binary(self) -> bool:
        """True if labels are 0 or 1."""
        return facts_of(self.objective).is_zero_or_one

    @property
    def column(self) -> CsvColumn:
        """Column of the event time."""
        return next(column for column in self.columns if column.name == self.event_time)

    @property
    def unit(self) -> str:
        """Word for a partition: `week` or `day`."""
        return "week" if self.cadence == "weekly" else "day"

    @property
    def notes(self) -> tuple[str, ...]:
        """One line per guess."""
        zone = "UTC, the default; set --time-zone Europe/Berlin if days begin at midnight there"
        shown = next(example for form, example in _DATES if self.date_format.startswith(form))
        offset = " and its offset from UTC" * self.has_offset
        time = "" if self.column.dtype == "date" else f", with a time{offset}"
        gaps = f"; {self.gaps} of {self.partitions} {self.unit}s have no row" if self.gaps else ""
        kind = "true or false" if self.label_is_binary else "a number"
        past = ", ".join((self.label, *self.past.numbers, *self.past.words))
        same_hour = " at the same hour" * self.by_hour
        renamed = [
            f"{column.title!r} is {column.name}" for column in self.columns if column.name != column.title
        ]
        return (
            f"event time   {self.event_time}, written as {shown}{time}",
            f"cadence      {self.cadence}{gaps}",
            f"time zone    {zone if self.time_zone == 'UTC' else self.time_zone}",
            f"primary key  {', '.join(self.primary_key)}",
            f"series       {', '.join(self.series) or 'none: all rows are about the same thing'}",
            f"label        {self.label}, {kind}; --label COLUMN for another",
            f"in advance   {', '.join(self.known) or 'no column is known'}; --known COLUMN,COLUMN for others",
            f"past of      {past}: values of earlier {self.unit}s{same_hour} are features",
            *([f"left out     {self.past.note}"] * bool(self.past.note)),
            *([f"new names    {name_some(renamed)}"] * bool(renamed)),
            *([f"as text      {name_some(self.texts)}: as numbers, digits would be lost"] * bool(self.texts)),
        )


def infer(path: Path, *, label: str = "", known: Sequence[str] = (), time_zone: str = "") -> CsvTable:
    """Infer the facts of the table in the file at `path`.

    `label` is the column to predict, by its heading or name. If it is empty, take the last number or boolean that does
    not identify rows. `known` are columns, by heading or name, that are known before their day or week begins. Days
    begin at midnight in `time_zone` (default: UTC), which is also the zone of times without an offset: without it, such
    times are refused.
    Raises `CsvRefused`.
    """
    if time_zone:
        try:
            TypeAdapter(TimeZone).validate_python(time_zone)
        except ValidationError as error:
            raise CsvRefused(
                f"--time-zone: {error.errors()[0]['msg'].removeprefix('Value error, ')}"
            ) from error
    separator, frame = _read(path)
    frame, titles = _renamed(frame)
    frame, decimal_comma, as_text = _typed(frame, titles)
    event_time, date_format = _event_time(frame)
    has_offset = "%#z" in date_format
    is_time = "%H" in date_format
    if is_time and not (has_offset or time_zone):
        raise CsvRefused(
            f"'{titles[event_time]}' has times without an offset from UTC: give their time zone, such as --time-zone "
            "Europe/Berlin or --time-zone UTC"
        )
    time_zone = time_zone or "UTC"
    dtype = pl.Datetime("us", "UTC") if is_time else pl.Date()
    form = TextForm(formats={titles[event_time]: date_format}, time_zone=time_zone)
    try:
        moments = typed(frame[event_time].cast(pl.String).alias(titles[event_time]), dtype, form)
    except ValueRefused as error:
        raise CsvRefused(f"{path}, {error}") from error
    frame = frame.with_columns(moments.alias(event_time))
    if empty := frame[event_time].null_count():
        raise CsvRefused(
            f"'{titles[event_time]}' is empty in {empty} rows: give each row a date, or delete the row"
        )
    days = frame[event_time].dt.convert_time_zone(time_zone).dt.date() if is_time else frame[event_time]
    weekly = _is_weekly(days)
    starts, length = (days.dt.truncate("1w"), 7) if weekly else (days, 1)
    present = sorted(set(starts.to_list()))
    if len(present) < LEAST_PARTITIONS:
        raise CsvRefused(
            f"{path} has rows of {len(present)} {'weeks' if weekly else 'days'}: a first model needs at least "
            f"{LEAST_PARTITIONS} for training, validation and holdout"
        )
    asked = _label(frame, label, titles, event_time) if label else None
    candidates = [name for name in frame.columns if name not in (event_time, asked)]
    series = _series(frame, event_time, candidates)
    key = _primary_key(frame, event_time, candidates, series, path)
    chosen = asked or _label(frame, "", titles, event_time, *key, *series)
    in_advance = tuple(dict.fromkeys(_known(name, titles, event_time, chosen) for name in known))
    values = frame[chosen].cast(pl.Float64).drop_nulls()
    columns = tuple(_column(frame[name], titles[name], name in key) for name in frame.columns)
    partitions = (present[-1] - present[0]).days // length + 1
    gaps = partitions - len(present)
    window = window_of(partitions, gaps)
    validation = present[0] + timedelta(days=length * (partitions - window["validation"] - window["holdout"]))
    # Rows that are events of their own have no value that continues.
    continues = _is_unique(frame, (event_time, *series))
    by_hour = is_time and continues and _has_many_hours(frame, series, moments, time_zone)
    hour = [moments.dt.convert_time_zone(time_zone).dt.hour().alias(_HOUR)] if by_hour else []
    others = [name for name in frame.columns if name not in (event_time, chosen, *key, *series, *in_advance)]
    return CsvTable(
        path=path,
        separator=separator,
        decimal_comma=decimal_comma,
        columns=columns,
        event_time=event_time,
        date_format=date_format,
        has_offset=has_offset,
        time_zone=time_zone,
        cadence="weekly" if weekly else "daily",
        first_day=days.min(),  # pyright: ignore[reportArgumentType]
        last_day=days.max(),  # pyright: ignore[reportArgumentType]
        rows=len(frame),
        partitions=partitions,
        gaps=gaps,
        unevenness=_unevenness(starts),
        primary_key=key,
        series=series,
        label=chosen,
        texts=as_text,
        known=in_advance,
        objective="binary" if set(values.unique().to_list()) <= {0.0, 1.0} else "regression",
        typical=float(values.abs().mean() or 1.0),  # pyright: ignore[reportArgumentType]
        by_hour=by_hour,
        past=choose_past(
            frame.with_columns(hour),
            others if continues else [],
            starts=starts,
            series=[*series, *(_HOUR for _ in hour)],
            label=chosen,
            before=validation,
        ),
        season=_season(present, length),
    )


_HOUR = "__hour"
_MANY_HOURS = 6


def _has_many_hours(frame: pl.DataFrame, series: Sequence[str], moments: pl.Series, zone: str) -> bool:
    """Return True if a day of a series has rows of six hours or more, on average."""
    local = moments.dt.convert_time_zone(zone)
    hours = frame.select(*series, local.dt.date().alias("__day"), local.dt.hour().alias(_HOUR))
    return hours.n_unique() >= _MANY_HOURS * hours.drop(_HOUR).n_unique()


def window_of(partitions: int, gaps: int) -> dict[str, int]:
    """Return the partitions of each split: about a sixth as holdout, a tenth for validation, at most 730 to train."""
    present = partitions - gaps
    holdout, validation = (
        -(-share * partitions // present)
        for share in (min(56, max(5, present // 6)), min(28, max(3, present // 10)))
    )
    return {
        "train": min(730, partitions - holdout - validation),
        "validation": validation,
        "holdout": holdout,
    }


def _unevenness(starts: pl.Series) -> float:
    """Return the largest distance of a row count from the median of the last four of its weekday, as a share of it.

    `starts` holds the partition of each row. The volume rule of a table compares in the same way.
    """
    counted = starts.alias("start").value_counts().sort("start").cast({"count": pl.Float64})
    usual = pl.col("count").shift(1).rolling_median(4).over(pl.col("start").dt.weekday())
    found = counted.select((pl.col("count") / usual - 1).abs().max()).item()
    return float(found or 0)


def _read(path: Path) -> tuple[str, pl.DataFrame]:
    """Return the separator, and all columns as texts."""
    if not path.is_file():
        raise CsvRefused(f"{path} is not a file: give the path of a CSV file")
    try:
        with path.open(encoding="utf-8-sig") as file:
            heading = file.readline()
    except UnicodeDecodeError as error:
        raise CsvRefused(f"{path} is not a CSV file in UTF-8: save it as CSV, UTF-8") from error
    if not heading.strip() or "\0" in heading:
        raise CsvRefused(f"{path} is empty or not a CSV file: its first line must name the columns")
    separator = max(",;\t|", key=heading.count)
    if not heading.count(separator):
        raise CsvRefused(
            f"{path} has one column: a table needs a date and at least one value, separated by commas"
        )
    try:
        frame = texts_of_csv(path.read_bytes(), separator)
    except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        raise CsvRefused(f"{path} is not a CSV file: {str(error).splitlines()[0]}") from error
    frame = frame.filter(~pl.all_horizontal(pl.all().is_null()))
    if frame.is_empty():
        raise CsvRefused(f"{path} has no rows below its first line")
    return separator, frame


def _renamed(frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, str]]:
    """Return the frame with Python names, and each name's heading in the file."""
    titles: dict[str, str] = {}
    names = [_name(title, place) for place, title in enumerate(frame.columns, start=1)]
    for name, title in zip(names, frame.columns, strict=True):
        # `sold_last` beside `sold` would be the name of a feature, too.
        feature = _OF_PAST.fullmatch(name)
        name = f"{name}_in_file" if feature and feature[1] in names else name
        while name in titles:
            name += "_2"
        titles[name] = title
    return frame.rename({title: name for name, title in titles.items()}), titles


def _name(title: str, place: int) -> str:
    """Return a heading as a Python name that no column of the written files has."""
    name = re.sub(r"\W+", "_", title).strip("_").lower() or f"column_{place}"
    name = name if name.isidentifier() else f"column_{name}"
    return f"{name}_in_file" if name in _PLATFORM or iskeyword(name) else name


def _typed(frame: pl.DataFrame, titles: dict[str, str]) -> tuple[pl.DataFrame, bool, tuple[str, ...]]:
    """Return the frame with numbers and booleans, True if the file writes numbers as `1,5`, and columns of `texts`."""
    texts = {column.name: _present(column) for column in frame}
    with_comma = [name for name, text in texts.items() if _is_all(text.str.contains(_COMMA))]
    if with_comma and all(_is_all(texts[name].str.contains(_THOUSANDS)) for name in with_comma):
        raise CsvRefused(
            f"'{titles[with_comma[0]]}' reads with a decimal comma and with a comma between thousands: write numbers "
            "as 1234.5"
        )
    columns: list[pl.Series] = []
    inexact: list[str] = []
    for column in frame:
        text = texts[column.name]
        number = text
        if with_comma:  # a point is then between thousands
            number = text.set(text.str.contains(".", literal=True), "").str.replace(",", ".", literal=True)
        found = None if text.str.contains(CODE).any() else _number(number, text)
        if found is None and _is_all(text.str.to_lowercase().is_in(["true", "false"])):
            found = text.str.to_lowercase() == "true"
        if found is None and not text.str.contains(CODE).any() and _is_all(text.str.contains(_NUMBER)):
            inexact.append(column.name)
        columns.append(column if found is None else found)
    named = [titles[name] for name in inexact if not _formats(frame[name])]
    return pl.DataFrame(columns), bool(with_comma), tuple(named)


def _present(column: pl.Series) -> pl.Series:
    """Return texts without blanks around them; null where a column that is not a text has no value."""
    text = column.str.strip_chars(" \t")
    return text.set(text.is_in(["", *NULLS]), None)


def _number(number: pl.Series, text: pl.Series) -> pl.Series | None:
    """Return texts as whole numbers or floats; None if there are none, or one would change."""
    if text.null_count() == len(text):
        return None
    for dtype in (pl.Int64(), pl.Float64()):
        try:
            found = typed(number, dtype, TextForm())
        except ValueRefused:
            continue
        if found.null_count() == text.null_count():
            return found
    return None


def _is_all(holds: pl.Series) -> bool:
    """Return True if all values that are not null hold, and at least one value is not null."""
    known = holds.drop_nulls()
    return bool(len(known)) and bool(known.all())


def _event_time(frame: pl.DataFrame) -> tuple[str, str]:
    """Return the first column of dates, and its format."""
    for name in frame.columns:
        formats = _formats(frame[name])
        if len(formats) > 1:
            raise CsvRefused(
                f"'{name}' reads with the day first and with the month first: write dates as 2024-01-31"
            )
        if formats:
            return name, formats[0]
    raise CsvRefused(
        f"no column holds dates: there are {name_some(frame.columns)}. A table needs one, written as 2024-01-31, "
        f"31.01.2024 or 2024-01-31 13:45:00"
    )


def _formats(column: pl.Series) -> list[str]:
    """Return the date formats that fit all values of `column`; several if the column is ambiguous."""
    if column.dtype == pl.Int64:
        column = column.cast(pl.String)
    if column.dtype != pl.String or column.null_count() > len(column) // 2:
        return []
    some = column.drop_nulls().unique(maintain_order=True)
    for time in _TIMES:
        for offset in _OFFSETS if time else ("",):
            fitting = [day + time + offset for day, _ in _DATES if _parses(some, day + time + offset)]
            if fitting:
                return fitting
    return []


def _parses(texts: pl.Series, form: str) -> bool:
    if not _is_all(texts.head(5).str.contains(r"^\d{1,4}[-/.]?\d{1,2}[-/.]?\d{1,4}([ T].*)?$")):
        return False
    if form == "%Y%m%d" and not _is_all(texts.str.contains(r"^(19|20)\d{6}$")):
        return False
    return time_format(form).read(texts).local.null_count() == 0


def _is_weekly(days: pl.Series) -> bool:
    """Return True if the median gap between days with rows is a week or more."""
    gaps = days.unique().sort().diff().drop_nulls().dt.total_days()
    return bool(len(gaps)) and float(gaps.median() or 0) >= 7  # pyright: ignore[reportArgumentType]


def _label(frame: pl.DataFrame, wanted: str, titles: dict[str, str], *taken: str) -> str:
    """Return the column to predict: `wanted`, or the last number or boolean that is not `taken`."""
    usable = [
        name
        for name in frame.columns
        if name not in taken and (frame.schema[name].is_numeric() or frame.schema[name] == pl.Boolean)
    ]
    if wanted:
        named = _named("--label", wanted, titles)
        if named not in usable:
            raise CsvRefused(
                f"--label {wanted} holds {type_name(frame.schema[named])}: a label is a number, or true and false. "
                f"Write a yes/no column as 1 and 0"
            )
        return named
    numbers = [name for name in usable if not _ID.search(name) and frame[name].n_unique() > 1]
    if not numbers:
        raise CsvRefused(
            f"no column can be predicted: there are {name_some(list(titles.values()))}. A label is a number, or true "
            f"and false, that differs between rows and does not identify them"
        )
    return numbers[-1]


def _named(option: str, wanted: str, titles: dict[str, str]) -> str:
    """Return the name of a column that an option names by its heading or name."""
    for name, title in titles.items():
        if wanted in (name, title):
            return name
    raise CsvRefused(f"{option} {wanted} is not a column{did_you_mean(wanted, titles.values())}")


def _known(wanted: str, titles: dict[str, str], event_time: str, label: str) -> str:
    named = _named("--known", wanted, titles)
    if named == label:
        raise CsvRefused(f"--known {wanted} is the label, which the model predicts: leave it out")
    if named == event_time:
        raise CsvRefused(f"--known {wanted} is the event time, which is always known: leave it out")
    return named


def _series(frame: pl.DataFrame, event_time: str, candidates: Sequence[str]) -> tuple[str, ...]:
    """Return the fewest columns that name a row together with the event time; empty if the event time is enough.

    Tries at most two columns; empty also if no two are enough.
    """
    found = [name for name in candidates if _names_a_series(frame[name])]
    naming = sorted(found, key=lambda name: frame.schema[name] != pl.String)
    for size in range(3):
        for columns in combinations(naming, size):
            if _is_unique(frame, (event_time, *columns)):
                return columns
    return ()


def _names_a_series(column: pl.Series) -> bool:
    """Return True for a category whose values repeat: on average five times or more."""
    few = column.n_unique() * 5 <= len(column)
    if column.null_count() or not few:
        return False
    is_id = bool(_ID.search(column.name)) or column.n_unique() <= 50
    return column.dtype == pl.String or (column.dtype == pl.Int64 and is_id)


def _primary_key(
    frame: pl.DataFrame, event_time: str, candidates: Sequence[str], series: tuple[str, ...], path: Path
) -> tuple[str, ...]:
    """Return the first combination of columns that is unique. Raises `CsvRefused` if none of up to four columns is."""
    for key in _keys(frame, event_time, candidates, series):
        if _is_unique(frame, key):
            return key
    numbered = frame.with_row_index("line", offset=2).filter(frame[event_time].is_duplicated())
    twice = numbered.filter(numbered[event_time] == numbered[event_time][0])
    lines = " and ".join(str(line) for line in twice["line"].head(2))
    raise CsvRefused(
        f"{path}: no columns identify a row: lines {lines}, for example, share {event_time}. Add a column "
        f"that numbers the rows"
    )


def _keys(
    frame: pl.DataFrame, event_time: str, candidates: Sequence[str], series: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """Yield combinations in the order to try them. Leaves out measurements: they may be unique by chance."""
    ids = [name for name in candidates if frame.schema[name] in (pl.Int64, pl.String) and _ID.search(name)]
    others = [name for name in candidates if name not in ids and frame.schema[name] == pl.String]
    usable = [name for name in (*ids, *others) if not frame[name].null_count()]
    yield (event_time,)
    yield from ((name,) for name in ids if name in usable)
    if series:
        yield (event_time, *series)
    for size in (1, 2, 3):
        yield from ((event_time, *columns) for columns in combinations(usable, size))


def _is_unique(frame: pl.DataFrame, columns: Sequence[str]) -> bool:
    return frame.select(columns).n_unique() == len(frame)


def _season(present: Sequence[date], length: int) -> tuple[int, ...]:
    """Return distances of the same weekday, or week of the year, at which half of the partitions have earlier rows."""
    known = set(present)
    return tuple(
        lag
        for lag in ((52,) if length == 7 else (7, 14, 21, 28))
        if 2 * sum(day - timedelta(days=lag * length) in known for day in present) >= len(present)
    )


def _column(values: pl.Series, title: str, names_rows: bool) -> CsvColumn:
    dtype = type_name(values.dtype)
    ge, le = (None, None) if names_rows or dtype not in NUMERIC else _generous_range(values)
    return CsvColumn(values.name, title, dtype, values.null_count() > 0, ge, le)


def _generous_range(values: pl.Series) -> tuple[float | None, float | None]:
    """Return bounds at ten times the largest absolute value. The lower is 0 if no value is negative. Flags get 0, 1."""
    known = values.drop_nulls().cast(pl.Float64)
    if set(known.unique().to_list()) == {0.0, 1.0} and values.dtype == pl.Int64:
        return 0.0, 1.0
    largest = float(known.abs().max() or 0.0)  # pyright: ignore[reportArgumentType]
    if not largest:
        return (0.0 if len(known) else None), None
    limit = float(f"{10 * largest:.1g}")
    limit = limit if limit >= 5 * largest else 10 * largest
    return (0.0 if float(known.min() or 0.0) >= 0 else -limit), limit  # pyright: ignore[reportArgumentType]
