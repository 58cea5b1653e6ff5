"""Metrics that a pipeline declares beside those of its objective: functions of its own code, and bias.

An own metric is a function `(label, prediction, group, weight) -> float`, called on the holdout, its slices and the
redraws of its blocks. Bias compares the decisions of a binary model between groups of rows:

* Demographic parity difference: largest minus smallest share of a group's rows that is decided positive.
* Equal opportunity difference (Hardt, Price and Srebro, 2016): the same on rows of label 1.

Small groups do not count: the largest difference between many noisy shares is large by chance. Not here: the import of
a function and the version of its code (`steps.declared_functions`), the sections (`spec`).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ml_assets.model.evaluation.comparison.holdout_rows import NOTHING, Rows, slice_rows
from ml_assets.model.evaluation.evaluation_document import BiasFigures, GroupFigures, GroupShare
from ml_assets.model.evaluation.metrics.bootstrap import (
    BlockForm,
    BlockIds,
    Estimate,
    Matrix,
    joint_intervals,
    ratio,
)
from ml_assets.model.evaluation.metrics.metrics import MetricFacts, Vector
from ml_assets.model.evaluation.metrics.row_weights import EvaluationInputError, sums_of
from ml_assets.model.evaluation.spec import BiasSection, EvaluationSpec, OwnMetricSection, SliceBy
from resources.words import counted

Groups = npt.NDArray[Any]
_TRIED = 3
"""Redraws on which a function is tried before it measures, beside both halves of the blocks."""
_ROUNDING = 1e-6
"""Relative difference of two sums over the same rows in another order."""
_CANCELLED = 64 * float(np.finfo(np.float64).eps)
"""Difference of two such sums near 0, as a share of the largest label or prediction."""


@dataclass(frozen=True, kw_only=True)
class OwnMetric:
    """A metric of the project, ready to be called."""

    declared: OwnMetricSection
    function: Callable[[Vector, Vector, Groups, Vector], Any]
    """Code of the project: it should return a float."""
    code_version: str

    @property
    def facts(self) -> MetricFacts:
        """Name and direction."""
        return self.declared.facts

    def groups_of(self, holdout: pl.DataFrame) -> Groups:
        """Return the group of each row, `[N]`: the values of the column `group`, or 0 for all rows without one.

        A text that is null is `(none)`, as in slices; a number that is null is NaN.
        """
        if self.declared.group is None:
            return np.zeros(holdout.height, dtype=np.int64)
        column = holdout.get_column(self.declared.group)
        return (column.fill_null(NOTHING) if column.dtype == pl.String else column).to_numpy()

    def value(self, y: Vector, p: Vector, group: Groups, weight: Vector) -> float:
        """Call the function. NaN if it is not defined on these rows, or no row counts; a loss may be infinite.

        Raises `EvaluationInputError` if the function fails, or returns something other than a number.
        """
        if not weight.any():
            return math.nan
        who = f"metric {self.facts.name} ({self.declared.function})"
        try:
            found = self.function(*(_read_only(one) for one in (y, p, group, weight)))
        except Exception as error:  # it is the user's code
            raise EvaluationInputError(
                f"{who} failed on {len(y)} rows: {type(error).__name__}: {error}. Return NaN for rows on which it is "
                "not defined"
            ) from error
        if not isinstance(found, Real):
            raise EvaluationInputError(f"{who} returned {type(found).__name__}: return one number")
        return float(found)

    def require_weights(
        self, y: Vector, p: Vector, group: Groups, w: Vector, blocks: BlockIds, counts: Matrix
    ) -> None:
        """Raise `EvaluationInputError` if the function ignores `weight`: its intervals would have no width.

        Weights must give the same value as rows that are repeated. Tried on half of the blocks, on the other half (a
        maximum lies in one of them), and on the first redraws. `w` are the weights of the rows, `counts` are as for
        `estimate`.
        """
        odd = np.unique(blocks, return_inverse=True)[1] % 2
        largest = max(float(np.abs(y).max(initial=0)), float(np.abs(p).max(initial=0)))
        for times in (2 * odd, 2 - 2 * odd, *(drawn[blocks].astype(np.intp) for drawn in counts[:_TRIED])):
            again = np.repeat(np.arange(len(y)), times)
            weighted = self.value(y, p, group, times * w)
            repeated = self.value(y[again], p[again], group[again], w[again])
            if math.isnan(weighted) and math.isnan(repeated):
                continue  # these rows tell nothing
            if not math.isclose(weighted, repeated, rel_tol=_ROUNDING, abs_tol=_CANCELLED * largest):
                raise EvaluationInputError(
                    f"metric {self.facts.name} ({self.declared.function}) gives {weighted:.9g} for {len(y)} rows whose "
                    f"blocks have weights such as 0 and 2, and {repeated:.9g} for the same rows left out or repeated: "
                    "let a row count as often as its `weight` says, such as np.average(losses, weights=weight)"
                )

    def form(self, y: Vector, p: Vector, group: Groups, w: Vector, blocks: BlockIds) -> BlockForm:
        """Return the metric of rows of weights `w` as a function of the number of times each block was drawn."""

        def value(counts: Matrix) -> Vector:
            return np.array([self.value(y, p, group, drawn[blocks] * w) for drawn in counts])

        return value


def _read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a view that the function cannot write to: `label -= prediction` would spoil all calls after it."""
    view = values.view()
    view.flags.writeable = False
    return view


