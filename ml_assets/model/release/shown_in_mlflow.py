"""Content of MLflow's registry that follows from the ledger: aliases and tags of versions.

`mlflow_view` writes it there, and `mlflow_guard` lets nobody write anything else. Not here: the writing itself, and the
decisions behind it.
"""

from collections.abc import Sequence

from ml_assets.model.release.bundle_standing import CANARY, PRODUCTION, BundleStanding, BundleStandings
from ml_assets.model.release.registry import RegisteredVersion
from resources.ledger import Promotion

ALIASES = (PRODUCTION, CANARY)
"""Aliases that follow the ledger."""
DECIDED_TAGS = ("stage", "gate_status", "evaluation", "report")
"""Tags of a version that follow the ledger."""


def holder_of(alias: str, standings: BundleStandings) -> Promotion | None:
    """Return the promotion whose version has `alias` by the ledger; None if no version has it."""
    return standings.canary if alias == CANARY else standings.in_production


def number_of(held: Promotion | None, versions: Sequence[RegisteredVersion]) -> int | None:
    """Return MLflow's number of the promoted version; None if there is none, or MLflow does not have it.

    `versions` are all versions of the model, oldest first: of several with one bundle, the oldest counts.
    """
    return next((one.number for one in versions if held and one.bundle_digest == held.bundle_digest), None)


def tags_of(found: BundleStanding) -> dict[str, str]:
    """Return the tags of a version for its stage and evaluation: all of `DECIDED_TAGS`, or `stage` alone."""
    if found.shown is None:
        return {"stage": found.stage}
    return {
        "stage": found.stage,
        "gate_status": found.shown.status,
        "evaluation": found.shown.name,
        "report": found.shown.report,
    }
