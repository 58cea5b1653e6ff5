"""Champion, and other registered models, beside a challenger: predictions on its holdout, or the reason for none.

A champion that cannot score today's rows is an outcome for the gates, never an error: the challenger is trained by
then. No gate uses the figures of `evaluation.compared_with`; they are for reports. Not here: the decision
(`comparison.gates`), the version in production (`release.promotion`).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.data.features.encoding import class_ids
from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.data.snapshots.split_rows import SplitScan
from ml_assets.data.tables.cadence import Cadence
from ml_assets.foundation.days import Days
from ml_assets.model.evaluation.comparison.gates import Champion
from ml_assets.model.evaluation.comparison.holdout_rows import in_range, prediction_fault
from ml_assets.model.evaluation.comparison.model_difference import Difference, difference
from ml_assets.model.evaluation.metrics.row_weights import EvaluationInputError
from ml_assets.model.evaluation.report_document import ComparedModel
from ml_assets.model.evaluation.spec import EvaluationSpec
from ml_assets.model.release.bundle_store import Bundle, BundleDamaged, BundleMissing, Question
from ml_assets.model.release.registry import RegisteredVersion, VersionMissing
from ml_assets.model.release.releases import bundles_of, releases_of
from ml_assets.model.release.runtime import (
    BundleRefused,
    GoldenMismatch,
    GraphFailed,
    InputRefused,
    ServingModel,
)
from ml_assets.model.steps.declared_functions import own_metrics
from ml_assets.model.steps.record import version_to_show
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.model.steps.split_predictions import SplitWorkers, predictions_of
from resources.platform import Platform


@dataclass(frozen=True, kw_only=True)
class Rival:
    """Champion, as one evaluation sees it."""

    bundle_digest: str
    champion: Champion
    predictions: NDArray[np.float64] | None
    """`[rows]` on the holdout; None exactly if `champion.cannot_score` has a reason."""
    columns: tuple[str, ...] = ()
    """Columns that it reads; empty if it has no predictions."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRows:
    """Rows on which models are compared, and what they are asked."""

    rows: SplitScan
    """Rows of the holdout."""
    holdout: pl.DataFrame
    """Their labels, weights, and the columns that the section `evaluation` names (`EvaluationSpec.columns`)."""
    weight: str | None
    """Column with the weights of the rows; None if each row counts once."""
    partitions: tuple[str, ...]
    """Partition keys of the holdout."""
    cadence: Cadence
    """Partitions of the model."""
    asked: Question
    primary_key: tuple[str, ...]
    """Columns that name a row in errors."""
    workers: SplitWorkers | None = None
    """Workers that may help to score them. None: this process scores them."""

    @classmethod
    def of(
        cls,
        spec: PipelineSpec,
        snapshot: Snapshot,
        holdout: SplitScan,
        asked: Question,
        workers: SplitWorkers | None = None,
    ) -> Self:
        """Return the rows `holdout` of `snapshot`, with the numbers of classes as labels."""
        measured = holdout.read([asked.label, snapshot.weight, *spec.evaluation.columns])
        return cls(
            rows=holdout,
            holdout=with_class_ids(measured, asked.label, asked.classes),
            weight=snapshot.weight or None,
            partitions=snapshot.keys("holdout"),
            cadence=spec.partitions.as_cadence,
            asked=asked,
            primary_key=spec.features.primary_key,
            workers=workers,
        )

    def change(
        self, before: NDArray[np.float64], after: NDArray[np.float64], measured: EvaluationSpec
    ) -> Difference:
        """Return the change of the metrics of `measured` between two models' predictions on these rows.

        Raises `EvaluationInputError`.
        """
        return difference(
            self.holdout,
            in_range(before, self.asked.objective),
            in_range(after, self.asked.objective),
            measured,
            own_metrics=own_metrics(measured),
            label=self.asked.label,
            weight=self.weight,
            classes=self.asked.classes,
        )

    def seen_by(self, bundle: Bundle) -> list[str]:
        """Return the partitions of the holdout of which the model has seen a day (`Lineage.seen`)."""
        seen = bundle.facts.lineage.seen
        return [key for key in self.partitions if seen & Days.of([self.cadence.bounds(key)])]


def with_class_ids(rows: pl.DataFrame, label: str, classes: tuple[str, ...]) -> pl.DataFrame:
    """Return `rows` with the number of its class in place of each label; unchanged without classes."""
    return rows.with_columns(class_ids(rows[label], classes).alias(label)) if classes else rows


def without_slices(evaluation: EvaluationSpec) -> EvaluationSpec:
    """Return a declaration that measures all rows together, without gates."""
    return evaluation.model_copy(update={"slices": (), "gates": ()})


