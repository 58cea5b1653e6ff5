"""Version in production and versions that wait for an approval, as facts for people.

Not here: the decisions (`release.promotion`), and the page (`components.sensors.models`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ml_assets.model.steps.links import report_name
from ml_assets.model.steps.spec import PipelineSpec
from resources.ledger import Promotion, author_in_words
from resources.platform import Platform

if TYPE_CHECKING:
    from ml_assets.model.release.registry import RegisteredVersion
    from resources.ledger import EvaluationRow


@dataclass(frozen=True, kw_only=True)
class ProductionFacts:
    """Newest decision about the version in production."""

    place: int
    """Place of the decision in the ledger."""
    headline: str
    facts: dict[str, str]
    """Name → text: version, time, person, reason, window of its data."""
    report: str
    """Folder of the report of its evaluation among the artifacts; empty if nothing is in production."""
    is_live: bool


def production_of(platform: Platform, model: str) -> ProductionFacts | None:
    """Return what the newest promotion, rollback or demotion made of production; None before the first."""
    log = platform.ledger.models
    promotions = [one for one in log.promotions(model) if one.alias == "production"]
    if not promotions:
        return None
    newest = promotions[-1]
    if (ended := newest.demotion) is not None:
        return ProductionFacts(
            place=ended.place,
            headline=f"nothing is in production: version {newest.version} was demoted",
            facts=_of(ended.at.isoformat(timespec="seconds"), author_in_words(ended), ended.reason),
            report="",
            is_live=False,
        )
    return _live(newest, log.evaluation(newest.evaluation_digest))


def waiting_for_approval(
    platform: Platform, spec: PipelineSpec
) -> "list[tuple[RegisteredVersion, EvaluationRow]]":
    """Return the versions that wait for an approval, newest data first; empty if the model asks for none."""
    if spec.release.approval is None:
        return []
    from ml_assets.model.release.of_platform import releases_of

    return releases_of(platform).waiting(spec.name, spec.rules)


def _live(promotion: Promotion, row: "EvaluationRow | None") -> ProductionFacts:
    verb = "promoted" if promotion.returns_to is None else "rolled back"
    window = {} if row is None else {"data": f"{row.trained_on.first} to {row.trained_on.last}"}
    return ProductionFacts(
        place=promotion.place,
        headline=f"version {promotion.version} is in production: {verb}",
        facts={
            "version": promotion.version,
            **_of(promotion.at.isoformat(timespec="seconds"), author_in_words(promotion), promotion.reason),
            **window,
            "bundle": promotion.bundle_digest,
        },
        report="" if row is None else report_name(row.model, row.partition, row.evaluation_digest),
        is_live=True,
    )


def _of(since: str, by: str, reason: str) -> dict[str, str]:
    return {"since": since, "by": by, "reason": reason}
