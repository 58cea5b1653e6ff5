"""Counts and sums over the time before each row, by what was known then.

Here: exact windows per key from cumulative sums and as-of joins. Not here: means and rates, which are one
division away and belong to the feature function.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import polars as pl

from ml_assets.features.point_in_time import join_as_of

_COUNT = "n"
_AT = "__window_at"
_KNOWN = "__known_at"


class RollingError(ValueError):
    """A window cannot be computed exactly; the message names the column and the remedy."""


def window_sums(
    rows: pl.DataFrame,
    facts: pl.DataFrame,
    *,
    by: Sequence[str],
    at: str,
    known_at: str,
    sums: Sequence[str],
    windows: Mapping[str, timedelta],
    prefix: str,
) -> pl.DataFrame:
    """`rows` in their order, with counts and sums over facts of the same `by` known in `(at − window, at]`.

    Adds for every window `w` the int64 columns `{prefix}_{w}_n` (facts) and `{prefix}_{w}_{column}` for every
    column of `sums` (nulls count as 0). Facts whose `known_at` or key is null are left out; a row with a null
    key or `at` gets zeros.

    The result does not depend on facts older than the longest window, nor on how many of them there are:
    building a range and building its days one by one give equal bytes. That holds for whole numbers only
    (floats add up differently from another start), so a float column in `sums` raises `RollingError`.
    """
    for name in sums:
        dtype = facts.schema[name]
        if not (dtype.is_integer() or dtype == pl.Boolean):
            raise RollingError(
                f"column {name!r} is {dtype}: sums of floats depend on where a range begins. "
                "Scale it to a whole number (minutes, cents, hundredths) first"
            )
    totals = _running_totals(facts, by, known_at, sums)
    columns = [_COUNT, *sums]
    upto = _totals_at(rows, totals, by, pl.col(at), columns)
    added: list[pl.Series] = []
    for window, length in windows.items():
        before = _totals_at(rows, totals, by, pl.col(at) - length, columns)
        added += [(upto[name] - before[name]).alias(f"{prefix}_{window}_{name}") for name in columns]
    return rows.with_columns(added)


def _running_totals(
    facts: pl.DataFrame, by: Sequence[str], known_at: str, sums: Sequence[str]
) -> pl.DataFrame:
    return (
        facts.select(*by, pl.col(known_at).alias(_KNOWN), *(pl.col(name).cast(pl.Int64) for name in sums))
        .drop_nulls([*by, _KNOWN])
        .group_by(*by, _KNOWN)
        .agg(pl.len().cast(pl.Int64).alias(_COUNT), *(pl.col(name).sum() for name in sums))
        .sort(*by, _KNOWN)
        .with_columns(pl.col(_COUNT, *sums).cum_sum().over(list(by)))
    )


def _totals_at(
    rows: pl.DataFrame, totals: pl.DataFrame, by: Sequence[str], moment: pl.Expr, columns: Sequence[str]
) -> pl.DataFrame:
    asked = rows.select(*by, moment.alias(_AT))
    found = join_as_of(asked, totals, by=by, at=_AT, known_at=_KNOWN)
    return found.select(pl.col(columns).fill_null(0))
