"""Decision thresholds of a binary model with their costs: chosen on validation rows, measured on the holdout.

A threshold that was chosen on the rows that measure it looks cheaper than it is. The cost of a row is a mean like any
metric, so its interval comes from the same redraws of blocks.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import polars as pl

from ml_assets.model.evaluation.metrics.bootstrap import BlockIds, Matrix, block_form, estimate, interval
from ml_assets.model.evaluation.metrics.metrics import Metric, Vector
from ml_assets.model.evaluation.metrics.row_weights import mean, quantiles
from ml_assets.model.evaluation.report_document import ThresholdFigures, ThresholdTable
from ml_assets.model.evaluation.spec import CostSection

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75)
"""Shares of the validation rows that the listed thresholds decide positive, beside none, all and the chosen one."""
_SHOWN_ROWS = 1_000
"""Rows to which a cost refers, so that it is readable."""


@dataclass(frozen=True, kw_only=True)
class ScoredRows:
    """Labels (0 or 1), predicted probabilities and weights of the same rows, each `[N]`."""

    y: Vector
    p: Vector
    w: Vector

    @classmethod
    def of(cls, labels: pl.Series, p: Vector, w: Vector) -> Self:
        """Create it from labels that are numbers or booleans."""
        return cls(y=labels.cast(pl.Float64).to_numpy(), p=p, w=w)


def threshold_table(
    costs: CostSection,
    validation: ScoredRows,
    holdout: ScoredRows,
    redraws: tuple[BlockIds, Matrix],
    confidence: float,
) -> ThresholdTable:
    """Choose a threshold on `validation`, and measure it and others on `holdout`.

    `redraws` are the block of each holdout row and the counts of `draw_blocks`.
    """
    best = cheapest(costs, validation)
    # From the top: a threshold decides its own row positive, too.
    spread = {-float(one) for one in quantiles(-validation.p, validation.w, np.array(SHARES))}
    finite: list[float] = sorted({0.0, *spread, *([] if best is None else [best])}, reverse=True)
    listed = tuple(_figures(costs, one, holdout, redraws, confidence) for one in (None, *finite))
    return ThresholdTable(
        declared=costs,
        listed=listed,
        chosen=next(one for one in listed if one.threshold == best),
        validation_rows=len(validation.y),
    )


def cheapest(costs: CostSection, rows: ScoredRows) -> float | None:
    """Return the cheapest threshold on `rows`: one of their probabilities, or None to decide no row positive.

    Of equal costs, the largest threshold, which decides the fewest rows positive.
    """
    order = np.argsort(-rows.p, kind="stable")
    p, y, w = rows.p[order], rows.y[order], rows.w[order]
    # Cost of each further row decided positive, against leaving it negative.
    change = w * np.where(y > 0, -(costs.false_negative + costs.benefit), costs.false_positive)
    # Rows of equal probability are decided together.
    ends = np.flatnonzero(np.append(p[1:] != p[:-1], True))
    totals = np.cumsum(change)[ends]
    best = int(np.argmin(totals))
    return float(p[ends[best]]) if totals[best] < 0 else None


def _figures(
    costs: CostSection,
    threshold: float | None,
    rows: ScoredRows,
    redraws: tuple[BlockIds, Matrix],
    confidence: float,
) -> ThresholdFigures:
    blocks, counts = redraws
    positive = np.zeros(len(rows.p), dtype=np.bool) if threshold is None else rows.p >= threshold
    decided, ones = float(rows.w[positive].sum()), float(rows.w @ rows.y)
    hits = float(rows.w[positive] @ rows.y[positive])

    def values(y: Vector, decided: Vector) -> Vector:
        of_ones = np.where(decided > 0, -costs.benefit, costs.false_negative)
        return _SHOWN_ROWS * np.where(y > 0, of_ones, decided * costs.false_positive)

    cost = Metric(
        name="cost",
        label="cost",
        higher_is_better=False,
        on_rows=lambda y, p, w: mean(values(y, p), w),
        values=values,
    )
    form = block_form(cost, rows.y, positive.astype(np.float64), blocks, counts.shape[1], w=rows.w)
    return ThresholdFigures(
        threshold=threshold,
        positive=decided / float(rows.w.sum()),
        precision=hits / decided if decided else None,
        recall=hits / ones if ones else None,
        cost=interval(estimate(form, counts, counts.shape[1]), confidence),
    )
