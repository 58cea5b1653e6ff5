"""Join of facts as of the time at which each became known.

Here: the helper through which features read facts of other rows as known at prediction time. Not here: sums and counts
over windows (`rolling`), and the leakage test (`cut_and_rebuild`).

polars' `join_asof(by=…)` cannot check that its inputs are sorted: unsorted inputs give wrong rows without an error.
Among facts known at the same moment, it lets the input order decide. This helper avoids both.
"""

from collections.abc import Sequence
from datetime import timedelta

import polars as pl

from ml_assets.features.shared_keys import facts_like_rows

_ROW = "__row"
_AT = "__at"


class PointInTimeError(ValueError):
    """The newest fact is ambiguous, or a column would be overwritten. The message names columns and remedy."""


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
    """Add to each of `rows`, in their order, the newest of `facts` with the same `by` that was known at `at`.

    Without columns in `by`, every fact applies to every row. `at` (of rows) and `known_at` (of facts) are moments in
    microseconds. A fact known exactly at `at` counts, unless `strict`. A fact known more than `tolerance` before `at`
    does not count; exactly `tolerance` does. All columns of `facts` are added, `known_at` included, with null if
    nothing was known. A null in `by`, `at` or `known_at` matches nothing.

    Among facts of the same key and moment, the last by `tiebreak` wins (nulls sort first). Raises `PointInTimeError` if
    `tiebreak` leaves a draw or a column would be overwritten, `MeetingError` if rows and facts have no comparable keys
    or moments.
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
        check_sortedness=False,  # both were sorted above, and polars cannot check it with `by`
    )
    return joined.sort(_ROW).drop(_ROW, _AT)


def _newest(facts: pl.DataFrame, key: Sequence[str], tiebreak: Sequence[str]) -> pl.DataFrame:
    if facts.select(key).n_unique() == facts.height:
        return facts
    draws = facts.height - facts.select(*key, *tiebreak).n_unique()
    if draws:
        raise PointInTimeError(
            f"{draws} facts repeat {[*key, *tiebreak]} of another fact, so their order is unknown. Name "
            f"columns that order them in `tiebreak`, or aggregate them first"
        )
    return facts.sort(tiebreak, nulls_last=False).unique(key, keep="last", maintain_order=True)


def _require_other_names(rows: pl.DataFrame, facts: pl.DataFrame, by: Sequence[str]) -> None:
    both = sorted((set(rows.columns) & set(facts.columns)) - set(by))
    if both:
        raise PointInTimeError(f"rows and facts both have columns {both}: rename or drop them on one side")
