"""Texts as the values of a contract: exactly, or not at all. Nothing is guessed and nothing is rounded.

Here: one column of texts, as CSV has them, the rules for numbers that JSON shares, and the forms of dates and moments,
declared by directives of Python's `strptime`: a closed set, each with one meaning. A text is matched as a whole first,
because the parser of polars ignores the name of a zone, takes `%f` for nanoseconds, and makes the leap second
`23:59:60` a moment of the next day. Not here: files (`file_formats`), JSON (`json_messages`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from functools import lru_cache
from itertools import pairwise
from typing import Self, cast

import numpy as np
import polars as pl

from ml_assets.data.validation.column_types import type_name

OFFSET = r"[Zz]|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?"
"""Offset of a moment from UTC."""
_PARTS = {
    "%Y": "[0-9]{4}",
    "%y": "[0-9]{2}",
    "%m": "0?[1-9]|1[0-2]",
    "%q": "[1-4]",
    "%b": "[A-Za-z]{3}",
    "%B": "[A-Za-z]{3,9}",
    "%d": "0?[1-9]|[12][0-9]|3[01]",
    "%j": "[0-9]{3}",
    "%a": "[A-Za-z]{3}",
    "%A": "[A-Za-z]{6,9}",
    "%H": "[01]?[0-9]|2[0-3]",
    "%I": "0?[1-9]|1[0-2]",
    "%p": "[AaPp][Mm]",
    "%M": "[0-5]?[0-9]",
    "%S": "[0-5]?[0-9]",
    "%f": "[0-9]+",
    "%z": OFFSET,
}
"""Directive → regular expression of what it reads. They are those of `strptime`, and `%q`: a quarter."""
_OPTIONAL = {"%.f": r"(?:\.([0-9]+))?", "%#z": f"({OFFSET})"}
"""Forms of polars that the scaffold writes: a point and a fraction, or nothing; an offset."""
_MONTHS = {"%m", "%b", "%B", "%j", "%q"}
_TIME = {"%H", "%I", "%p", "%M", "%S", "%f", "%.f", "%z", "%#z"}
_TWO_DIGITS = {"%m": "[0-9]{2}", "%d": "[0-9]{2}", "%H": "[0-9]{2}", "%I": "[0-9]{2}", "%M": "[0-9]{2}"}
_TWO_DIGITS["%S"] = "[0-5][0-9]"
_DIGITS = {*_TWO_DIGITS, "%q", "%Y", "%y", "%j", "%f"}
_DIRECTIVE = re.compile(r"%(?:\.f|#z|.)?", re.DOTALL)
_REMEDIES = {
    "%Z": "names of zones are not read: declare source.time_zone, or write offsets, %z",
    "%s": "seconds since 1970 are not read as a moment: declare the column as a whole number",
    "%T": "write %H:%M:%S",
    "%R": "write %H:%M",
    "%F": "write %Y-%m-%d",
    "%D": "write %m/%d/%y",
}


@dataclass(frozen=True)
class ParsedTimes:
    """Texts as times of a clock."""

    local: pl.Series
    """Time without an offset, in microseconds; null where the text has another form, or is no time of the calendar."""
    offset: pl.Series
    """Text of the offset from UTC; null without one."""
    is_exact: pl.Series
    """False for a fraction with more digits than microseconds have."""


@dataclass(frozen=True)
class TimeFormat:
    """Form of the dates, or moments, of a column."""

    text: str
    """The form as it was declared, such as `%d/%m/%Y %H:%M`."""
    directives: tuple[str, ...]
    """Directives, in order."""
    expression: str
    """Regular expression of a whole text, with a group for each directive."""

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the form that `text` declares. Raises `ValueError`, which names what is wrong."""
        pieces = _pieces(text)
        directives = [one for one in pieces if one.startswith("%") and one != "%%"]
        unknown = [one for one in directives if one not in _PARTS and one not in _OPTIONAL]
        if unknown:
            remedy = _REMEDIES.get(unknown[0], f"use {', '.join(_PARTS)}")
            raise ValueError(f"'{text}' has {unknown[0]}: {remedy}")
        if twice := sorted({one for one in directives if directives.count(one) > 1}):
            raise ValueError(f"'{text}' has {', '.join(twice)} twice")
        _require_day_and_time(text, set(directives))
        touching = {one for pair in pairwise(pieces) if {*pair} <= _DIGITS for one in pair}
        expression = "".join(_expression(one, is_fixed=one in touching) for one in pieces)
        return cls(text, tuple(directives), f"^{expression}$")

    @property
    def has_time(self) -> bool:
        """True if it reads a time of day, or an offset."""
        return not _TIME.isdisjoint(self.directives)

    @property
    def _defaults(self) -> dict[str, str]:
        """Directives that the form leaves out, with the values of `strptime`: the first day, the begin of an hour."""
        has = set(self.directives)
        defaults = {} if {"%d", "%j"} & has else {"%d": "01"}
        defaults |= {} if _MONTHS & has else {"%m": "01"}
        defaults |= {} if {"%H", "%I"} & has else {"%H": "00"}
        return defaults if "%M" in has else {**defaults, "%M": "00"}

    def read(self, texts: pl.Series) -> ParsedTimes:
        """Return texts as times. Blanks around a text do not count."""
        groups = texts.str.strip_chars(" \t").str.extract_groups(self.expression).struct.unnest()
        found = dict(zip(self.directives, groups, strict=True))
        fraction = found.pop("%f", None)
        fraction = found.pop("%.f", None) if fraction is None else fraction
        offset = found.pop("%z", None)
        offset = found.pop("%#z", None) if offset is None else offset
        none = pl.repeat(None, texts.len(), dtype=pl.String, eager=True)
        if (year := found.pop("%y", None)) is not None:
            century = pl.select(pl.when(year.cast(pl.Int64) >= 69).then(pl.lit("19")).otherwise(pl.lit("20")))
            found["%Y"] = century.to_series() + year
        if (quarter := found.pop("%q", None)) is not None:
            found["%m"] = (3 * quarter.cast(pl.Int64) - 2).cast(pl.String)
        found |= {lacking: _like(texts, text) for lacking, text in self._defaults.items()}
        local = pl.select(pl.concat_str(list(found.values()), separator=" ")).to_series()
        local = local.str.to_datetime(" ".join(found), time_unit="us", strict=False)
        digits = (none if fraction is None else fraction).fill_null("")
        micros = digits.str.slice(0, 6).str.pad_end(6, "0").cast(pl.Int64)
        return ParsedTimes(
            local=local + micros.cast(pl.Duration("us")),
            offset=none if offset is None else offset,
            is_exact=digits.str.slice(6).str.contains("^0*$"),
        )


