"""Slices on which a model is worst, found among all values of one column and all pairs of values of two.

A slice is worse if its mean loss is above the mean loss of all other rows. Thousands of slices are looked at, so some
look worse by chance. Their intervals hold jointly, as those of declared slices do (`bootstrap.joint_intervals`): the
largest deviation in units of its standard error (max-t), over all slices looked at, sets the width of each. Holm or
Benjamini-Hochberg would need p-values below 1e-5, which 1,000 redraws cannot give; max-t also uses that overlapping
slices deviate together.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

import numpy as np
import numpy.typing as npt
import polars as pl

from ml_assets.model.evaluation.comparison.holdout import ROLES
from ml_assets.model.evaluation.comparison.holdout_rows import (
    NOTHING,
    Rows,
    bootstrap_blocks,
    in_range,
    labels_of,
    slice_rows,
)
from ml_assets.model.evaluation.evaluation_document import Role
from ml_assets.model.evaluation.metrics.bootstrap import (
    BlockIds,
    Interval,
    Matrix,
    draw_blocks,
    level_of,
    ratio,
    widening,
)
from ml_assets.model.evaluation.metrics.metrics import Vector, row_loss_of
from ml_assets.model.evaluation.metrics.row_weights import mean, sums_of, weights_of
from ml_assets.model.evaluation.report_document import WorstSlice, WorstSlices
from ml_assets.model.evaluation.spec import EvaluationSpec, SliceBy

MOST_PARTS = 12
"""Parts of a column: those with most rows. A number with more values is cut into bins."""
BINS = 5
"""Quantile bins of a number."""
Part = tuple[str, Rows]
"""Value or range for people, and the rows that have it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CodedColumn:
    """A column cut into parts."""

    name: str
    parts: tuple[str, ...]
    """Value or range of each part, for people."""
    code: npt.NDArray[np.uint8]
    """Number of each row's part, `[N]`; `len(parts)` for rows in none of them. Of all columns it is held in memory."""


def coded_columns(
    holdout: pl.DataFrame, cuts: Sequence[SliceBy], features: Iterable[pl.Series], least_rows: int
) -> list[CodedColumn]:
    """Return declared slices, then feature columns, cut into parts of at least `least_rows` rows.

    `features` have the rows of `holdout`; they are taken one by one, so not all of them need to be in memory.

    Features that are neither numbers nor texts nor booleans are left out; so are columns without such a part, or with
    the same value in all rows.
    """
    whole = {cut.column for cut in cuts if cut.by == "value"}
    found = [
        *(_coded(cut.name, _values(holdout, cut), holdout.height, least_rows) for cut in cuts),
        *(
            _coded(feature.name, _parts(feature), holdout.height, least_rows)
            for feature in features
            if feature.name not in whole
        ),
    ]
    return [one for one in found if len(np.unique(one.code)) > 1]


def _coded(name: str, parts: Iterable[Part], height: int, least_rows: int) -> CodedColumn:
    large = sorted((one for one in parts if len(one[1]) >= least_rows), key=lambda one: -len(one[1]))[
        :MOST_PARTS
    ]
    code = np.full(height, len(large), dtype=np.uint8)
    for number, (_, rows) in enumerate(large):
        code[rows] = number
    return CodedColumn(name=name, parts=tuple(words for words, _ in large), code=code)


def _values(holdout: pl.DataFrame, cut: SliceBy) -> Iterator[Part]:
    yield from ((key.value, rows) for key, rows in slice_rows(holdout, [cut]).items())


def _parts(column: pl.Series) -> Iterator[Part]:
    if column.dtype.is_numeric() and column.n_unique() > MOST_PARTS:
        yield from _bins(column.cast(pl.Float64).fill_null(np.nan).to_numpy())
    elif column.dtype.is_numeric() or isinstance(
        column.dtype, pl.String | pl.Boolean | pl.Categorical | pl.Enum
    ):
        yield from _values(column.to_frame(), SliceBy(column=column.name))


def _bins(values: np.ndarray) -> Iterator[Part]:
    known = np.isfinite(values)
    yield NOTHING, np.flatnonzero(~known)
    if not known.any():
        return
    edges = np.unique(np.quantile(values[known], np.linspace(0, 1, BINS + 1)[1:-1]))
    # A value equal to an edge belongs to the bin below it, so that a frequent smallest value is a bin of its own.
    bin_of = np.searchsorted(edges, values, "left")
    for number in range(len(edges) + 1):
        rows = np.flatnonzero(known & (bin_of == number))
        if len(rows):
            yield f"{values[rows].min():.6g} to {values[rows].max():.6g}", rows