MOST_GROUPS = 1_000
"""Groups of a column: counts of each block and group are held in memory."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Grouping:
    """Groups of a holdout for one item of `bias`."""

    declared: BiasSection
    names: tuple[str, ...]
    group: BlockIds
    """Number of each row's group, `[N]`."""
    min_blocks: int
    """Groups in fewer blocks do not count: many redraws would lack them."""

    def forms(
        self, rows: Rows, y: Vector, p: Vector, w: Vector, blocks: BlockIds, count: int
    ) -> Iterator[tuple[str, BlockForm, int]]:
        """Yield name and form of each metric on some `rows`, and the number of blocks of its rarest group.

        `y`, `p`, the weights `w` and `blocks` are those of these rows.
        """
        for shares in self._shares(rows, y, p, w, blocks, count):
            yield shares.metric.name, shares.difference(), shares.fewest_blocks

    def figures(
        self, y: Vector, p: Vector, w: Vector, blocks: BlockIds, counts: Matrix, confidence: float
    ) -> BiasFigures:
        """Return the shares of each group on the whole holdout. Intervals of the groups hold jointly."""
        parity, opportunity = self._shares(np.arange(len(y)), y, p, w, blocks, counts.shape[1])
        by_group = zip(
            self.names,
            parity.by_group(counts, confidence),
            opportunity.by_group(counts, confidence),
            strict=True,
        )
        return BiasFigures(
            declared=self.declared,
            groups=tuple(
                GroupFigures(name=name, decided_positive=all_rows, true_positives=positives)
                for name, all_rows, positives in by_group
            ),
        )

    def _shares(
        self, rows: Rows, y: Vector, p: Vector, w: Vector, blocks: BlockIds, count: int
    ) -> tuple["_Shares", "_Shares"]:
        """Return the shares of all rows and of the rows of label 1."""
        groups = len(self.names)
        cell, decided = blocks * groups + self.group[rows], p >= self.declared.threshold

        def by_block(values: np.ndarray) -> Matrix:
            return sums_of(values, cell, count * groups).reshape(count, groups)

        def shares(metric: MetricFacts, of: str, among: np.ndarray) -> _Shares:
            return _Shares(
                metric=metric,
                of=of,
                rows=by_block(among),
                weight=by_block(among * w),
                decided=by_block((among & decided) * w),
                min_rows=self.declared.min_rows,
                min_blocks=self.min_blocks,
            )

        every, declared = np.ones(len(y), dtype=np.bool), self.declared
        return shares(declared.parity, "", every), shares(declared.opportunity, " of label 1", y > 0)


