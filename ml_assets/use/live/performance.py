"""Live performance of a day: how far each version's predictions have moved, and its metrics where labels are known.

A day is compared with earlier days of the version, and with its holdout from the first day on. Metrics of the slices
that the evaluation declares have intervals that hold jointly. They redraw the evaluation's blocks if the partition has
enough of them. A day often is a single block: then single rows are redrawn, or lists, and the interval is about this
day only. Not here: predictions and labels (`scored_rows`, `logged_rows`), storing and drawing figures
(`performance_history`), the asset (`assets.predictions`).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl
from pydantic import AwareDatetime, BaseModel, ConfigDict

from ml_assets.data.validation.drift import drift
from ml_assets.model.evaluation.comparison.holdout_rows import (
    MOST_BLOCKS,
    bootstrap_blocks,
    labels_of,
    lists_of,
    slice_rows,
)
from ml_assets.model.evaluation.metrics.bootstrap import (
    BlockIds,
    Estimate,
    block_form,
    draw_blocks,
    estimate,
    joint_intervals,
)
from ml_assets.model.evaluation.metrics.metrics import Vector, metrics_of
from ml_assets.model.evaluation.metrics.row_weights import weights_of
from ml_assets.model.evaluation.spec import EvaluationSpec
from ml_assets.model.steps.declared_functions import own_metrics
from ml_assets.model.steps.retraining import LiveSource
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.use.live.scored_rows import CountingRows, Profiles, Role, ScoredVersion
from resources.artifacts import ArtifactMissing
from resources.platform import Platform
from resources.words import counted


class HoldoutReference(BaseModel):
    """Profile of a version's predictions on its holdout, or why there is none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    profile: dict[str, Any] | None = None
    evaluation: str = ""
    """Short name of the evaluation."""
    why_none: str = ""


def holdout_of(platform: Platform, model: str, bundle: str) -> HoldoutReference:
    """Return the reference of a bundle: its first evaluation that has a profile, so the reference does not move.

    Raises `LedgerError`, and `ArtifactsError` if the storage does not answer.
    """
    from ml_assets.model.steps.record import ReportUnreadable, recorded_report  # onnxruntime

    why_none = "the bundle has no evaluation"
    for row in platform.ledger.models.evaluations(model):
        if row.bundle_digest != bundle:
            continue
        try:
            report = recorded_report(platform, row)
        except (ArtifactMissing, ReportUnreadable) as error:
            why_none = f"the report of evaluation {row.name} cannot be read: {error}"
            continue
        if report.predictions is not None:
            return HoldoutReference(profile=report.predictions, evaluation=row.name)
        why_none = f"the report of evaluation {row.name} has no profile of predictions"
    return HoldoutReference(why_none=why_none)


Redrawn: TypeAlias = Literal["blocks", "rows", "lists"]
FEWEST_ROWS = 30
"""Labelled rows below which a slice has no metric. `min_slice_rows` of the evaluation counts if it is lower."""