@lru_cache(maxsize=1000)
def time_format(text: str) -> TimeFormat:
    """Return the form that `text` declares; see `TimeFormat.of`."""
    return TimeFormat.of(text)


def _like(texts: pl.Series, text: str) -> pl.Series:
    return pl.repeat(text, texts.len(), dtype=pl.String, eager=True)


def _pieces(text: str) -> list[str]:
    """Return directives and the texts between them."""
    found: list[str] = []
    end = 0
    for one in _DIRECTIVE.finditer(text):
        found += [text[end : one.start()], one[0]]
        end = one.end()
    return [piece for piece in (*found, text[end:]) if piece]


def _expression(piece: str, *, is_fixed: bool) -> str:
    if piece in _OPTIONAL:
        return _OPTIONAL[piece]
    if piece in _PARTS:
        return f"({_TWO_DIGITS.get(piece, _PARTS[piece]) if is_fixed else _PARTS[piece]})"
    return re.escape("%" if piece == "%%" else piece)


def _require_day_and_time(text: str, has: set[str]) -> None:
    """Raise `ValueError` unless the directives tell a day, and no more of a time than they tell."""
    months = _MONTHS & has
    is_year = has == {"%Y"}
    is_day = len(months) == 1 and not ({"%j", "%q"} & has and "%d" in has)
    if len({"%Y", "%y"} & has) != 1 or not (is_year or is_day):
        raise ValueError(
            f"'{text}' does not tell a day: write the year, the month and the day, such as %Y-%m-%d; or a month, a "
            "quarter (%YQ%q) or a year, which stand for their first day"
        )
    if ("%I" in has) != ("%p" in has) or {"%I", "%H"} <= has:
        raise ValueError(f"'{text}' does not tell the half of the day: write %H, or %I with %p")
    if {"%M", "%S", "%f", "%.f"} & has and not {"%H", "%I"} & has:
        raise ValueError(f"'{text}' has minutes or seconds, and no hour: write %H too")
    if ("%S" in has and "%M" not in has) or ({"%f", "%.f"} & has and "%S" not in has):
        raise ValueError(f"'{text}' leaves out the minutes or seconds before what it reads: write %H:%M:%S")


