"""Forms of dates and moments in a text, declared by directives of Python's `strptime`.

A closed set of directives, each with one meaning. A text is matched as a whole first, because the parser of polars
ignores the name of a zone, takes `%f` for nanoseconds, and makes the leap second `23:59:60` a moment of the next day.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Self

import polars as pl

OFFSET = r"[Zz]|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?"
"""Offset of a moment from UTC."""
_PARTS = {
    "%Y": "[0-9]{4}",
    "%y": "[0-9]{2}",
    "%m": "0?[1-9]|1[0-2]",
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
"""Directive → regular expression of what it reads."""
_OPTIONAL = {"%.f": r"(?:\.([0-9]+))?", "%#z": f"({OFFSET})"}
"""Forms of polars that the scaffold writes: a point and a fraction, or nothing; an offset."""
_TIME = {"%H", "%I", "%p", "%M", "%S", "%f", "%.f", "%z", "%#z"}
_TWO_DIGITS = {"%m": "[0-9]{2}", "%d": "[0-9]{2}", "%H": "[0-9]{2}", "%I": "[0-9]{2}", "%M": "[0-9]{2}"}
_TWO_DIGITS["%S"] = "[0-5][0-9]"
_DIGITS = {*_TWO_DIGITS, "%Y", "%y", "%j", "%f"}
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
    months = {"%m", "%b", "%B", "%j"} & has
    if len({"%Y", "%y"} & has) != 1 or len(months) != 1 or {"%j", "%d"} <= has:
        raise ValueError(
            f"'{text}' does not tell a day: write the year, the month and the day, such as %Y-%m-%d"
        )
    if ("%I" in has) != ("%p" in has) or {"%I", "%H"} <= has:
        raise ValueError(f"'{text}' does not tell the half of the day: write %H, or %I with %p")
    if {"%M", "%S", "%f", "%.f"} & has and not {"%H", "%I"} & has:
        raise ValueError(f"'{text}' has minutes or seconds, and no hour: write %H too")
    if ("%S" in has and "%M" not in has) or ({"%f", "%.f"} & has and "%S" not in has):
        raise ValueError(f"'{text}' leaves out the minutes or seconds before what it reads: write %H:%M:%S")
