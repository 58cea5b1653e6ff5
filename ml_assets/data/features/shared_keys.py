"""Columns that match facts with rows: present on both sides, keys of comparable types, moments in microseconds.

Every helper that looks up facts for rows prepares them here, so that all accept and refuse the same frames. Not here:
the look-up itself.
"""

from collections.abc import Sequence

import polars as pl


class MeetingError(ValueError):
    """Rows and facts cannot be matched. The message names the column and the remedy."""


def facts_like_rows(
    rows: pl.DataFrame,
    facts: pl.DataFrame,
    *,
    by: Sequence[str],
    at: str,
    moments: Sequence[str],
    of_facts: Sequence[str] = (),
) -> pl.DataFrame:
    """Return `facts` with the `by` columns cast to the types of `rows`, without facts that match no row.

    `moments` are columns of the facts. Leaves out facts with a null in `by` or `moments`, or with a key that the rows'
    narrower type cannot hold. Raises `MeetingError` if a column is missing (`of_facts` names further columns of the
    facts), if the types of a key are not comparable, or if `at` and `moments` are not moments of the same zone in
    microseconds.
    """
    for side, frame, names in (("rows", rows, [*by, at]), ("facts", facts, [*by, *moments, *of_facts])):
        missing = [name for name in dict.fromkeys(names) if name not in frame.columns]
        if missing:
            raise MeetingError(f"the {side} have no columns {missing}; they have {frame.columns}")
    for moment in moments:
        _require_moments(at, rows.schema[at], moment, facts.schema[moment])
    cast = [pl.col(name).cast(_key_type(name, rows, facts), strict=False) for name in by]
    return facts.with_columns(cast).drop_nulls([*by, *moments])


def _require_moments(at: str, asked: pl.DataType, known_at: str, known: pl.DataType) -> None:
    """Refuse units other than microseconds: moments from pandas are in nanoseconds, and arithmetic would mix them."""
    if asked != known or not isinstance(asked, pl.Datetime) or asked.time_unit != "us":
        raise MeetingError(
            f"{at!r} is {asked} and {known_at!r} is {known}: cast both to microseconds in UTC, "
            'pl.Datetime("us", "UTC")'
        )


def _key_type(name: str, rows: pl.DataFrame, facts: pl.DataFrame) -> pl.DataType:
    asked, known = rows.schema[name], facts.schema[name]
    if asked == known or (asked.is_integer() and known.is_integer()) or (_is_text(asked) and _is_text(known)):
        return asked
    raise MeetingError(
        f"the key {name!r} is {asked} in the rows and {known} in the facts: cast one to the other's type"
    )


def _is_text(dtype: pl.DataType) -> bool:
    return isinstance(dtype, pl.String | pl.Categorical | pl.Enum)