MOST_PAIRED = 30
"""Columns that are looked at in pairs: the first ones, declared slices before features. Others are looked at alone."""
MOST_SHOWN = 10
"""Slices that are named: those that are most certainly worse."""
MOST_SHARED = 0.5
"""Share of a slice's rows above which a slice named before it says the same."""
MOST_MERGED_BLOCKS = 256
"""Blocks that are redrawn: fewer than for metrics, since each of thousands of slices has sums of each block."""
_ROUNDED = 1e-12
"""Share of a total that rounding of its parts explains."""
_CELLS = 1 << 22
"""Redraws times slices that are measured together: 32 MiB for each of a few arrays."""


def worst_slices(
    holdout: pl.DataFrame,
    predictions: Mapping[str, Vector],
    spec: EvaluationSpec,
    *,
    label: str,
    weight: str | None = None,
    features: Iterable[pl.Series],
    classes: Sequence[str] = (),
) -> WorstSlices | None:
    """Look for slices on which the challenger is worse than on the other rows.

    `holdout`, `predictions`, `weight` and `classes` are those of `holdout.evaluate`; `features` are different columns
    of the same rows, whose values may be shown (`coded_columns`). Looks at the declared slices and `features`, alone
    and in pairs, with at least `min_slice_rows` rows in `min_blocks` blocks. Returns None if the objective has no loss
    of single rows.
    """
    loss = row_loss_of(spec.objective)
    if loss is None or loss.values is None:
        return None
    y, w = labels_of(holdout, label, spec, classes), weights_of(holdout, weight)
    losses: dict[Role, Vector] = {
        role: loss.values(y, in_range(predictions[role], spec.objective))
        for role in ROLES
        if role in predictions
    }
    blocks, names = bootstrap_blocks(holdout, spec)
    merged, count = blocks % MOST_MERGED_BLOCKS, min(len(names), MOST_MERGED_BLOCKS)
    columns = coded_columns(holdout, spec.sliced_by, features, spec.min_slice_rows)
    candidates = _candidates(columns, losses["challenger"], w, merged, count, spec)
    differences = _differences(candidates, draw_blocks(count, spec.draws, spec.seed), spec.confidence)
    worse = [number for number in np.argsort(-differences.low) if differences.low[number] > 0]
    return WorstSlices(
        loss=loss.label,
        columns=tuple(one.name for one in columns),
        paired=min(len(columns), MOST_PAIRED),
        candidates=len(candidates.slices),
        least_rows=spec.min_slice_rows,
        confidence=spec.confidence,
        worse=len(worse),
        shown=tuple(islice(_named(worse, candidates, differences, losses, w), MOST_SHOWN)),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Slice:
    """Rows with one part of one column, or of each of two."""

    parts: tuple[tuple[CodedColumn, int], ...]

    def holds(self) -> npt.NDArray[np.bool]:
        """Return True for its rows, `[N]`."""
        return np.logical_and.reduce([column.code == part for column, part in self.parts])


@dataclass(frozen=True, kw_only=True, eq=False)
class _Candidates:
    """Slices to look at, C of them."""

    slices: list[_Slice]
    blocks: Rows
    """`[C]`: blocks with rows of the slice."""
    weight: Matrix
    """`[B, C]`: weight of the rows of each block."""
    losses: Matrix
    """`[B, C]`: sums of their weighted losses."""
    all_weight: Vector
    """`[B]`: weight of the rows of each block, inside and outside of the slice."""
    all_losses: Vector

    def difference(self, counts: Matrix, some: slice) -> Matrix:
        """Return mean loss inside minus mean loss outside of `some` slices for redraws `[D, B]`, `[D, C]`."""
        weight, losses = counts @ self.weight[:, some], counts @ self.losses[:, some]
        others, others_losses = (counts @ of_all for of_all in (self.all_weight, self.all_losses))
        outside = others[:, None] - weight
        # Below this, the weight outside is a rounding error: a redraw has no row there.
        outside = np.where(outside > _ROUNDED * others[:, None], outside, 0.0)
        return ratio(losses, weight) - ratio(others_losses[:, None] - losses, outside)


def _candidates(
    columns: Sequence[CodedColumn],
    loss: Vector,
    w: Vector,
    blocks: BlockIds,
    count: int,
    spec: EvaluationSpec,
) -> _Candidates:
    """Return the slices of one column, then of two, that have enough rows and blocks inside and outside."""
    all_rows = np.bincount(blocks, minlength=count)
    slices: dict[bytes, _Slice] = {}
    present: list[int] = []
    weight: list[Matrix] = []
    losses: list[Matrix] = []
    weighted = w * loss
    for chosen in (*((one,) for one in columns), *combinations(columns[:MOST_PAIRED], 2)):
        cells, cell = _cells(chosen)
        at = blocks * len(cells) + cell
        inside = np.bincount(at, minlength=count * len(cells)).reshape(count, -1)
        sums, weights = (
            sums_of(values, at, count * len(cells)).reshape(count, -1) for values in (weighted, w)
        )
        enough = np.logical_and.reduce(
            [
                (some.sum(axis=0) >= spec.min_slice_rows) & ((some > 0).sum(axis=0) >= spec.min_blocks)
                for some in (inside, all_rows[:, None] - inside)
            ]
        )
        for number, one in enumerate(cells):
            if one is None or not enough[number]:
                continue
            # Two slices with the same rows are one: an airport, and the airport in its only time zone.
            identity = sums[:, number].tobytes()
            if identity not in slices:
                slices[identity] = one
                present.append(int((inside[:, number] > 0).sum()))
                weight.append(weights[:, number])
                losses.append(sums[:, number])
    return _Candidates(
        slices=list(slices.values()),
        blocks=np.array(present, dtype=np.intp),
        weight=np.stack(weight, axis=1) if weight else np.zeros((count, 0)),
        losses=np.stack(losses, axis=1) if losses else np.zeros((count, 0)),
        all_weight=sums_of(w, blocks, count),
        all_losses=sums_of(weighted, blocks, count),
    )


def _cells(chosen: tuple[CodedColumn, ...]) -> tuple[list[_Slice | None], Rows]:
    """Return the slice of each cell, None where a row has no part of a column, and the cell of each row."""
    cells: list[_Slice | None] = [_Slice(parts=())]
    cell = np.zeros(len(chosen[0].code), dtype=np.intp)
    for column in chosen:
        parts = [*range(len(column.parts)), None]
        cells = [
            None if one is None or part is None else _Slice(parts=(*one.parts, (column, part)))
            for one in cells
            for part in parts
        ]
        cell = cell * len(parts) + column.code
    return cells, cell


@dataclass(frozen=True, kw_only=True, eq=False)
class _Differences:
    """Mean loss inside minus mean loss outside of each slice, with joint intervals; all `[C]`."""

    value: Vector
    low: Vector
    high: Vector


def _differences(candidates: _Candidates, counts: Matrix, confidence: float) -> _Differences:
    every = len(candidates.slices)
    value, error = np.zeros(every), np.zeros(every)
    farthest = np.zeros(len(counts))
    step = max(1, _CELLS // len(counts))
    for some in (slice(at, at + step) for at in range(0, every, step)):
        value[some] = candidates.difference(np.ones((1, counts.shape[1])), some)[0]
        distance = np.abs(candidates.difference(counts, some) - value[some])
        error[some] = np.sqrt(np.nanmean(distance**2, axis=0))
        scale = np.where(error[some] > 0, error[some], 1.0)
        # A redraw that lacks a slice says nothing about it.
        farthest = np.maximum(farthest, np.where(np.isnan(distance), 0.0, distance / scale).max(axis=1))
    critical = float(np.quantile(farthest, confidence))
    level = level_of(critical, confidence)
    blocks, slice_of = np.unique(candidates.blocks, return_inverse=True)
    wider = np.array([widening(int(one), level) for one in blocks])[slice_of] if every else np.zeros(0)
    half = critical * error * wider
    return _Differences(value=value, low=value - half, high=value + half)


def _named(
    worse: Sequence[int],
    candidates: _Candidates,
    differences: _Differences,
    losses: Mapping[Role, Vector],
    w: Vector,
) -> Iterator[WorstSlice]:
    """Yield the slices to name: the most certain ones, without those that say mostly the same."""
    told = np.zeros(len(losses["challenger"]), dtype=np.bool)
    for number in worse:
        one = candidates.slices[number]
        inside = one.holds()
        if told[inside].mean() > MOST_SHARED:
            continue
        told |= inside
        yield WorstSlice(
            where=tuple((column.name, column.parts[part]) for column, part in one.parts),
            rows=int(inside.sum()),
            blocks=int(candidates.blocks[number]),
            losses={role: mean(loss[inside], w[inside]) for role, loss in losses.items()},
            elsewhere=mean(losses["challenger"][~inside], w[~inside]),
            difference=Interval(
                *(float(ends[number]) for ends in (differences.value, differences.low, differences.high))
            ),
        )
