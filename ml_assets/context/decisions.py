"""Decisions of a person about versions, their rules and partitions, each with all that the person should be told.

The rules are those of the declared model; whether they count, and whether the person may decide, the functions of
`ml_assets.model.release` look up in the ledger.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from ml_assets.context.errors import NotFound
from ml_assets.context.project import Project
from ml_assets.data.tables.publish.rejected import accept_level, accept_partition
from ml_assets.model.release import promotion as promoting
from ml_assets.model.release import reviews, rollback
from ml_assets.model.release.bundle_store import BundleDamaged, BundleMissing
from ml_assets.model.release.releases import Releases, releases_of
from ml_assets.model.release.rules import Rules
from ml_assets.model.release.rules_in_force import RulesLog
from ml_assets.model.release.standing import CANARY, PRODUCTION
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.use.live.canary_watch import evidence
from resources.ledger import Acceptance, Archival, EvaluationRow, Person, Promotion, Review, RulesRow
from resources.platform import Platform


@dataclass(frozen=True, kw_only=True)
class Promoted:
    """Result of a promotion."""

    version: int
    promotion: Promotion
    before: Promotion | None
    """Promotion that was in production before; equal to `promotion` if nothing changed."""
    replaced: Promotion | None
    """Promotion whose place it took; None without one."""
    breaks: Sequence[str]
    """Changes that break clients of the version that was in production, a clause each."""
    baked_at: datetime | None
    """End of the bake time, UTC, of a version that became the canary; None for one in production."""


@dataclass(frozen=True, kw_only=True)
class Reviewed:
    """Result of an approval or a rejection."""

    review: Review
    """Review that decides: an earlier one, if it has the same result."""
    is_new: bool
    unchecked: Sequence[str]
    """Names under which somebody ran an evaluation of the version, and that nobody checked; without the reviewer's."""


@dataclass(frozen=True, kw_only=True)
class RolledBack:
    """Result of a rollback."""

    promotion: Promotion
    replaced: Promotion | None
    evaluated_since: EvaluationRow | None
    """Evaluation of the version that is newer than the one of its promotion."""


@dataclass(frozen=True, kw_only=True)
class AcceptedRules:
    """Result of an acceptance of rules."""

    rules: Rules
    row: RulesRow
    before: RulesRow | None
    """Row of the rules that were in force; equal to `row` if nothing changed."""


def promote(
    platform: Platform,
    spec: PipelineSpec,
    version: int | None,
    *,
    by: Person,
    reason: str,
    despite_inputs: bool,
    on_missing: Callable[[str], None],
) -> Promoted:
    """Promote a version, by default the canary, without one the blessed version with the newest data."""
    model, rules, releases = spec.name, spec.rules, releases_of(platform)
    if version is None:
        # Without one that may be promoted, the refusal of the newest says what keeps it back.
        newest = promoting.newest_data(releases, model, rules) or promoting.newest_never_promoted(
            releases, model
        )
        if newest is None:
            raise NotFound(
                f"{model} has no version that is new to production. Materialize the model: ml-assets launch "
                f"{model} DATE, or name an earlier version: ml-assets promote {model} NUMBER --reason '…'"
            )
        version = newest.number
    before = releases.log.in_production(model)
    breaks: list[str] = []
    # A damaged bundle of the version in production must not delay the version that replaces it.
    with suppress(BundleMissing, BundleDamaged):
        breaks = promoting.breaks_for_clients(releases, model, version)

    made = promoting.promote(
        releases,
        model,
        version,
        by=by,
        reason=reason,
        despite_inputs=despite_inputs,
        rules=rules,
        why_worse=lambda canary: _why_worse(spec, platform, canary, on_missing),
    )
    bakes = made.alias == CANARY and rules.canary is not None
    return Promoted(
        version=version,
        promotion=made,
        before=before,
        replaced=rollback.replaced_by(releases, made) if bakes else None,
        breaks=breaks,
        baked_at=rules.canary.end_of_bake(made.at) if bakes and rules.canary is not None else None,
    )


def _why_worse(
    spec: PipelineSpec, platform: Platform, canary: Promotion, on_missing: Callable[[str], None]
) -> str:
    """Return the evidence that `canary` is worse than allowed; empty without any."""
    if spec.release.canary is None or not spec.release.canary.watch:
        return ""
    state = evidence(spec, platform)
    if state.canary != canary:  # replaced meanwhile: the promotion finds that, too
        return ""
    for why in state.missing:
        on_missing(why)
    return state.why_worse


def review(
    releases: Releases,
    model: str,
    version: int,
    *,
    approves: bool,
    by: Person,
    reason: str,
    rules: Rules,
    read: str | None = None,
) -> Reviewed:
    """Approve or reject the newest evaluation of a version; see `reviews.review`."""
    decided = reviews.review(
        releases, model, version, approves=approves, by=by, reason=reason, rules=rules, read=read
    )
    evaluations = releases.standings(model).of(decided.bundle_digest).evaluations
    return Reviewed(
        review=decided,
        is_new=(decided.author, decided.reason) == (by.name, reason),
        unchecked=sorted({one.author for one in evaluations if one.checked_by == "nobody"} - {by.name}),
    )


def roll_back(releases: Releases, model: str, *, by: Person, reason: str) -> RolledBack:
    """Return to the version that was in production before the present one."""
    made = rollback.rollback(releases, model, by=by, reason=reason)
    newest = releases.standings(model).of(made.bundle_digest).newest
    is_newer = newest is not None and newest.evaluation_digest != made.evaluation_digest
    return RolledBack(
        promotion=made,
        replaced=rollback.replaced_by(releases, made),
        evaluated_since=newest if is_newer else None,
    )


def demote(releases: Releases, model: str, *, by: Person, reason: str, canary: bool) -> Promotion:
    """Take the version in production, or the canary, out of its place; return the promotion that ended."""
    return rollback.demote(releases, model, by=by, reason=reason, role=CANARY if canary else PRODUCTION)


def archive(releases: Releases, model: str, version: int, *, by: Person, reason: str) -> Archival:
    """Take a version out of use for good."""
    return rollback.archive(releases, model, version, by=by, reason=reason)


def accept_rules(releases: Releases, model: str, rules: Rules, *, by: Person, reason: str) -> AcceptedRules:
    """Put rules in force for a model."""
    before = RulesLog.read(releases.ledger, model).newest
    row = reviews.accept_rules(releases, model, rules, by=by, reason=reason)
    return AcceptedRules(rules=rules, row=row, before=before)


def accept(project: Project, table: str, partition: str, *, by: Person, reason: str) -> list[Acceptance]:
    """Put the rejected rows of a partition on main as they are; of a range `FIRST..LAST`, as a new level."""
    from ml_assets.components.sensors.reconcile import report_acceptance

    lake, ledger = project.platform.lake, project.platform.ledger
    first, dots, last = partition.partition("..")
    if dots:
        found = list(accept_level(lake, ledger, table, first, last, by=by, reason=reason))
    else:
        found = [accept_partition(lake, ledger, table, partition, by=by, reason=reason)]
    for acceptance in found:
        report_acceptance(project.instance, project.reader(), ledger, acceptance)
    return found
