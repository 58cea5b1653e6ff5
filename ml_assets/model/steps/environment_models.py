"""Models trained in an environment, each compared with main's: on the same rows, or by the reports of both.

Here: finding the two and comparing them. Not here: the page (`environment_page`), the tables (`tables.environments`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ml_assets.model.steps.model_card import ReportUnavailable, evaluation_of, version_to_show
from ml_assets.model.steps.record import ReportUnreadable, recorded_report
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.model.steps.version_difference import VersionDifference, compare_versions
from resources.artifacts import ArtifactMissing
from resources.platform import Platform

if TYPE_CHECKING:
    from ml_assets.model.release.registry import RegisteredVersion
    from resources.ledger import EvaluationRow


@dataclass(frozen=True, kw_only=True)
class EnvironmentModel:
    """Newest model that an environment trained for one pipeline, beside main's."""

    model: str
    partition: str
    decision: str
    """Decision of the gates in the environment, in one sentence."""
    main: str
    """Version of main with which it is compared; empty if main has none."""
    measured: VersionDifference | None
    """Both on the same rows; None if one of them was not registered, or the environment does not know main's."""
    metrics: Mapping[str, tuple[str, str]]
    """Metric → value of main and of the environment, each on its own holdout; empty if `measured` has them."""


def models_trained_in(
    main: Platform, inside: Platform, specs: Mapping[str, PipelineSpec]
) -> list[EnvironmentModel]:
    """Return the newest model of each of the pipelines `specs` that the environment `inside` evaluated and main did
    not."""
    found: list[EnvironmentModel] = []
    for model, spec in specs.items():
        known = {one.evaluation_digest for one in main.ledger.models.evaluations(model)}
        news = [one for one in inside.ledger.models.evaluations(model) if one.evaluation_digest not in known]
        if news:
            found.append(_compared(main, inside, spec, news[-1]))
    return found


def _compared(main: Platform, inside: Platform, spec: PipelineSpec, row: "EvaluationRow") -> EnvironmentModel:
    before, after = version_to_show(main, row.model, None), _registered(inside, row)
    measured: VersionDifference | None = None
    if before is not None and after is not None:
        try:
            measured = compare_versions(spec, inside, before, after)
        except ReportUnavailable:  # main registered its version after the environment was created
            measured = None
    return EnvironmentModel(
        model=row.model,
        partition=row.partition,
        decision=f"{row.status}: {row.summary}",
        main="" if before is None else f"version {before.number} ({before.semantic})",
        measured=measured,
        metrics={} if measured is not None else _side_by_side(main, inside, before, row),
    )


def _registered(inside: Platform, row: "EvaluationRow") -> "RegisteredVersion | None":
    from ml_assets.model.release.of_platform import registry_of

    versions = registry_of(inside).versions(row.model)
    return next((one for one in versions if one.bundle_digest == row.bundle_digest), None)


def _side_by_side(
    main: Platform, inside: Platform, before: "RegisteredVersion | None", row: "EvaluationRow"
) -> dict[str, tuple[str, str]]:
    theirs = _metrics(inside, row)
    ours: dict[str, str] = {}
    if before is not None:
        try:
            ours = _metrics(main, evaluation_of(main, before))
        except ReportUnavailable:
            ours = {}
    return {name: (ours.get(name, "–"), theirs.get(name, "–")) for name in {**ours, **theirs}}


def _metrics(platform: Platform, row: "EvaluationRow") -> dict[str, str]:
    from ml_assets.model.evaluation.comparison.sentences import with_interval

    try:
        report = recorded_report(platform, row)
    except (ArtifactMissing, ReportUnreadable):
        return {}
    measured = report.evaluation.overall.metrics["challenger"]
    return {name: with_interval(one) for name, one in measured.items()}
