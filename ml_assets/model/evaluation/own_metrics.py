"""Metrics of a pipeline's own code: `(label, prediction, group, weight) -> float`.

Here: calling such a function on the holdout, its slices and the redraws of its blocks. Not here: importing it and the
version of its code (`pipeline.declared_functions`), its declaration (`OwnMetricSection`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ml_assets.model.evaluation.block_counts import BlockForm, BlockIds, Matrix
from ml_assets.model.evaluation.errors import EvaluationInputError
from ml_assets.model.evaluation.metrics import MetricFacts, Vector
from ml_assets.model.evaluation.slices import NOTHING
from ml_assets.model.evaluation.spec import OwnMetricSection

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
