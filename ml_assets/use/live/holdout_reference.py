"""Predictions of a version on its holdout, with which its days are compared from the first one on."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from ml_assets.model.steps.record import ReportUnreadable, recorded_report
from resources.artifacts import ArtifactMissing
from resources.platform import Platform


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
