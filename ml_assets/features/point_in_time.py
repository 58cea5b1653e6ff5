"""As-of joins on the moment a fact became known.

Here: the one helper through which features read facts of other rows as known at prediction time. Not here:
sums and counts over windows (`rolling`), and the test that nothing later leaks in (`leaktest`).

polars' `join_asof(by=…)` cannot check that its inputs are sorted and gives wrong rows without an error where
they are not, and lets the input order decide between facts known at the same moment. Hence this helper.
"""

from collections.abc import Sequence
from datetime import timedelta

import polars as pl

_ROW = "__row"
_AT = "__at"


class PointInTimeError(ValueError):
    """Two frames cannot be joined as of a moment; the message names the columns and the remedy."""


def join_as_of(
    left: pl.DataFrame,
    right: pl.DataFrame,
    *,
    by: Sequence[str],
    at: str,
    known_at: str,
    tolerance: timedelta | None = None,
    strict: bool = False,
    tiebreak: Sequence[str] = (),
) -> pl.DataFrame:
    """Each row of `left`, in its order, with the newest fact of `right` about the same `by` known at `at`.

    `at` (left) and `known_at` (right) are moments of one type. A fact known exactly at `at` counts, unless
    `strict`; one known longer than `tolerance` before (inclusive) does not. All columns of `right` are added,
    `known_at` included, null where nothing was known. A null in `by`, `at` or `known_at` matches nothing.

    Among facts about the same key known at the same moment the one that sorts last by `tiebreak` wins (nulls
    first). Raises `PointInTimeError` where `tiebreak` leaves a draw, a column is missing or would be
    overwritten, or the moments differ in type.
    """
    _require(left, right, by, at, known_at)
    facts = _newest(right.drop_nulls([*by, known_at]), [*by, known_at], tiebreak).sort(known_at)
    rows = left.with_row_index(_ROW).with_columns(pl.col(at).alias(_AT)).sort(_AT)
    joined = rows.join_asof(
        facts,
        left_on=_AT,
        right_on=known_at,
        by=list(by),
        strategy="backward",
        tolerance=tolerance,
        allow_exact_matches=not strict,
        coalesce=False,
        check_sortedness=False,  # both were sorted just above, which polars cannot see once `by` is given
    )
    return joined.sort(_ROW).drop(_ROW, _AT)


def _newest(facts: pl.DataFrame, key: Sequence[str], tiebreak: Sequence[str]) -> pl.DataFrame:
    if facts.select(key).n_unique() == facts.height:
        return facts
    draws = facts.height - facts.select(*key, *tiebreak).n_unique()
    if draws:
        raise PointInTimeError(
            f"{draws} facts repeat {[*key, *tiebreak]} of another: which one is newer cannot be told. "
            "Name columns that order them in `tiebreak`, or aggregate them first"
        )
    return facts.sort(tiebreak, nulls_last=False).unique(key, keep="last", maintain_order=True)


def _require(left: pl.DataFrame, right: pl.DataFrame, by: Sequence[str], at: str, known_at: str) -> None:
    if not by:
        raise PointInTimeError("`by` is empty: name the columns that both frames share as a key")
    for side, frame, names in (("left", left, [*by, at]), ("right", right, [*by, known_at])):
        missing = [name for name in names if name not in frame.columns]
        if missing:
            raise PointInTimeError(f"the {side} frame has no columns {missing}; it has {frame.columns}")
    if left.schema[at] != right.schema[known_at]:
        raise PointInTimeError(
            f"{at!r} is {left.schema[at]} and {known_at!r} is {right.schema[known_at]}: "
            "cast both to the same moment type, microseconds in UTC"
        )
    both = sorted((set(left.columns) & set(right.columns)) - set(by))
    if both:
        raise PointInTimeError(f"both frames have columns {both}: rename or drop them on one side")
