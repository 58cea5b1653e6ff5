"""Choice of the columns whose earlier values become features, so that a wide table does not get a feature for each.

A column is chosen if its last value says something about the label that the label's own last value does not. Only
partitions before the validation split decide: the holdout must not choose features.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.components.scaffold.labels import Label
from resources.words import name_some

MOST_COLUMNS = 12
ROWS_PER_COLUMN = 25
"""Training rows for each chosen column: with fewer, a network learns chance."""
MOST_WORDS = 20
"""Distinct texts up to which the last text of a column can be a feature."""
_CHANCE = 2.5
"""Standard errors of a correlation below which it counts as chance."""


@dataclass(frozen=True)
class PastColumns:
    """Columns whose earlier values become features, in addition to the label's."""

    numbers: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    note: str = ""
    """Columns that were left out, and why; empty if none were."""


def choose_past(
    frame: pl.DataFrame,
    candidates: Sequence[str],
    *,
    starts: pl.Series,
    series: Sequence[str],
    label: Label,
    before: date,
) -> PastColumns:
    """Choose among `candidates`, the columns of `frame` [rows] that are neither label, key nor known in advance.

    `starts` [rows] is the partition of each row, `series` are the columns that tell one series from another, `before`
    is the first day of the validation split.
    """
    frame = frame.with_columns(starts.alias(_START), *(one.name.suffix(_TARGET) for one in label.of_past()))
    frame = frame.filter(pl.col(_START) < before)
    targets = [name for name in frame.columns if name.endswith(_TARGET)]
    keys = [*series, _START]
    is_single = frame.select(keys).n_unique() == len(frame)
    words = [
        name
        for name in candidates
        if is_single and frame[name].dtype == pl.String and frame[name].n_unique() <= MOST_WORDS
    ]
    numbers = [name for name in candidates if _is_measured(frame[name])]
    means = frame.group_by(keys, maintain_order=True).agg(
        pl.col(*targets, *numbers).cast(pl.Float64).mean(), pl.col(words).last()
    )
    earlier = pl.col(*targets, *numbers, *words).shift(1)
    last = means.sort(_START).with_columns((earlier.over(series) if series else earlier).name.suffix(_LAST))
    own = [(last[name].to_numpy(), last[f"{name}{_LAST}"].to_numpy()) for name in targets]

    def link(values: pl.Series) -> float:
        return max(_link(target, before, values.to_numpy()) for target, before in own)

    links = {name: link(last[f"{name}{_LAST}"]) for name in numbers}
    for name in words:
        texts = last[f"{name}{_LAST}"]
        unknown = texts.is_null()
        found = [
            link((texts == text).cast(pl.Float64).set(unknown, None))
            for text in texts.drop_nulls().unique(maintain_order=True)
        ]
        links[name] = max(found, default=0.0)
    linked = sorted((name for name in links if links[name] > 0), key=lambda name: -links[name])
    taken = linked[: max(1, min(MOST_COLUMNS, len(means) // ROWS_PER_COLUMN))]
    return PastColumns(
        tuple(name for name in numbers if name in taken),
        tuple(name for name in words if name in taken),
        _note([name for name in links if name not in linked], linked[len(taken) :], label.name),
    )


_START, _LAST, _TARGET = "__start", "__last", "__target"


def _note(unlinked: Sequence[str], weaker: Sequence[str], label: str) -> str:
    reasons: list[str] = []
    if unlinked:
        reasons.append(f"{name_some(unlinked)}: earlier values say nothing new about {label}")
    if weaker:
        reasons.append(
            f"{name_some(weaker)}: others say more about {label}, and too few rows can tell more apart"
        )
    return "; ".join(reasons)


def _is_measured(column: pl.Series) -> bool:
    """Return True for numbers and booleans that differ and do not just count the rows."""
    if not (column.dtype.is_numeric() or column.dtype == pl.Boolean) or column.drop_nulls().n_unique() < 2:
        return False
    return not (
        column.dtype.is_integer() and len(column) > 2 and bool((column.diff().drop_nulls() == 1).all())
    )


def _link(target: NDArray[np.float64], own: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the absolute partial correlation of `target` with `other`, given `own`; 0 if chance explains it.

    All have one value per partition and series, NaN where there is none.
    """
    known = np.isfinite(target) & np.isfinite(own) & np.isfinite(other)
    rows = int(known.sum())
    if rows < ROWS_PER_COLUMN:
        return 0.0
    given = np.column_stack([np.ones(rows), own[known]])
    left = [
        values - given @ np.linalg.lstsq(given, values, rcond=None)[0]
        for values in (target[known], other[known])
    ]
    sizes = [float(np.linalg.norm(values)) for values in left]
    if min(sizes) <= 1e-9 * max(1.0, *(float(np.linalg.norm(v[known])) for v in (target, other))):
        return 0.0
    link = abs(float(left[0] @ left[1])) / (sizes[0] * sizes[1])
    return link if link * math.sqrt(rows) > _CHANCE else 0.0
