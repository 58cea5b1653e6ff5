"""Join of facts as of a moment: the newest event that was known by then, in its newest version.

A fact has two times: the moment at which it happened (event time) and the moment at which it became known (knowledge
time). A correction is a fact with the event time of an older one and a later knowledge time. A join on knowledge time
alone would prefer a late correction of an old event to a newer event.

`facts_like_rows` prepares the columns that match facts with rows for every such helper, so that all accept and refuse
the same frames.

Here: the helper through which features read facts of other rows as known at prediction time. Not here: sums and counts
over windows (`rolling`), and the leakage test (`cut_and_rebuild`).

polars' `join_asof(by=…)` cannot check that its inputs are sorted: unsorted inputs give wrong rows without an error.
This helper always sorts.
"""

from collections.abc import Sequence
from datetime import timedelta

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


_ROW = "__row"
_AT = "__at"
_FACT = "__fact"


class PointInTimeError(ValueError):
    """The newest fact is ambiguous, or a column would be overwritten. The message names columns and remedy."""


def join_as_of(
    rows: pl.DataFrame,
    facts: pl.DataFrame,
    *,
    by: Sequence[str],
    at: str,
    event_at: str,
    known_at: str,
    tolerance: timedelta | None = None,
    strict: bool = False,
    tiebreak: Sequence[str] = (),
) -> pl.DataFrame:
    """Add to each of `rows`, in their order, the newest of `facts` with the same `by` that was known at `at`.

    A fact counts for a row if it happened (`event_at`) and was known (`known_at`) at or before `at`; before `at` if
    `strict`. Among these facts the newest event wins, then the newest knowledge, then the last by `tiebreak` (nulls
    sort first). Name the same column twice if facts are known when they happen. All three are moments in microseconds.
    Without columns in `by`, every fact applies to every row.

    A fact that happened more than `tolerance` before `at` does not count; exactly `tolerance` does. All columns of
    `facts` are added, with null if nothing was known. A null in `by` or in a moment matches nothing.

    Raises `PointInTimeError` if `tiebreak` leaves a draw or a column would be overwritten, `MeetingError` if rows and
    facts have no comparable keys or moments.
    """
    facts = facts_like_rows(rows, facts, by=by, at=at, moments=(event_at, known_at), of_facts=tiebreak)
    _require_other_names(rows, facts, by)
    facts = _newest_last(facts, by, list(dict.fromkeys([event_at, known_at, *tiebreak])))
    number = _newest_known(rows, facts, by, at, [event_at, known_at], strict=strict)
    if tolerance is not None:
        age = rows[at] - facts[event_at].gather(number)
        number = number.set(age > tolerance, None)
    return rows.hstack(facts.drop(by).select(pl.all().gather(number)))


def _newest_last(facts: pl.DataFrame, by: Sequence[str], order: Sequence[str]) -> pl.DataFrame:
    """Return `facts` sorted by `order`, nulls first. Raise `PointInTimeError` if two of one key are equal in it."""
    facts = facts.sort(order, nulls_last=False)
    same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(name).shift()) for name in order)
    as_before = facts.select(same & (pl.int_range(pl.len()) > 0)).to_series()
    among_equals = as_before | as_before.shift(-1, fill_value=False)
    equals = facts.filter(among_equals)
    draws = equals.height - equals.select(*by, *order).n_unique() if equals.height else 0
    if draws:
        raise PointInTimeError(
            f"{draws} facts repeat {[*by, *order]} of another fact, so their order is unknown. Name "
            f"columns that order them in `tiebreak`, or aggregate them first"
        )
    return facts


def _newest_known(
    rows: pl.DataFrame,
    facts: pl.DataFrame,
    by: Sequence[str],
    at: str,
    moments: Sequence[str],
    *,
    strict: bool,
) -> pl.Series:
    """Return for each row the index of the last of `facts` that counts for it; null if none does."""
    counts_from = facts.select(
        *by, pl.max_horizontal(*moments).alias(_AT), pl.int_range(pl.len(), dtype=pl.UInt32).alias(_FACT)
    ).sort(_AT)
    if not counts_from[_FACT].is_sorted():  # a fact that was known late does not replace a newer event
        newest = pl.col(_FACT).cum_max()
        counts_from = counts_from.with_columns(newest.over(by) if by else newest)
    joined = (
        rows.select(*by, pl.col(at).alias(_AT))
        .with_row_index(_ROW)
        .sort(_AT)
        .join_asof(
            counts_from,
            on=_AT,
            by=list(by) or None,
            strategy="backward",
            allow_exact_matches=not strict,
            check_sortedness=False,  # both were sorted above, and polars cannot check it with `by`
        )
    )
    return joined.sort(_ROW)[_FACT]


def _require_other_names(rows: pl.DataFrame, facts: pl.DataFrame, by: Sequence[str]) -> None:
    both = sorted((set(rows.columns) & set(facts.columns)) - set(by))
    if both:
        raise PointInTimeError(f"rows and facts both have columns {both}: rename or drop them on one side")
