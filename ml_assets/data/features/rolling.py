"""Counts and sums over a window of time before each row, from facts that were known then.

Here: exact windows per key, from cumulative sums and binary search. Not here: means and rates, which the feature
function computes with one division.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.data.features.point_in_time import facts_like_rows

COUNT = "n"
"""Suffix of the column that counts facts."""

_CODE = "__code"
_LARGEST = 2**63 - 1


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
    give equal bytes. That holds only for whole numbers, because sums of floats depend on where they start. Raises
    `RollingError` for a float column in `sums`, and for a sum that int64 does not hold.
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
    running = {COUNT: _RunningTotal.of(pl.Series(COUNT, np.ones(len(place), dtype=np.int64)), order)}
    running |= {name: _RunningTotal.of(facts[name], order) for name in sums}

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
            values = np.where(matches, total.between(before, upto, matches), 0)
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


@dataclass(frozen=True, slots=True)
class _RunningTotal:
    """Sum of the first facts, for each number of facts. It may wrap around; differences are exact modulo 2^64."""

    name: str
    total: NDArray[np.int64]
    upper: NDArray[np.int64] | None
    """Sum of the upper 32 bits; None if no sum can leave int64."""
    lower: NDArray[np.int64] | None
    """Sum of the lower 32 bits."""

    @classmethod
    def of(cls, facts: pl.Series, order: NDArray[np.int64]) -> "_RunningTotal":
        known = facts.fill_null(0)
        if facts.dtype == pl.UInt64 and (known > _LARGEST).any():
            raise RollingError(
                f"column {facts.name!r} holds numbers beyond int64: count in a larger unit in the feature function"
            )
        values = known.cast(pl.Int64).to_numpy()[order]
        is_narrow = not len(values) or len(values) * max(-int(values.min()), int(values.max())) <= _LARGEST
        wide = (None, None) if is_narrow else (_summed(values >> 32), _summed(values & 0xFFFFFFFF))
        return cls(facts.name, _summed(values), *wide)

    def between(
        self, before: NDArray[np.int64], upto: NDArray[np.int64], matches: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Return the sums of the facts between two numbers of facts. Raises `RollingError`."""
        if self.upper is not None and self.lower is not None:
            upper = self.upper[upto] - self.upper[before] + ((self.lower[upto] - self.lower[before]) >> 32)
            if (matches & ((upper < -(2**31)) | (upper >= 2**31))).any():
                raise RollingError(
                    f"a sum of column {self.name!r} is beyond int64: count in a larger unit in the feature function"
                )
        return self.total[upto] - self.total[before]


def _summed(values: NDArray[np.int64]) -> NDArray[np.int64]:
    total = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=total[1:])
    return total