def rival_of(
    spec: PipelineSpec, platform: Platform, challenger_digest: str, rows: MeasuredRows
) -> Rival | None:
    """Score the champion on the challenger's holdout.

    Returns None if no version is in production, or the challenger itself is. A champion trained on another version of
    the table reads the challenger's rows; its own snapshot only shows the partitions it was trained on. Server errors
    are raised, since a retry of the step may succeed.
    """
    promotion = releases_of(platform).in_production(spec.name)
    if promotion is None or promotion.bundle_digest == challenger_digest:
        return None
    name, digest = f"version {promotion.version}", promotion.bundle_digest
    try:
        bundle = opened(platform, digest)
        predictions = scored(bundle, rows)
    except CannotScore as error:
        return Rival(bundle_digest=digest, champion=Champion(name, cannot_score=str(error)), predictions=None)
    champion = Champion.compare(
        name,
        trained_on=rows.seen_by(bundle),
        holdout=rows.partitions,
        weight=bundle.facts.lineage.weight,
    )
    return Rival(
        bundle_digest=digest, champion=champion, predictions=predictions, columns=_columns_of(bundle)
    )


def champion_columns(spec: PipelineSpec, platform: Platform) -> tuple[str, ...]:
    """Return the columns that the version in production reads; empty without one, and if its bundle is lost."""
    champion = _champion(spec, platform)
    return () if champion is None else _columns_of(champion[1])


def champion_has_seen(spec: PipelineSpec, platform: Platform, window: Sequence[str]) -> str:
    """Return the sentence on a champion that has seen days of the holdout of `window`; empty if it has not.

    Also empty without a champion, and if its bundle is lost: then it cannot score the holdout at all.
    """
    if (champion := _champion(spec, platform)) is None:
        return ""
    both = champion[1].facts.lineage.seen & spec.holdout_of(window)
    return f"version {champion[0]} has seen {both} of the holdout, so no gate can bless" if both else ""


def _champion(spec: PipelineSpec, platform: Platform) -> tuple[str, Bundle] | None:
    """Return number and bundle of the version in production; None without one, and if its bundle is lost.

    Reads the ledger alone and corrects nothing in MLflow: a plan changes nothing, and MLflow takes seconds to import.
    """
    promotion = platform.ledger.models.in_production(spec.name)
    with suppress(CannotScore):
        return None if promotion is None else (promotion.version, opened(platform, promotion.bundle_digest))
    return None


def _columns_of(bundle: Bundle) -> tuple[str, ...]:
    blob = bundle.facts.blob
    return (*(one.name for one in bundle.facts.inputs), *(() if blob is None else (blob.column,)))


class CannotScore(Exception):
    """A stored model has no predictions for some rows. The message has the reason."""


def scored(bundle: Bundle, rows: MeasuredRows) -> NDArray[np.float64]:
    """Return the predictions of `bundle` on `rows`.

    Raises `CannotScore` also for a model that answers another question than asked, or with values that cannot be its
    answer. Server errors are raised as they are, since a retry may succeed.
    """
    if other := bundle.facts.question.other_than(rows.asked):
        raise CannotScore(other)
    try:
        model = ServingModel.load(bundle.folder)
        predictions = predictions_of(model, rows.rows, rows.primary_key, bundle.digest, rows.workers)
    except (InputRefused, GraphFailed, BundleRefused, GoldenMismatch) as error:
        raise CannotScore(str(error)) from error
    if fault := prediction_fault(predictions, rows.asked.objective):
        raise CannotScore(f"its predictions {fault}")
    return predictions


def opened(platform: Platform, digest: str) -> Bundle:
    """Return a stored bundle. Raises `CannotScore` if it is lost or damaged."""
    try:
        return bundles_of(platform).open(digest)
    except (BundleMissing, BundleDamaged) as error:
        raise CannotScore(str(error)) from error


def compared_models(
    spec: PipelineSpec, platform: Platform, rows: MeasuredRows, challenger: NDArray[np.float64]
) -> Iterator[ComparedModel]:
    """Yield each model of `evaluation.compared_with`, measured on `rows` like the challenger with these predictions.

    Errors of servers are raised, since a retry of the step may succeed.
    """
    measured = without_slices(spec.evaluation)
    for declared in spec.evaluation.compared_with:
        try:
            version = _version(platform, declared)
        except CannotScore as missing:
            yield ComparedModel(name=declared, bundle="", cannot_score=str(missing))
            continue
        name, digest = f"{version.model}, version {version.number}", version.bundle_digest
        try:
            bundle = opened(platform, digest)
            change = rows.change(scored(bundle, rows), challenger, measured)
        except (CannotScore, EvaluationInputError) as error:
            yield ComparedModel(name=name, bundle=digest, cannot_score=str(error))
            continue
        yield ComparedModel(
            name=name,
            bundle=digest,
            seen=tuple(rows.seen_by(bundle)),
            weight=bundle.facts.lineage.weight,
            metrics={one.metric.name: one.before for one in change.overall if np.isfinite(one.before)},
            improvements={one.metric.name: one.improvement for one in change.overall},
        )


def _version(platform: Platform, declared: str) -> RegisteredVersion:
    """Return the version that a name in `compared_with` means now. Raises `CannotScore` if there is none."""
    model, _, number = declared.partition("/")
    try:
        version = version_to_show(platform, model, int(number) if number else None)
    except VersionMissing as missing:
        raise CannotScore(str(missing)) from missing
    if version is None:
        raise CannotScore(f"it has no registered version yet; `ml-assets launch {model} PARTITION` makes one")
    return version
