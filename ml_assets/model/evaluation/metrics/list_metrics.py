"""Metrics of the order of lists, such as the answers to a search: NDCG, reciprocal rank, recall.

`y` is the relevance of each row, from 0, and `p` its score, float64 `[N]`; `lists` is the number of its list. A
function returns a value for each list, `[L]`, in the order of their numbers. Rows of equal score count as their mean
over all orders, so a model that gives one score to all rows is as good as a random order.

A list has a value only if its order matters: it has rows of different relevance. Any model orders the others equally
well: a list of one row, a list without a relevant row, a list whose rows are equally relevant. Their value is NaN.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from ml_assets.model.evaluation.metrics.row_weights import Vector, sums_of

Numbers = npt.NDArray[np.intp]
Lists = Numbers
"""List of each row, `[N]`: numbers from 0, in any order."""


@dataclass(frozen=True, kw_only=True)
class _Ordered:
    """Rows list by list, each from the highest score to the lowest."""

    y: Vector
    list_of: Numbers
    """`[N]`, from 0 without gaps."""
    count: int
    """L."""
    place: Numbers
    """`[N]`: place in the list, from 0."""
    tie: Numbers
    """`[N]`: number of the rows of equal score in one list; such rows are neighbours."""
    tie_rows: Numbers
    """Rows of each tie; 1 for a row alone."""

    @classmethod
    def by(cls, y: Vector, p: Vector, lists: Lists) -> Self:
        """Order the rows by list, then by falling score."""
        order = np.lexsort((-p, lists))
        of, score = lists[order], p[order]
        begins = np.append(True, of[1:] != of[:-1])[: len(of)]
        parts = begins | np.append(True, score[1:] != score[:-1])[: len(of)]
        first = np.flatnonzero(begins)
        list_of = np.cumsum(begins) - 1
        tie = np.cumsum(parts) - 1
        return cls(
            y=y[order],
            list_of=list_of,
            count=len(first),
            place=np.arange(len(of)) - first[list_of],
            tie=tie,
            tie_rows=np.bincount(tie).astype(np.intp),
        )

    def per_list(self, values: Vector) -> Vector:
        """Return the sum of `values` `[N]` over each list, `[L]`."""
        return sums_of(values, self.list_of, self.count)

    def expected(self, of_place: Vector) -> Vector:
        """Return the mean of `of_place` `[N]` over all orders of the rows of equal score, `[N]`."""
        return (sums_of(of_place, self.tie, len(self.tie_rows)) / self.tie_rows)[self.tie]

    @property
    def matters(self) -> npt.NDArray[np.bool]:
        """`[L]`: True for a list whose rows differ in relevance."""
        first = np.flatnonzero(self.place == 0)
        differs = self.y != self.y[first][self.list_of]
        return self.per_list(differs.astype(np.float64)) > 0


def in_measured_lists(y: Vector, lists: Lists) -> npt.NDArray[np.bool]:
    """Return True for the rows of lists whose order matters, `[N]`: no other list has a value."""
    _, number = np.unique(lists, return_inverse=True)
    lowest, highest = np.full(len(y), np.inf), np.full(len(y), -np.inf)
    np.minimum.at(lowest, number, y)
    np.maximum.at(highest, number, y)
    return (lowest < highest)[number]


def _where_it_matters(ordered: _Ordered, top: Vector, bottom: Vector) -> Vector:
    matters = ordered.matters
    return np.where(matters, top / np.where(matters, bottom, 1.0), np.nan)


def _discounts(place: Numbers, places: int) -> Vector:
    return np.where(place < places, 1 / np.log2(place + 2), 0.0)


def gain(y: Vector, p: Vector, lists: Lists, places: int) -> Vector:
    """Return the NDCG of the first `places` places of each list, `[L]` (Järvelin & Kekäläinen 2002).

    A row counts as its relevance / log2(1 + its place); 1 is the order by relevance. Declare 2^r − 1 as the label where
    the grade r should count exponentially.
    """
    ordered, ideal = _Ordered.by(y, p, lists), _Ordered.by(y, y, lists)
    found = ordered.per_list(ordered.y * ordered.expected(_discounts(ordered.place, places)))
    best = ideal.per_list(ideal.y * _discounts(ideal.place, places))
    return _where_it_matters(ordered, found, best)


def share_found(y: Vector, p: Vector, lists: Lists, places: int) -> Vector:
    """Return the share of each list's relevant rows that stand in its first `places` places, `[L]`."""
    ordered = _Ordered.by(y, p, lists)
    relevant = (ordered.y > 0).astype(np.float64)
    found = ordered.per_list(relevant * ordered.expected((ordered.place < places).astype(np.float64)))
    return _where_it_matters(ordered, found, ordered.per_list(relevant))


def reciprocal_rank(y: Vector, p: Vector, lists: Lists) -> Vector:
    """Return 1 / place of the first relevant row of each list, `[L]`; places count from 1 here."""
    ordered = _Ordered.by(y, p, lists)
    relevant = sums_of((ordered.y > 0).astype(np.float64), ordered.tie, len(ordered.tie_rows))
    begin = np.append(0, np.cumsum(ordered.tie_rows))[:-1]
    ties = np.flatnonzero(relevant)
    list_of = ordered.list_of[begin[ties]]
    is_first = np.append(True, list_of[1:] != list_of[:-1])[: len(ties)]
    ties = ties[is_first]
    values = np.full(ordered.count, np.nan)
    values[list_of[is_first]] = _expected_reciprocal(
        before=ordered.place[begin[ties]], rows=ordered.tie_rows[ties], relevant=relevant[ties]
    )
    return _where_it_matters(ordered, values, np.ones(ordered.count))


def _expected_reciprocal(*, before: Numbers, rows: Numbers, relevant: Vector) -> Vector:
    """Return the mean of 1 / place of the first relevant row of a tie, over all orders of the tie.

    The tie has `rows` rows after `before` others, and `relevant` of its rows are relevant.
    """
    mean, still = (
        np.zeros(len(rows)),
        np.ones(len(rows)),
    )  # `still`: probability that no row so far was relevant
    for number in range(int(rows.max(initial=0))):
        left = np.maximum(rows - number, 1)
        here = np.where(number < rows, still * np.minimum(relevant / left, 1.0), 0.0)
        mean += here / (before + number + 1)
        still = still - here
    return mean


@dataclass(frozen=True, kw_only=True)
class ListFigures:
    """Numbers of lists, and why some are not measured."""

    lists: int
    one_row: int
    none_relevant: int
    """Lists of several rows of which none is relevant."""
    equally_relevant: int
    """Lists of several rows that are all equally relevant."""

    @classmethod
    def of(cls, y: Vector, lists: Lists) -> Self:
        """Count the lists of some rows."""
        ordered = _Ordered.by(y, np.zeros(len(y)), lists)
        rows = np.bincount(ordered.list_of)
        same = ~ordered.matters & (rows > 1)
        has_relevant = ordered.per_list((ordered.y > 0).astype(np.float64)) > 0
        return cls(
            lists=ordered.count,
            one_row=int((rows == 1).sum()),
            none_relevant=int((same & ~has_relevant).sum()),
            equally_relevant=int((same & has_relevant).sum()),
        )
