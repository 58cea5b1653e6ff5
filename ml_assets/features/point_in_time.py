"""As-of joins on the moment a fact became known.

Here: the one helper through which features read facts of other rows as known at prediction time. Not here:
sums and counts over windows (`rolling`), and the test that nothing later leaks in (`leaktest`).

polars' `join_asof(by=…)` cannot check that its inputs are sorted and gives wrong rows without an error where
they are not, and lets the input order decide between facts known at the same moment. Hence this helper.
"""

from collections.abc import Sequence
from datetime import timedelta

import polars as pl

from ml_assets.features.shared_keys import facts_like_rows

_ROW = "__row"
_AT = "__at"


class PointInTimeError(ValueError):
    """The newest fact cannot be told, or a column would be overwritten; the message names columns and remedy."""


def join_as_of(
    rows: pl.DataFrame,
    facts: pl.DataFrame,
    *,
    by: Sequence[str],
    at: str,
    known_at: str,
    tolerance: timedelta | None = None,
    strict: bool = False,
    tiebreak: Sequence[str] = (),
) -> pl.DataFrame:
    """`rows` in their order, each with the newest of `facts` about the same `by` known at `at`.

    Without columns in `by` all facts are about one thing. `at` (of rows) and `known_at` (of facts) are moments in
    microseconds. A fact known exactly at `at` counts, unless `strict`; one known longer than `tolerance` before
    (inclusive) does not. All columns of `facts` are added, `known_at` included, null where nothing was known. A null
    in `by`, `at` or `known_at` matches nothing.

    Among facts about the same key known at the same moment the one that sorts last by `tiebreak` wins (nulls
    first). Raises `PointInTimeError` where `tiebreak` leaves a draw or a column would be overwritten, `MeetingError`
    where rows and facts have no common keys or moments.
    """
    facts = facts_like_rows(rows, facts, by=by, at=at, known_at=known_at)
    _require_other_names(rows, facts, by)
    facts = _newest(facts, [*by, known_at], tiebreak).sort(known_at)
    asking = rows.with_row_index(_ROW).with_columns(pl.col(at).alias(_AT)).sort(_AT)
    joined = asking.join_asof(
        facts,
        left_on=_AT,
        right_on=known_at,
        by=list(by) or None,
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


def _require_other_names(rows: pl.DataFrame, facts: pl.DataFrame, by: Sequence[str]) -> None:
    both = sorted((set(rows.columns) & set(facts.columns)) - set(by))
    if both:
        raise PointInTimeError(f"rows and facts both have columns {both}: rename or drop them on one side")
