"""The columns by which rows and facts meet: present on both sides, keys of one type, moments in microseconds.

Every helper that looks up facts for rows prepares them here, so that all take and refuse the same frames. Not
here: the look-up itself.
"""

from collections.abc import Sequence

import polars as pl


class MeetingError(ValueError):
    """Rows and facts cannot meet; the message names the column and the remedy."""


def facts_like_rows(
    rows: pl.DataFrame,
    facts: pl.DataFrame,
    *,
    by: Sequence[str],
    at: str,
    known_at: str,
    of_facts: Sequence[str] = (),
) -> pl.DataFrame:
    """Return `facts` whose `by` columns have the types of `rows`, without those that no row can ask for.

    Left out are facts with a null in `by` or `known_at`, or with a key that the rows' narrower type cannot hold. Raises
    `MeetingError` where a column is missing (`of_facts`: others that the facts need), where the types of a key
    are not comparable, or where `at` and `known_at` are not moments of one zone in microseconds.
    """
    for side, frame, names in (("rows", rows, [*by, at]), ("facts", facts, [*by, known_at, *of_facts])):
        missing = [name for name in names if name not in frame.columns]
        if missing:
            raise MeetingError(f"the {side} have no columns {missing}; they have {frame.columns}")
    _require_moments(at, rows.schema[at], known_at, facts.schema[known_at])
    cast = [pl.col(name).cast(_key_type(name, rows, facts), strict=False) for name in by]
    return facts.with_columns(cast).drop_nulls([*by, known_at])


def _require_moments(at: str, asked: pl.DataType, known_at: str, known: pl.DataType) -> None:
    """Refuse other units than microseconds: what pandas brings is in nanoseconds, and arithmetic mixes the two."""
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
