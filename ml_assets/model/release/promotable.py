"""Conditions of a promotion: evaluation, stage, reviews, evidence of the canary. Each refusal names the remedy.

Not here: gates of a transition and the words about approvals (`rules`), rejected inputs (`promotion`).
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from ml_assets.model.release.bundle_standing import CANARY, PRODUCTION, BundleStanding, BundleStandings
from ml_assets.model.release.refusals import NotPromotable
from ml_assets.model.release.registry import RegisteredVersion
from ml_assets.model.release.rows_behind import in_words
from ml_assets.model.release.rules import Rules, why_not_approved, why_rejected
from resources.ledger import Account, EvaluationRow


def promotable(
    version: RegisteredVersion, standings: BundleStandings
) -> tuple[BundleStanding, EvaluationRow]:
    """Return the standing of `version`, and the evaluation to record with its promotion.

    Raises `NotPromotable` if its evaluations do not allow a promotion.
    """
    found, champion = standings.of(version.bundle_digest), standings.in_production
    name, newest = named(version), found.shown
    if found.archival is not None:
        raise NotPromotable(
            f"{name} was archived at {found.archival.at:%Y-%m-%d %H:%M} UTC by {found.archival.author}: "
            f"{found.archival.reason}. An archived version stays out of production: materialize the model on "
            "another date, or promote another version"
        )
    if newest is None:
        raise NotPromotable(
            f"{name} was never evaluated: materialize the model, then promote the version that it registers"
        )
    if found.promotion is not None:
        return found, newest
    if newest.status != "blessed":
        raise NotPromotable(
            f"{name} is {newest.status}, not blessed, by its newest evaluation {newest.name} "
            f"({newest.partition}): {newest.summary} The report shows the condition under which each rule "
            f"passes: {newest.report}. Materialize the model on a later date, or change the gates in defs.yaml"
        )
    if champion is not None and champion.bundle_digest != newest.champion_digest:
        raise NotPromotable(
            f"the newest evaluation {newest.name} ({newest.partition}) of {name} compared it with "
            f"{standings.name_of(newest.champion_digest)}, but version {champion.version} is in "
            f"production since {champion.at:%Y-%m-%d %H:%M} UTC. Compare it with that version; the "
            f"training is reused: ml-assets launch {version.model} {newest.partition}"
        )
    return found, newest


def next_role(version: RegisteredVersion, found: BundleStanding, rules: Rules, now: datetime) -> str:
    """Return the role that a promotion gives to a version at `now`. Raise `NotPromotable` while a canary bakes.

    A version that was in production before returns there without being canary again.
    """
    if rules.canary is None or found.promotion is not None:
        return PRODUCTION
    if found.canary is None:
        return CANARY
    baked = rules.canary.end_of_bake(found.canary.at)
    if now < baked:
        raise NotPromotable(
            f"{named(version)} is the canary since {found.canary.at:%Y-%m-%d %H:%M} UTC, and "
            f"release.canary.bake_hours in defs.yaml is {rules.canary.bake_hours or 0:g}: promote it from "
            f"{in_full_minutes(baked)} on, or take it back: ml-assets demote {version.model} --canary --reason '…'. "
            "Another version becomes the canary if you give its number"
        )
    return PRODUCTION


def require_reviews(
    version: RegisteredVersion,
    found: BundleStanding,
    evaluation: EvaluationRow,
    role: str,
    promoter: str,
    rules: Rules,
    accounts: Sequence[Account],
) -> None:
    """Raise `NotPromotable` if a reviewer rejected `evaluation`, or if production needs an approval that is missing."""
    if why := why_rejected(rules.approval, evaluation, found.reviews):
        raise NotPromotable(
            f"{named(version)} is not promoted: {why} A rejection of an evaluation stands: materialize the model on "
            "another date, or promote another version"
        )
    if role != PRODUCTION:
        return
    if why := why_not_approved(
        promoter, rules.approval, evaluation, found.evaluations, found.reviews, accounts
    ):
        raise NotPromotable(
            f"{named(version)} is not promoted: {why} To approve it: ml-assets approve {version.model} "
            f"{version.number} --reason '…'"
        )


def require_not_worse(version: RegisteredVersion, evidence: str) -> None:
    """Raise `NotPromotable` if there is evidence that the canary is worse than the champion."""
    if evidence:
        raise NotPromotable(
            f"{named(version)} is not promoted: as canary it is {evidence}. To take it back: ml-assets demote "
            f"{version.model} --canary --reason '…'"
        )


def stays_canary(found: BundleStanding, rules: Rules) -> bool:
    """Return True if neither the newest evaluation nor a reviewer rejected the canary `found`."""
    newest = found.newest
    return (
        found.may_be_promoted
        and newest is not None
        and not why_rejected(rules.approval, newest, found.reviews)
    )


def in_full_minutes(moment: datetime) -> str:
    """Return the first full minute from `moment` on, for people: before it, a command may still be refused."""
    return f"{moment + timedelta(minutes=1) - timedelta(microseconds=1):%Y-%m-%d %H:%M} UTC"


def named(version: RegisteredVersion) -> str:
    return f"{version.model} {version.number} ({version.semantic})"


def not_on_these_inputs(version: RegisteredVersion, despite: Mapping[str, str]) -> str:
    return (
        f"{named(version)} is not promoted because of its training inputs: {in_words(despite)}. Fix the "
        f"source and materialize the partition, or accept it (ml-assets accept TABLE PARTITION --reason '…'). "
        f"If its rows were replaced since, materialize the model again. To promote the version anyway, on "
        f"record in the log: ml-assets promote {version.model} {version.number} --despite-inputs --reason '…'"
    )
