"""Metrics of the slices that the evaluation declares, on the labelled rows of one partition, with intervals.

Intervals redraw the evaluation's blocks if the partition has enough of them. A day often is a single block: then single
rows are redrawn, or lists, and the interval is about this day only. Those of all slices hold jointly.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict

from ml_assets.model.evaluation.comparison.holdout_rows import MOST_BLOCKS, bootstrap_blocks, lists_of
from ml_assets.model.evaluation.comparison.slices import slice_rows
from ml_assets.model.evaluation.metrics.bootstrap import (
    BlockIds,
    Estimate,
    block_form,
    draw_blocks,
    estimate,
    joint_intervals,
)
from ml_assets.model.evaluation.metrics.metrics import Vector, metrics_of
from ml_assets.model.evaluation.spec import EvaluationSpec
from ml_assets.use.live.scored_rows import CountingRows

Redrawn: TypeAlias = Literal["blocks", "rows", "lists"]
FEWEST_ROWS = 30
"""Labelled rows below which a slice has no metric. `min_slice_rows` of the evaluation counts if it is lower."""


class LiveInterval(BaseModel):
    """Metric of a slice."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    value: float | None
    """None where it is not defined."""
    low: float | None
    high: float | None

    def __str__(self) -> str:
        """Return the value and its interval."""
        if self.value is None:
            return "not defined"
        if self.low is None or self.high is None:
            return f"{self.value:.4g} (no interval)"
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


class SliceFigures(BaseModel):
    """Metrics of one slice."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    slice: str
    """`carrier=AA`."""
    rows: int
    """Labelled rows."""
    redrawn: Redrawn
    metrics: dict[str, LiveInterval]
    """Metric of the objective → value and interval; empty if the rows are too few."""


def sliced(spec: EvaluationSpec, labelled: CountingRows, y: Vector, w: Vector) -> tuple[SliceFigures, ...]:
    """Return the figures of each declared slice, in their order. `y` and `w` are labels and weights of the rows."""
    frame = labelled.frame
    if not spec.slices or frame.is_empty():
        return ()
    blocks, redrawn = _blocks(spec, labelled)
    counts = draw_blocks(int(blocks.max()) + 1, spec.draws, spec.seed)
    lists = lists_of(frame, spec.group)
    rows_of = slice_rows(frame, spec.sliced_by)
    fewest = min(FEWEST_ROWS, spec.fewest_slice_rows)
    large = {key: rows for key, rows in rows_of.items() if len(rows) >= fewest}
    found: dict[object, dict[str, LiveInterval]] = {key: {} for key in rows_of}
    for metric in metrics_of(spec.objective):
        estimates: Mapping[object, Estimate] = {
            key: estimate(
                block_form(
                    metric,
                    y[rows],
                    labelled.predictions[rows],
                    blocks[rows],
                    counts.shape[1],
                    w=w[rows],
                    lists=None if lists is None else lists[rows],
                ),
                counts,
                len(np.unique(blocks[rows])),
            )
            for key, rows in large.items()
        }
        intervals = joint_intervals(
            list(estimates.values()), spec.confidence, lowest=metric.lowest, highest=metric.highest
        )
        for key, one in zip(estimates, intervals, strict=True):
            found[key][metric.name] = LiveInterval(value=one.value, low=one.low, high=one.high)
    return tuple(
        SliceFigures(slice=str(key), rows=len(rows), redrawn=redrawn, metrics=found[key])
        for key, rows in rows_of.items()
    )


def _blocks(spec: EvaluationSpec, labelled: CountingRows) -> tuple[BlockIds, Redrawn]:
    """Return the block of each row, and the name of such blocks."""
    frame = labelled.frame
    if frame.get_column(spec.bootstrap_unit).n_unique() >= spec.min_blocks:
        return bootstrap_blocks(frame, spec)[0], "blocks"
    lists = lists_of(frame, spec.group)
    each = np.arange(frame.height) if lists is None else lists
    return (each % MOST_BLOCKS).astype(np.intp), "rows" if lists is None else "lists"
