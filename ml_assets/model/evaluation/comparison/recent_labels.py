"""Last known labels of an entity: what a person without a model could have known when a row was predicted.

A label counts for a row if it was known by the row's moment of prediction, and if its own row was predicted before.
Partitions come in their order. Of labels that every row still to come knows, only the last ones of each entity and
season stay in memory. Not here: predictions from these labels, and the choice among them (`naive`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.model.evaluation.comparison.baseline import group_numbers
from ml_assets.model.evaluation.metrics.row_weights import Vector

Places = NDArray[np.intp]
Moments = NDArray[np.int64]
"""Microseconds since 1970 in UTC."""

_KNOWN, _PREDICTED, _LABEL, _WEIGHT = "__known", "__predicted", "__label", "__weight"
_MOST_WAITING = 100_000
"""Labels that may wait before old ones are dropped, unless twice as many were left the last time."""


@dataclass(frozen=True, kw_only=True)
class LabelColumns:
    """Columns of a row's entity, label and moments."""

    entity: tuple[str, ...]
    """Columns that together name an entity; none: all rows are about the same thing."""
    label: str
    label_known_at: str
    predicted_at: str
    partition_date: str
    weight: str | None
    time_zone: str
    """Zone of the hour of `predicted_at`."""

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, each once."""
        moments = (self.label, self.label_known_at, self.predicted_at, self.partition_date)
        weight = () if self.weight is None else (self.weight,)
        return tuple(dict.fromkeys((*self.entity, *moments, *weight)))

    def seasons(self, names: Iterable[str]) -> list[pl.Expr]:
        """Return the columns of seasons, of which `names` are among `SEASONS`."""
        day, moment = pl.col(self.partition_date), pl.col(self.predicted_at)
        values = {
            "weekday": day.dt.weekday(),
            "week": day.dt.week(),
            "month": day.dt.month(),
            "hour": moment.dt.convert_time_zone(self.time_zone).dt.hour(),
        }
        return [values[name].alias(f"__{name}") for name in sorted(names)]


@dataclass(frozen=True)
class Recent:
    """The last labels of an entity, of all rows or of the rows of one season."""

    length: int
    season: tuple[str, ...] = ()
    """`weekday` and `hour`, `week` (of the year) or `month`: rows with equal ones are of one season."""


RECENT: Mapping[str, tuple[Recent, ...]] = {
    "daily": (
        *(Recent(length) for length in (1, 7, 28)),
        *(Recent(length, ("weekday",)) for length in (1, 4)),
        *(Recent(length, ("hour",)) for length in (1, 7)),
        *(Recent(length, ("weekday", "hour")) for length in (1, 4)),
    ),
    "weekly": (*(Recent(length) for length in (1, 4, 13)), Recent(1, ("week",))),
    "monthly": (*(Recent(length) for length in (1, 3, 12)), Recent(1, ("month",))),
    "quarterly": (Recent(1), Recent(4), Recent(1, ("month",))),
    "yearly": (Recent(1), Recent(3)),
}
"""Cadence of a model → labels that may predict well, the plainest first."""


@dataclass(frozen=True, kw_only=True)
class LabelledPart:
    """One partition."""

    rows: pl.DataFrame
    """All rows, with `LabelColumns.names`. Rows without a label, or of weight 0, teach nothing."""
    asked: Places
    """Places of the rows to answer, ascending."""
    asked_from: int
    """No row that is asked here or in a later part was predicted before this moment."""


@dataclass(frozen=True)
class LastLabels:
    """Labels of some rows' entities, `[rows, length]`, the newest first."""

    labels: Vector
    weights: Vector
    """0 where there is no such label."""

    def last(self, length: int) -> "LastLabels":
        """Return the newest `length` labels of each row."""
        return LastLabels(self.labels[:, :length], self.weights[:, :length])


def recent_labels(
    parts: Iterable[LabelledPart], columns: LabelColumns, wanted: Sequence[Recent]
) -> Iterator[dict[Recent, LastLabels]]:
    """Yield the labels in `wanted` for the asked rows of each part that has any.

    The last label is the one that became known last; of labels known at the same moment, that of the row predicted
    last, then the last in the table. The answer of a row has the same bits whatever labels became known after it.
    """
    lengths = {one.season: max(r.length for r in wanted if r.season == one.season) for one in wanted}
    names = {name for season in lengths for name in season}
    keys = {season: [*columns.entity, *(f"__{name}" for name in season)] for season in lengths}
    known, left = pl.DataFrame(), 0
    for part in parts:
        facts = part.rows.select(*columns.entity, *columns.seasons(names), *_facts_of(columns))
        known = pl.concat([known, facts.filter(_teaches())]) if known.width else facts.filter(_teaches())
        if len(part.asked):
            asked = facts[part.asked]
            found = {season: _found(known, asked, keys[season], lengths[season]) for season in lengths}
            yield {one: found[one.season].last(one.length) for one in wanted}
        if known.height > max(_MOST_WAITING, 2 * left):
            known = known.filter(_still_needed(known, part.asked_from, keys, lengths))
            left = known.height


