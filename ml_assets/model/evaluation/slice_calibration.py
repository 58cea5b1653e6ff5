"""Calibration-in-the-large: mean prediction minus mean label, on the holdout and on each slice."""

from collections.abc import Sequence

import numpy as np

from ml_assets.foundation.objective_facts import ObjectiveName, facts_of
from ml_assets.model.evaluation.block_counts import BlockIds, Matrix, mean_form
from ml_assets.model.evaluation.bootstrap import Estimate, Interval, estimate, interval, joint_intervals
from ml_assets.model.evaluation.metrics import Vector, hits, is_covered
from ml_assets.model.evaluation.slices import Rows
from ml_assets.model.evaluation.spec import EvaluationSpec


def calibration_gaps(objective: ObjectiveName, y: Vector, p: Vector) -> Vector | None:
    """Return predicted minus observed for each row, `[N]`; a calibrated model has a mean of 0 on every slice.

    Numbers: prediction minus label. Quantiles: 1 for a label at or below the prediction, else 0, minus the declared
    share. Classes: the largest probability minus 1 for a right class, else minus 0. None for scores of a ranking.
    """
    facts = facts_of(objective)
    if not facts.calibration:
        return None
    if facts.has_classes:
        return p.max(axis=1) - hits(y, p)
    if facts.quantile is not None:
        return is_covered(y, p) - facts.quantile
    return p - y


def calibration_of_slices(
    gaps: Vector | None,
    w: Vector,
    slices: Sequence[Rows],
    blocks: BlockIds,
    counts: Matrix,
    spec: EvaluationSpec,
) -> list[Interval | None]:
    """Return the mean gap on all rows and on each of `slices`, in their order; None without `gaps` or enough rows.

    `w` are the weights of the rows. Intervals of slices hold jointly. A slice in fewer than `min_blocks` blocks has
    none.
    """
    if gaps is None:
        return [None] * (1 + len(slices))

    def mean_gap(rows: Rows, fewest: int) -> Estimate:
        present = len(np.unique(blocks[rows]))
        form = mean_form(gaps[rows], w[rows], blocks[rows], counts.shape[1])
        return estimate(form, counts, present if present >= fewest else 1)

    whole = interval(mean_gap(np.arange(len(gaps)), 2), spec.confidence)
    large = [len(rows) >= spec.fewest_slice_rows for rows in slices]
    found = iter(
        joint_intervals(
            [mean_gap(rows, spec.min_blocks) for rows, fine in zip(slices, large, strict=True) if fine],
            spec.confidence,
        )
    )
    return [whole, *(next(found) if fine else None for fine in large)]
