"""Other registered models on a challenger's holdout: `evaluation.compared_with`.

For reports: a network beside trees that read the same columns, for example. No gate uses these figures, so a model that
cannot be scored costs a sentence and never the run. Not here: the champion, which gates use (`champion`).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ml_assets.model.steps.champion import CannotScore, MeasuredRows, opened, partitions_seen, scored
from ml_assets.model.steps.metric_functions import own_metrics
from ml_assets.model.steps.model_card import version_to_show
from ml_assets.model.steps.spec import PipelineSpec
from resources.platform import Platform

if TYPE_CHECKING:
    from ml_assets.model.evaluation.report_document import ComparedModel
    from ml_assets.model.release.registry import RegisteredVersion


def compared_models(
    spec: PipelineSpec, platform: Platform, rows: MeasuredRows, challenger: NDArray[np.float64]
) -> "Iterator[ComparedModel]":
    """Yield each model of `evaluation.compared_with`, measured on `rows` like the challenger with these predictions.

    Errors of servers are raised, since a retry of the step may succeed.
    """
    from ml_assets.model.evaluation.comparison.holdout_rows import in_range
    from ml_assets.model.evaluation.comparison.model_difference import difference
    from ml_assets.model.evaluation.errors import EvaluationInputError
    from ml_assets.model.evaluation.report_document import ComparedModel

    measured = spec.evaluation.model_copy(update={"slices": (), "gates": ()})
    for declared in spec.evaluation.compared_with:
        try:
            version = _version(platform, declared)
        except CannotScore as missing:
            yield ComparedModel(name=declared, bundle="", cannot_score=str(missing))
            continue
        name, digest = f"{version.model}, version {version.number}", version.bundle_digest
        try:
            bundle = opened(platform, digest)
            predictions = scored(bundle, rows)
            change = difference(
                rows.holdout,
                in_range(predictions, rows.asked.objective),
                in_range(challenger, rows.asked.objective),
                measured,
                own_metrics=own_metrics(spec.evaluation),
                label=rows.asked.label,
                weight=rows.weight,
                classes=rows.asked.classes,
            )
        except (CannotScore, EvaluationInputError) as error:
            yield ComparedModel(name=name, bundle=digest, cannot_score=str(error))
            continue
        yield ComparedModel(
            name=name,
            bundle=digest,
            seen=tuple(partitions_seen(bundle, rows.cadence, rows.partitions)),
            weight=bundle.facts.lineage.weight,
            metrics={one.metric.name: one.before for one in change.overall if np.isfinite(one.before)},
            improvements={one.metric.name: one.improvement for one in change.overall},
        )


def _version(platform: Platform, declared: str) -> "RegisteredVersion":
    """Return the version that a name in `compared_with` means now. Raises `CannotScore` if there is none."""
    from ml_assets.model.release.registry import VersionMissing

    model, _, number = declared.partition("/")
    try:
        version = version_to_show(platform, model, int(number) if number else None)
    except VersionMissing as missing:
        raise CannotScore(str(missing)) from missing
    if version is None:
        raise CannotScore(f"it has no registered version yet; `ml-assets launch {model} PARTITION` makes one")
    return version