def _facts_of(columns: LabelColumns) -> list[pl.Expr]:
    predicted = _moment(columns.predicted_at)
    weight = pl.lit(1.0) if columns.weight is None else pl.col(columns.weight).cast(pl.Float64)
    return [
        # The row itself, and rows predicted at the same moment, never know its label.
        pl.when(pl.col(columns.label_known_at).is_not_null())
        .then(pl.max_horizontal(_moment(columns.label_known_at), predicted + 1))
        .alias(_KNOWN),
        predicted.alias(_PREDICTED),
        pl.col(columns.label).cast(pl.Float64).alias(_LABEL),
        weight.alias(_WEIGHT),
    ]


def _moment(column: str) -> pl.Expr:
    return pl.col(column).dt.cast_time_unit("us").dt.epoch("us")


def _teaches() -> pl.Expr:
    return pl.col(_LABEL).is_not_null() & pl.col(_KNOWN).is_not_null() & (pl.col(_WEIGHT) > 0)


def _found(known: pl.DataFrame, asked: pl.DataFrame, keys: Sequence[str], length: int) -> LastLabels:
    numbers = group_numbers(pl.concat([known, asked]), keys)[1]
    of_known, of_asked = numbers[: known.height], numbers[known.height :]
    is_asked = np.zeros(numbers.max(initial=-1) + 1, dtype=bool)
    is_asked[of_asked] = True
    kept = np.flatnonzero(is_asked[of_known])
    labels, weights = _column(known, _LABEL)[kept], _column(known, _WEIGHT)[kept]
    places = _last_places(
        of_known[kept],
        _moments(known, _KNOWN)[kept],
        _moments(known, _PREDICTED)[kept],
        of_asked,
        _moments(asked, _PREDICTED),
        length,
    )
    is_there = places >= 0
    # The additional label stands for none, so that there is one to take if no label is known.
    labels, weights = np.append(labels, 0.0), np.append(weights, 0.0)
    return LastLabels(labels[places] * is_there, weights[places] * is_there)


def _last_places(
    of_known: Places,
    known_at: Moments,
    predicted_at: Moments,
    of_asked: Places,
    asked_at: Moments,
    length: int,
) -> Places:
    """Return `[asked, length]`: places of the last known labels of the same number, newest first; -1 for none."""
    order = np.lexsort((predicted_at, known_at, of_known))
    of_known, known_at = of_known[order], known_at[order]
    # Sorted together, a row comes behind the labels that it knows.
    is_asked = np.repeat([False, True], [len(of_known), len(of_asked)])
    together = np.lexsort(
        (is_asked, np.concatenate([known_at, asked_at]), np.concatenate([of_known, of_asked]))
    )
    before = np.empty(len(together), dtype=np.intp)
    before[together] = np.cumsum(~is_asked[together])
    places = before[len(of_known) :, None] - 1 - np.arange(length)
    if not len(of_known):
        return np.full(places.shape, -1)
    is_same = (places >= 0) & (of_known[np.maximum(places, 0)] == of_asked[:, None])
    return np.where(is_same, order[np.maximum(places, 0)], -1)


def _still_needed(
    known: pl.DataFrame,
    asked_from: int,
    keys: Mapping[tuple[str, ...], Sequence[str]],
    lengths: Mapping[tuple[str, ...], int],
) -> NDArray[np.bool_]:
    """Return True for each label that a row asked at or after a moment may need, `[labels]`."""
    known_at, predicted_at = _moments(known, _KNOWN), _moments(known, _PREDICTED)
    needed = known_at > asked_from
    by_all = np.flatnonzero(~needed)
    for season, columns in keys.items():
        numbers = group_numbers(known, columns)[1][by_all]
        order = np.lexsort((predicted_at[by_all], known_at[by_all], numbers))
        ordered = numbers[order]
        behind = np.searchsorted(ordered, ordered, "right") - 1 - np.arange(len(ordered))
        needed[by_all[order[behind < lengths[season]]]] = True
    return needed


def moments_of(frame: pl.DataFrame, column: str) -> Moments:
    """Return the moments in a column of datetimes (UTC), `[rows]`."""
    return _moments(frame.select(_moment(column)), column)


def _column(frame: pl.DataFrame, name: str) -> Vector:
    return frame.get_column(name).to_numpy()


def _moments(frame: pl.DataFrame, name: str) -> Moments:
    return frame.get_column(name).to_numpy()