NO_VALUE = ("", "NA", "NULL", "null")
"""Texts without a value in columns that are not texts: none of them is a number, a date or a boolean."""
_FLOAT = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_WHOLE = r"^[+-]?[0-9]+$"
DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)$"
DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
MOMENT = (
    r"^(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})[T ](?P<hour>[01][0-9]|2[0-3]):(?P<minute>[0-5][0-9])"
    r"(?::(?P<second>[0-5][0-9])(?:[.,](?P<fraction>[0-9]+))?)?"
    rf" ?(?P<offset>{OFFSET})?$"
)
_INFINITE = {"inf", "infinity"}
_SURE_DIGITS = {pl.Float64(): 15, pl.Float32(): 6}
"""Decimal digits that each number of a type keeps, between the two magnitudes below."""
_SURE_RANGE = {pl.Float64(): (1e-290, 1e300), pl.Float32(): (1e-30, 1e38)}
_FIRST_MOMENT, _END_OF_MOMENTS = -62_135_596_800_000_000, 253_402_300_800_000_000
"""Microseconds since 1970 at which the years 1 and 10000 begin."""
_FIRST_DAY, _END_OF_DAYS = (moment // 86_400_000_000 for moment in (_FIRST_MOMENT, _END_OF_MOMENTS))
_MICROSECONDS = Decimal(10**6)


class ValueRefused(ValueError):
    """A value is not exactly one of its column's type. The message does not repeat it: it may be sensitive."""

    def __init__(self, column: str, row: int, reason: str) -> None:
        """`row` counts from 1."""
        super().__init__(f"row {row}: '{column}' {reason}")
        self.row = row
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class TextForm:
    """Form of values in a text file, as far as its author declared it."""

    formats: Mapping[str, str] = field(default_factory=dict[str, str])
    """Column → format of its dates or moments, see `TimeFormat`."""
    time_zone: str | None = None
    """Zone of moments without an offset; None: such a moment is refused."""
    nulls: Sequence[str] = ()
    """Texts without a value in columns of texts."""


def typed(texts: pl.Series, dtype: pl.DataType, form: TextForm) -> pl.Series:
    """Return a column of texts as `dtype`; unchanged for lists, which a text is not. Raises `ValueRefused`.

    Durations are numbers of seconds, bytes base64. Blanks around a value count only in texts.
    """
    if dtype == pl.Binary:
        return _bytes(texts)
    if dtype == pl.String or isinstance(dtype, pl.Categorical):
        texts = texts.set(texts.is_in(list(form.nulls)), None) if form.nulls else texts
        return texts if dtype == pl.String else texts.cast(dtype)
    if dtype.is_nested():
        return texts
    plain = texts.str.strip_chars(" \t")
    plain = plain.set(plain.is_in(list(NO_VALUE)), None)
    if dtype.is_integer():
        return _whole_numbers(plain, dtype)
    if dtype.is_float():
        return _floats(plain, dtype)
    if dtype == pl.Boolean:
        lower = plain.str.to_lowercase()
        _require(lower.is_in(["true", "false"]), lower, "is neither true nor false")
        return lower == "true"
    if isinstance(dtype, pl.Decimal):
        return _decimals(plain, dtype)
    if isinstance(dtype, pl.Duration):
        return _each(plain, microseconds, pl.Int64()).cast(dtype)
    return times(plain, dtype, form)


def float_of(text: str, dtype: str) -> float:
    """Return the number that a text of digits means, as `float64` or `float32` holds it. Raises `ValueError`.

    A float holds few decimals exactly: 0.1 is not among them. So a number counts as unchanged if the float, written
    with as many digits as the text, is that text again: 0.1 is, 16777217 as float32 and 9007199254740993 are not.
    """
    value = float(text) if dtype == "float64" else _narrow(text)
    shortest = repr(value) if dtype == "float64" else str(np.float32(value))
    if text == shortest:
        return value
    if len(text) > (15 if dtype == "float64" else 6) or text.strip("-.0123456789") != "":
        if value in (float("inf"), float("-inf")):
            raise ValueError(f"is outside the range of {dtype}")
        if not _is_kept(text, value, shortest):
            raise ValueError(f"is a number that {dtype} does not hold exactly")
    return value


def microseconds(text: str) -> int:
    """Return a number of seconds in microseconds. Raises `ValueError` for more digits, and beyond 64 bits."""
    if not re.fullmatch(_FLOAT, text):
        raise ValueError("is not a number of seconds")
    exact = Decimal(text)
    # Without this, 1e999999999 would be computed.
    if exact and not -20 < exact.adjusted() < 20:
        raise ValueError("is outside the range of a duration in microseconds")
    ticks = _CONTEXT.multiply(exact, _MICROSECONDS)
    if ticks != ticks.to_integral_value(context=_CONTEXT):
        raise ValueError("is more precise than microseconds")
    if not -(2**63) <= ticks < 2**63:
        raise ValueError("is outside the range of a duration in microseconds")
    return int(ticks)


_CONTEXT = Context(prec=5000, Emax=MAX_EMAX, Emin=MIN_EMIN)


def _narrow(text: str) -> float:
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(float(text)))