class _Figures(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LiveInterval(_Figures):
    """Metric of a slice."""

    value: float | None
    """None where it is not defined."""
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.value is None:
            return "not defined"
        if self.low is None or self.high is None:
            return f"{self.value:.4g} (no interval)"
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


class SliceFigures(_Figures):
    """Metrics of one slice."""

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


class OutputDrift(_Figures):
    """Distance of one output's distribution from the reference."""

    output: str
    """Class, figure of a text, or `prediction`."""
    psi: float
    """Population stability index, from 0."""
    psi_excess: float
    """PSI beyond what chance explains, at least 0."""
    ks: float | None
    """Largest difference of the cumulative shares, 0 to 1."""
    mean: float
    reference_mean: float


class VersionFigures(_Figures):
    """Figures of one version on one day."""

    role: Role
    version: int
    bundle_digest: str
    rows: int
    """Rows with a prediction."""
    stands_for: float
    """Rows for which they stand: more than `rows` if a share of the requests is logged."""
    left_out: dict[str, int]
    """Reason → rows of the log that do not count, or have no label."""
    reference: tuple[str, ...]
    """Partitions of the reference; empty if the version scored no earlier one."""
    drift: tuple[OutputDrift, ...]
    """One for each output; empty without a reference."""
    holdout_drift: tuple[OutputDrift, ...]
    """The same against the version's predictions on its holdout; empty without those."""
    no_holdout: str
    """Reason why there is none; empty if there is."""
    labelled: int
    """Rows with prediction and label, which the metrics measure."""
    unknown_classes: int
    """Rows whose label is a class that the version does not know. The metrics leave them out."""
    metrics: dict[str, float | None]
    """Metrics of the objective and of the project; None where one is not defined, such as the AUC of one class. Empty
    without labels."""
    slices: tuple[SliceFigures, ...]
    """Slices that the evaluation declares; empty without labels."""
    profiles: Profiles
    """Predictions of the day, with which later days are compared; empty if a table of predictions has them."""

    @property
    def largest_drift(self) -> OutputDrift | None:
        """The output that has moved most; None without a reference."""
        return _largest(self.drift)

    @property
    def largest_holdout_drift(self) -> OutputDrift | None:
        """The output that is farthest from the holdout; None without one."""
        return _largest(self.holdout_drift)

    @property
    def drift_in_words(self) -> str:
        before = f"against {counted(len(self.reference), 'earlier partition')}"
        sides = ((self.largest_drift, before), (self.largest_holdout_drift, "against its holdout"))
        known = [f"{most.psi_excess:.3g} {side}" for most, side in sides if most is not None]
        no_holdout = f"no comparison with its holdout, because {self.no_holdout}" if self.no_holdout else ""
        if not known:
            return f"no drift yet: this version scored no earlier partition; {no_holdout}"
        return "; ".join(filter(None, (f"PSI beyond chance {', '.join(known)}", no_holdout)))

    @property
    def rows_in_words(self) -> str:
        """The rows, and those for which they stand, in a few words."""
        said = counted(self.rows, "row")
        if self.stands_for > self.rows * 1.0001:
            said += f" of a share of the requests, which stand for {self.stands_for:,.0f}"
        reasons = (f"{count:,} further rows {why}" for why, count in self.left_out.items())
        return "; ".join((said, *reasons))

    @property
    def labels_in_words(self) -> str:
        return f"labels of {self.labelled} of {self.rows} rows" if self.labelled else "no labels yet"


class DayFigures(_Figures):
    """Figures of a day, production first."""

    model: str
    partition: str
    objective: str
    source: LiveSource
    versions: tuple[VersionFigures, ...]
    measured_at: AwareDatetime
    """Moment of the measurement, UTC."""
    notes: tuple[str, ...] = ()
    """Sentences about the log of the day, such as damaged files."""


def measure_day(
    spec: PipelineSpec,
    key: str,
    scored: Iterable[ScoredVersion],
    holdout: Callable[[str], HoldoutReference],
    *,
    source: LiveSource = "predictions",
    notes: Sequence[str] = (),
) -> DayFigures:
    """Measure the versions that scored partition `key`. `holdout` returns the reference of a bundle.

    Raises `EvaluationInputError` for labels that do not fit the objective and for a metric of the project that fails,
    and `FunctionNotFound` for one that cannot be imported.
    """
    found: list[VersionFigures] = []
    for one in scored:
        before = [part for parts in one.reference.values() for part in parts]
        of_holdout = holdout(one.bundle_digest)
        metrics, slices = _metrics(spec, one.labelled, one.classes)
        found.append(
            VersionFigures(
                role=one.role,
                version=one.version,
                bundle_digest=one.bundle_digest,
                rows=one.rows,
                stands_for=one.stands_for,
                left_out=dict(one.left_out),
                reference=tuple(one.reference),
                drift=_drift(before, one.profiles),
                holdout_drift=_drift(
                    [] if of_holdout.profile is None else [of_holdout.profile], one.profiles
                ),
                no_holdout=of_holdout.why_none,
                labelled=one.labelled.frame.height,
                unknown_classes=one.labelled.unknown_classes,
                metrics=metrics,
                slices=slices,
                profiles=one.profiles if source == "request_log" else (),
            )
        )
    return DayFigures(
        model=spec.name,
        partition=key,
        objective=spec.evaluation.objective,
        source=source,
        versions=tuple(found),
        measured_at=datetime.now(UTC).replace(microsecond=0),
        notes=tuple(notes),
    )


def _largest(outputs: Sequence[OutputDrift]) -> OutputDrift | None:
    return max(outputs, key=lambda one: one.psi_excess, default=None)


def _drift(before: Sequence[dict[str, Any]], now: Profiles) -> tuple[OutputDrift, ...]:
    """Return the distance of each output from the profiles `before`; nothing without them."""
    return tuple(
        OutputDrift(
            output=output,
            psi=one.psi,
            psi_excess=one.psi_excess,
            ks=one.ks,
            mean=_mean(now, output),
            reference_mean=_mean(before, output),
        )
        for output, one in drift(before, now).items()
    )


def _mean(profiles: Sequence[dict[str, Any]], output: str) -> float:
    rows = [one["rows"] for one in profiles]
    means = [one["columns"][output]["mean"] for one in profiles]
    return math.fsum(n * mean for n, mean in zip(rows, means, strict=True)) / math.fsum(rows)


def _metrics(
    spec: PipelineSpec, rows: CountingRows, classes: Sequence[str]
) -> tuple[dict[str, float | None], tuple[SliceFigures, ...]]:
    frame = rows.frame
    if frame.is_empty():
        return {}, ()
    y = labels_of(frame, spec.features.label, spec.evaluation, classes)
    p, w, lists = rows.predictions, _weights(spec, rows), lists_of(frame, spec.evaluation.group)
    values = {one.name: one.value(y, p, w=w, lists=lists) for one in metrics_of(spec.evaluation.objective)}
    for own in own_metrics(spec.evaluation):
        values[own.facts.name] = own.value(y, p, own.groups_of(frame), w)
    return (
        {name: value if math.isfinite(value) else None for name, value in values.items()},
        sliced(spec.evaluation, rows, y, w),
    )


def _weights(spec: PipelineSpec, rows: CountingRows) -> Vector:
    """Return the weights of the rows, times the rows for which each one stands."""
    w = weights_of(rows.frame, spec.features.weight)
    if np.ptp(rows.times) == 0:
        return w
    return weights_of(pl.DataFrame({"times": w * rows.times}), "times")
