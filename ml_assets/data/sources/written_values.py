"""Numbers, booleans and dates as people write them, as the texts that `text_values` reads.

Numbers such as `1.234,50 €`, booleans such as `yes`, dates with year and month in two columns. For Python sources of
files that somebody typed. Nothing is guessed: a text of another form stays as it is, so that `text_values.typed`
refuses it with its row. Not here: which form a column has (`components.scaffold`).
"""

from typing import Literal

import polars as pl

Decimal = Literal[".", ","]
UNIT = "[€$£¥₹%]|EUR|USD|GBP|CHF"
"""Sign of a currency, or percent, before or after a number."""
_BLANKS = r"[ \t\x{00A0}\x{202F}]*"
_GROUPS = {
    ".": r"[0-9]{1,3}(?:[,'’ \x{00A0}\x{202F}][0-9]{3})+|[0-9]+",
    ",": r"[0-9]{1,3}(?:[.'’ \x{00A0}\x{202F}][0-9]{3})+|[0-9]+",
}
JOINED = "-"
"""Mark between the parts of a date from several columns."""
BOOLEANS = (
    ("yes", "no"),
    ("true", "false"),
    ("y", "n"),
    ("t", "f"),
    ("on", "off"),
    ("ja", "nein"),
    ("j", "n"),
    ("oui", "non"),
    ("sí", "no"),
    ("si", "no"),
)
"""Words for true and false, in lower case."""


def number_form(decimal: Decimal) -> str:
    """Return the regular expression of a number with `decimal` before its fraction, and marks between thousands."""
    fraction = r"(?:\.[0-9]*)?" if decimal == "." else "(?:,[0-9]*)?"
    return (
        rf"^{_BLANKS}(?P<sign>[+-]?)(?:{UNIT})?{_BLANKS}(?P<minus>-?)(?P<whole>{_GROUPS[decimal]})"
        rf"(?P<fraction>{fraction}){_BLANKS}(?:{UNIT})?{_BLANKS}$"
    )


def plain_numbers(texts: pl.Series, decimal: Decimal) -> pl.Series:
    """Return numbers without their unit and marks between thousands, with a point; other texts unchanged."""
    parts = texts.str.extract_groups(number_form(decimal)).struct.unnest()
    whole = parts["whole"].str.replace_all("[^0-9]", "")
    fraction = parts["fraction"].str.replace(",", ".", literal=True)
    plain = parts["sign"] + parts["minus"] + whole + fraction
    return plain.fill_null(texts).alias(texts.name)


def joined_parts(rows: pl.DataFrame, *columns: str) -> pl.Series:
    """Return the parts of a date in several columns as one text, joined by `-`; null where a part is missing.

    The result is named by the columns, joined in the same way.
    """
    parts = [pl.col(name).cast(pl.String).str.strip_chars(" \t").str.strip_suffix(".0") for name in columns]
    given = [pl.when(part != "").then(part) for part in parts]
    return rows.select(pl.concat_str(given, separator=JOINED).alias(JOINED.join(columns))).to_series()


def plain_booleans(texts: pl.Series, true: str, false: str) -> pl.Series:
    """Return the words `true` and `false`, in any case, as `true` and `false`; other texts unchanged."""
    lower = texts.str.strip_chars(" \t").str.to_lowercase()
    return lower.replace({true: "true", false: "false"}).alias(texts.name)
