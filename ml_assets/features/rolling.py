"""Counts and sums over a window of time before each row, from facts that were known then.

Here: exact windows per key, from cumulative sums and binary search. Not here: means and rates, which the feature
function computes with one division.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.features.shared_keys import facts_like_rows

COUNT = "n"
"""Suffix of the column that counts facts."""

_CODE = "__code"


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
    """Add to `rows`, in their order, counts and sums over facts of the same `by` known in `(at − window, at]`.

    Without columns in `by`, every fact applies to every row: a single station, a whole shop.

    Adds for every window `w` the int64 column `{prefix}_{w}_n` (number of facts), and `{prefix}_{w}_{column}` for every
    column of `sums` (nulls count as 0). `at` (of rows) and `known_at` (of facts) are moments in microseconds. Facts
    with a null `known_at` or key are left out. A row with a null key or `at` gets zeros. Raises `MeetingError` if rows
    and facts have no comparable keys or moments.

    The result does not depend on facts older than the longest window. Building a range and building its days one by one
    give equal bytes. That holds only for whole numbers, because sums of floats depend on where they start. A float
    column in `sums` raises `RollingError`.
    """
    facts = facts_like_rows(rows, facts, by=by, at=at, moments=[known_at], of_facts=sums)
    _require_whole_numbers(facts, sums)
    keys = facts.select(by).unique(maintain_order=True).with_row_index(_CODE) if by else None
    fact_key = _codes(facts, keys)
    moments, fact_moment = np.unique(_ticks(facts[known_at]), return_inverse=True)

    # One sortable number per fact: its key, then the rank of its moment among all moments, from 1.
    ranks = len(moments) + 1
    place = fact_key * ranks + fact_moment + 1
    order = np.argsort(place, kind="stable")
    place = place[order]
    running = {COUNT: np.arange(len(place) + 1)} | {name: _running_total(facts[name], order) for name in sums}

    row_key = _codes(rows, keys)
    asked = rows[at]
    matches = (row_key >= 0) & asked.is_not_null().to_numpy()

    def facts_up_to(ticks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each row the number of facts, in sorted order, up to the row's key at that moment."""
        rank = np.searchsorted(moments, ticks, side="right")
        return np.searchsorted(place, row_key * ranks + rank, side="right")

    upto = facts_up_to(_ticks(asked))
    added: list[pl.Series] = []
    for window, length in windows.items():
        before = facts_up_to(_ticks(asked - length))
        for name, total in running.items():
            values = np.where(matches, total[upto] - total[before], 0)
            added.append(pl.Series(f"{prefix}_{window}_{name}", values, dtype=pl.Int64))
    return rows.with_columns(added)


def _require_whole_numbers(facts: pl.DataFrame, sums: Sequence[str]) -> None:
    for name in sums:
        dtype = facts.schema[name]
        if not (dtype.is_integer() or dtype == pl.Boolean):
            raise RollingError(
                f"column {name!r} is {dtype}: sums of floats depend on the first row of the range. Scale it "
                f"to a whole number (minutes, cents, hundredths) first"
            )


def _codes(frame: pl.DataFrame, keys: pl.DataFrame | None) -> NDArray[np.int64]:
    """Return the number of each row's key; -1 if `keys` lacks it. Without `keys`, all rows have number 0."""
    if keys is None:
        return np.zeros(frame.height, dtype=np.int64)
    found = frame.select(keys.columns[1:]).join(keys, on=keys.columns[1:], how="left", maintain_order="left")
    return found[_CODE].cast(pl.Int64).fill_null(-1).to_numpy()


def _ticks(moments: pl.Series) -> NDArray[np.int64]:
    return moments.to_physical().fill_null(0).to_numpy()


def _running_total(values: pl.Series, order: NDArray[np.int64]) -> NDArray[np.int64]:
    total = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values.cast(pl.Int64).fill_null(0).to_numpy()[order], out=total[1:])
    return total