def groupings_of(holdout: pl.DataFrame, spec: EvaluationSpec) -> tuple[Grouping, ...]:
    """Return the groups of each item of `spec.bias`. Rows without a value are a group of their own.

    Raises `EvaluationInputError` for a column with too many values.
    """
    found: list[Grouping] = []
    for declared in spec.bias:
        groups = slice_rows(holdout, [SliceBy(column=declared.column)])
        if len(groups) > MOST_GROUPS:
            raise EvaluationInputError(
                f"evaluation.bias compares the groups of {declared.column!r}, which has {len(groups):,} values: name a "
                f"column with at most {MOST_GROUPS:,}, such as a region or an age bracket"
            )
        number = np.empty(holdout.height, dtype=np.intp)
        for index, rows in enumerate(groups.values()):
            number[rows] = index
        names = tuple(key.value for key in groups)
        found.append(Grouping(declared=declared, names=names, group=number, min_blocks=spec.min_blocks))
    return tuple(found)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Shares:
    """Share of each group's rows that is decided positive."""

    metric: MetricFacts
    of: str
    """Words after the number of rows."""
    rows: Matrix
    """`[B, G]`: rows of each block and group."""
    weight: Matrix
    """`[B, G]`: their weight."""
    decided: Matrix
    """`[B, G]`: the weight of those that are decided positive."""
    min_rows: int
    min_blocks: int

    def difference(self) -> BlockForm:
        """Return the largest minus the smallest share; NaN unless two groups count."""
        kept = self._kept
        if len(kept) < 2:
            return lambda counts: np.full(len(counts), np.nan)
        weight, decided = self.weight[:, kept], self.decided[:, kept]
        # A redraw that lacks a group has no difference: NaN.
        return lambda counts: np.ptp(ratio(counts @ decided, counts @ weight), axis=1)

    @property
    def fewest_blocks(self) -> int:
        """Fewest blocks of a group that counts; 0 without one. The difference is as uncertain as that group."""
        return min((int(blocks) for blocks in (self.rows > 0).sum(axis=0)[self._kept]), default=0)

    @property
    def _kept(self) -> list[int]:
        """Numbers of the groups that count."""
        return [index for index, why in enumerate(self._left_out()) if not why]

    def by_group(self, counts: Matrix, confidence: float) -> list[GroupShare]:
        """Return the share of each group; groups that do not count have no interval."""
        left_out = self._left_out()
        (whole,) = ratio(self.decided.sum(axis=0, keepdims=True), self.weight.sum(axis=0, keepdims=True))
        redrawn = ratio(counts @ self.decided, counts @ self.weight)
        blocks = (self.rows > 0).sum(axis=0)
        estimates = [
            # One block has no interval, whatever its redraws.
            Estimate(float(whole[index]), redrawn[:, index], int(blocks[index]) if not why else 1)
            for index, why in enumerate(left_out)
        ]
        intervals = joint_intervals(estimates, confidence, lowest=0, highest=1)
        return [
            GroupShare(rows=int(rows), share=one, left_out=why)
            for rows, one, why in zip(self.rows.sum(axis=0), intervals, left_out, strict=True)
        ]

    def _left_out(self) -> list[str]:
        """Return for each group the reason why it does not count, in words; empty if it does."""
        return [
            f"{counted(int(rows), 'row')}{self.of}, fewer than {self.min_rows}"
            if rows < self.min_rows
            else f"rows in {counted(int(blocks), 'block')}, fewer than {self.min_blocks}"
            if blocks < self.min_blocks
            else ""
            for rows, blocks in zip(self.rows.sum(axis=0), (self.rows > 0).sum(axis=0), strict=True)
        ]