def _is_kept(text: str, value: float, shortest: str) -> bool:
    exact, stored = Decimal(text), Decimal(value)
    if exact in (stored, Decimal(shortest)):
        return True
    digits = "".join(map(str, exact.as_tuple().digits)).strip("0")
    context = Context(prec=max(1, len(digits)), Emax=MAX_EMAX, Emin=MIN_EMIN)
    return context.plus(stored) == exact


def _require(holds: pl.Series, texts: pl.Series, reason: str) -> None:
    """Raise `ValueRefused` for the first text, apart from nulls, that does not hold."""
    wrong = (~holds.fill_null(value=False)) & texts.is_not_null()
    if wrong.any():
        raise ValueRefused(texts.name, cast("int", wrong.arg_max()) + 1, reason)


def _each(texts: pl.Series, value_of: Callable[[str], object], dtype: pl.DataType) -> pl.Series:
    """Return `value_of` each text. Its `ValueError` becomes `ValueRefused`."""
    found: list[object] = []
    for row, text in enumerate(texts, 1):
        try:
            found.append(None if text is None else value_of(text))
        except ValueError as error:
            raise ValueRefused(texts.name, row, str(error)) from error
    return pl.Series(texts.name, found, dtype)


def _whole_numbers(texts: pl.Series, dtype: pl.DataType) -> pl.Series:
    _require(texts.str.contains(_WHOLE), texts, "is not a whole number")
    found = texts.cast(dtype, strict=False)
    _require(found.is_not_null(), texts, f"is outside the range of {type_name(dtype)}")
    return found


def _floats(texts: pl.Series, dtype: pl.DataType) -> pl.Series:
    words = texts.str.to_lowercase().str.strip_chars_start("+-")
    is_word = words.is_in([*_INFINITE, "nan"])
    _require(is_word | texts.str.contains(_FLOAT), texts, "is not a number")
    found = texts.cast(dtype, strict=False)
    _require(found.is_not_null(), texts, "is not a number")
    size, (least, most) = found.abs(), _SURE_RANGE[dtype]
    digits = texts.str.replace(r"[eE].*$", "").str.replace_all(r"[^0-9]", "").str.strip_chars("0")
    count = digits.str.len_bytes()
    is_sure = is_word | (count == 0) | ((count <= _SURE_DIGITS[dtype]) & size.is_between(least, most))
    doubtful = (~(is_sure | (found.cast(pl.String) == texts))).fill_null(value=False).arg_true()
    name = type_name(dtype)
    for row in doubtful:
        try:
            float_of(texts[row], name)
        except ValueError as error:
            raise ValueRefused(texts.name, row + 1, str(error)) from error
    return found


def _decimals(texts: pl.Series, dtype: pl.Decimal) -> pl.Series:
    # A cast would round.
    _require(texts.str.contains(DECIMAL), texts, "is not a decimal")
    fits = ~texts.str.contains(rf"\.[0-9]{{{dtype.scale}}}[0-9]*[1-9]")
    _require(fits, texts, f"has more digits after the point than {type_name(dtype)}")
    found = texts.cast(dtype, strict=False)
    _require(found.is_not_null(), texts, f"is outside the range of {type_name(dtype)}")
    return found


def _bytes(texts: pl.Series) -> pl.Series:
    found = texts.str.decode("base64", strict=False)
    _require(found.bin.encode("base64") == texts, texts, "is not base64")
    return found


