"""Champion beside a challenger: its predictions on the same holdout, or the reason for which it has none.

A champion that cannot score today's rows is an outcome for the gates, never an error: the challenger is trained by
then. Not here: the decision (`evaluation.comparison.gates`), the version in production (`release.promotion`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ml_assets.data.tables.cadence import Cadence
from ml_assets.foundation.days import Days
from ml_assets.model.steps.blob_decoding import predicted
from ml_assets.model.steps.spec import PipelineSpec
from resources.platform import Platform

if TYPE_CHECKING:
    import polars as pl

    from ml_assets.model.evaluation.comparison.gates import Champion
    from ml_assets.model.release.bundle_store import Bundle
    from ml_assets.model.release.question import Question


@dataclass(frozen=True, kw_only=True)
class Rival:
    """Champion, as one evaluation sees it."""

    bundle_digest: str
    champion: "Champion"
    predictions: NDArray[np.float64] | None
    """`[rows]` on the holdout; None exactly if `champion.cannot_score` has a reason."""
    columns: tuple[str, ...] = ()
    """Columns that it reads; empty if it has no predictions."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRows:
    """Rows on which models are compared, and what they are asked."""

    holdout: "pl.DataFrame"
    weight: str | None
    """Column with the weights of the rows; None if each row counts once."""
    partitions: tuple[str, ...]
    """Partition keys of the holdout."""
    cadence: Cadence
    """Partitions of the model."""
    table: "pl.LazyFrame"
    """Feature table with these rows, for blobs."""
    asked: "Question"
    primary_key: tuple[str, ...]
    """Columns that name a row in errors."""


def rival_of(
    spec: PipelineSpec, platform: Platform, challenger_digest: str, rows: MeasuredRows
) -> Rival | None:
    """Score the champion on the challenger's holdout.

    Returns None if no version is in production, or the challenger itself is. A champion trained on another version of
    the table reads the challenger's rows; its own snapshot only shows the partitions it was trained on. Server errors
    are raised, since a retry of the step may succeed.
    """
    from ml_assets.model.evaluation.comparison.gates import Champion
    from ml_assets.model.release.of_platform import releases_of

    promotion = releases_of(platform).in_production(spec.name)
    if promotion is None or promotion.bundle_digest == challenger_digest:
        return None
    name, digest = f"version {promotion.version}", promotion.bundle_digest
    try:
        bundle = opened(platform, digest)
        predictions = scored(bundle, rows)
    except CannotScore as error:
        return Rival(bundle_digest=digest, champion=Champion(name, cannot_score=str(error)), predictions=None)
    seen = partitions_seen(bundle, rows.cadence, rows.partitions)
    champion = Champion.compare(
        name, trained_on=seen, holdout=rows.partitions, weight=bundle.facts.lineage.weight
    )
    return Rival(
        bundle_digest=digest, champion=champion, predictions=predictions, columns=_columns_of(bundle)
    )


def champion_columns(spec: PipelineSpec, platform: Platform) -> tuple[str, ...]:
    """Return the columns that the version in production reads; empty without one, and if its bundle is lost."""
    from ml_assets.model.release.of_platform import releases_of

    promotion = releases_of(platform).in_production(spec.name)
    if promotion is None:
        return ()
    try:
        return _columns_of(opened(platform, promotion.bundle_digest))
    except CannotScore:
        return ()


def _columns_of(bundle: "Bundle") -> tuple[str, ...]:
    blob = bundle.facts.blob
    return (*(one.name for one in bundle.facts.inputs), *(() if blob is None else (blob.column,)))


def partitions_seen(bundle: "Bundle", cadence: Cadence, partitions: Sequence[str]) -> list[str]:
    """Return those of `partitions` of which the model has seen a day (`Lineage.seen`)."""
    seen = bundle.facts.lineage.seen
    return [key for key in partitions if seen & Days.of([cadence.bounds(key)])]


def champion_has_seen(spec: PipelineSpec, platform: Platform, window: Sequence[str]) -> str:
    """Return the sentence on a champion that has seen days of the holdout of `window`; empty if it has not.

    Also empty without a champion, and if its bundle is lost: then it cannot score the holdout at all.
    """
    from ml_assets.model.release.of_platform import releases_of

    promotion = releases_of(platform).in_production(spec.name)
    if promotion is None:
        return ""
    try:
        seen = opened(platform, promotion.bundle_digest).facts.lineage.seen
    except CannotScore:
        return ""
    both = seen & spec.holdout_of(window)
    return f"version {promotion.version} has seen {both} of the holdout, so no gate can bless" if both else ""


class CannotScore(Exception):
    """A stored model has no predictions for some rows. The message has the reason."""


def scored(bundle: "Bundle", rows: MeasuredRows) -> NDArray[np.float64]:
    """Return the predictions of `bundle` on `rows`.

    Raises `CannotScore` also for a model that answers another question than asked, or with values that cannot be its
    answer. Server errors are raised as they are, since a retry may succeed.
    """
    from ml_assets.model.release.runtime import BundleRefused, GoldenMismatch, GraphFailed, InputRefused

    try:
        return _predictions(bundle, rows)
    except (_NotComparable, InputRefused, GraphFailed, BundleRefused, GoldenMismatch) as error:
        raise CannotScore(str(error)) from error


def opened(platform: Platform, digest: str) -> "Bundle":
    """Return a stored bundle. Raises `CannotScore` if it is lost or damaged."""
    from ml_assets.model.release.bundle_store import BundleDamaged, BundleMissing
    from ml_assets.model.release.of_platform import bundles_of

    try:
        return bundles_of(platform).open(digest)
    except (BundleMissing, BundleDamaged) as error:
        raise CannotScore(str(error)) from error


class _NotComparable(Exception):
    """The champion answers another question, or its answers cannot be measured."""


def _predictions(bundle: "Bundle", rows: MeasuredRows) -> NDArray[np.float64]:
    from ml_assets.model.evaluation.comparison.holdout_rows import prediction_fault
    from ml_assets.model.release.runtime import ServingModel

    if difference := bundle.facts.question.other_than(rows.asked):
        raise _NotComparable(difference)
    predictions = predicted(ServingModel.load(bundle.folder), rows.holdout, rows.table, rows.primary_key)
    if fault := prediction_fault(predictions, rows.asked.objective):
        raise _NotComparable(f"its predictions {fault}")
    return predictions