def times(texts: pl.Series, dtype: pl.DataType, form: TextForm) -> pl.Series:
    """Return a column of texts as dates or moments. Raises `ValueRefused`."""
    declared = form.formats.get(texts.name)
    if dtype == pl.Date:
        found = _dates(texts) if declared is None else _declared_dates(texts, declared)
        first, end = _FIRST_DAY, _END_OF_DAYS
    else:
        found = _moments(texts, form) if declared is None else _declared_moments(texts, declared, form)
        first, end = _FIRST_MOMENT, _END_OF_MOMENTS
    _require(
        found.to_physical().is_between(first, end, closed="left"), texts, "is not in the years 1 to 9999"
    )
    return found


def _dates(texts: pl.Series) -> pl.Series:
    remedy = "is not a date such as 2024-03-08: declare its form in source.formats"
    _require(texts.str.contains(DATE), texts, remedy)
    found = texts.str.to_date("%Y-%m-%d", strict=False)
    _require(found.is_not_null(), texts, "is not a day of the calendar")
    return found


def _declared_dates(texts: pl.Series, form: str) -> pl.Series:
    declared = time_format(form)
    if declared.has_time:
        raise ValueRefused(
            texts.name, 1, f"is a date, and its format '{form}' has a time, which would be cut off"
        )
    return _written_as(declared, texts).local.dt.date().alias(texts.name)


def _written_as(form: TimeFormat, texts: pl.Series) -> ParsedTimes:
    """Return texts as times of a declared form. Raises `ValueRefused`."""
    found = form.read(texts)
    _require(
        found.local.is_not_null(), texts, f"is not written as '{form.text}', its format in source.formats"
    )
    _require(found.is_exact, texts, "is more precise than microseconds")
    return found


def _moments(texts: pl.Series, form: TextForm) -> pl.Series:
    remedy = "is not a moment such as 2024-03-08T12:00:00Z: declare its form in source.formats"
    parts = texts.str.extract_groups(MOMENT).struct.unnest()
    _require(parts["day"].is_not_null(), texts, remedy)
    fraction = parts["fraction"].fill_null("")
    _require(fraction.str.slice(6).str.contains("^0*$"), texts, "is more precise than microseconds")
    local = parts.select(
        pl.format("{} {}:{}:{}", "day", "hour", "minute", pl.col("second").fill_null("00")).alias(texts.name)
    ).to_series()
    moment = local.str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us", strict=False)
    _require(moment.is_not_null(), texts, "is not a day of the calendar")
    moment = moment + fraction.str.slice(0, 6).str.pad_end(6, "0").cast(pl.Int64).cast(pl.Duration("us"))
    return _at_offset(moment, parts["offset"], texts, form)


def _at_offset(local: pl.Series, offset: pl.Series, texts: pl.Series, form: TextForm) -> pl.Series:
    """Return local times as moments by the texts of their offsets; by the declared zone where there is none."""
    offset = offset.str.replace("(?i)^z$", "+00").str.replace(":", "", literal=True)
    minutes = offset.str.slice(1, 2).cast(pl.Int64) * 60 + offset.str.slice(3).replace("", "0").cast(pl.Int64)
    minutes = pl.select(pl.when(offset.str.starts_with("-")).then(-minutes).otherwise(minutes)).to_series()
    by_offset = (local - (minutes * 60_000_000).cast(pl.Duration("us"))).dt.replace_time_zone("UTC")
    is_local = offset.is_null() & texts.is_not_null()
    if not is_local.any():
        return by_offset.alias(texts.name)
    alone = texts.set(~is_local, None)
    return by_offset.fill_null(_in_zone(local.set(~is_local, None), alone, form)).alias(texts.name)


def _in_zone(local: pl.Series, texts: pl.Series, form: TextForm) -> pl.Series:
    """Return local times as moments. Raises `ValueRefused` without a declared zone, and for a time that is not one."""
    if form.time_zone is None:
        remedy = "has no offset from UTC, such as Z or +02:00: add it, or declare source.time_zone"
        _require(texts.is_null(), texts, remedy)
    zone = form.time_zone or "UTC"
    found = local.dt.replace_time_zone(zone, ambiguous="null", non_existent="null")
    reason = f"is a time that clocks in {zone} show twice or never, because they are set: write its offset from UTC"
    _require(found.is_not_null(), texts, reason)
    return found.dt.convert_time_zone("UTC")


def _declared_moments(texts: pl.Series, declared: str, form: TextForm) -> pl.Series:
    found = _written_as(time_format(declared), texts)
    return _at_offset(found.local, found.offset, texts, form)
