"""Reviews by persons, and their acceptance of other rules."""

from ml_assets.model.release.promotion import promotable
from ml_assets.model.release.registry import RegisteredVersion
from ml_assets.model.release.releases import (
    NotPromotable,
    NotReviewable,
    Overtaken,
    Releases,
    RulesNotAccepted,
    require_reason,
    until_not_overtaken,
)
from ml_assets.model.release.rules import (
    Rules,
    deciding_review,
    why_not_by,
    why_not_past_gates,
    why_unchecked,
)
from ml_assets.model.release.rules_in_force import (
    RulesLog,
    agree,
    as_json,
    is_confirmed_by,
    why_not_changed_by,
    why_other,
)
from ml_assets.model.release.standing import PRODUCTION, BundleStanding
from resources.ledger import EvaluationRow, Person, Review, RulesRow


def review(
    releases: Releases,
    model: str,
    number: int,
    *,
    approves: bool,
    by: Person,
    reason: str,
    rules: Rules,
    read: str | None = None,
) -> Review:
    """Approve or reject the newest evaluation of a version; return the review. `read` is the digest of the
    evaluation that the reviewer read: it is refused if another evaluation followed.

    One review decides about an evaluation. A rejection after an approval takes the approval back; an approval after
    a rejection is refused. Repeating the same decision returns the first review. Raises `NotReviewable` if `rules`
    do not allow it, and `VersionMissing`.
    """
    what = "approving" if approves else "rejecting"
    require_reason(reason, f"{what} {model} {number}", NotReviewable)
    approval = rules.approval
    if why := why_other(RulesLog.read(releases.ledger, model), rules):
        raise NotReviewable(f"{what} {model} {number} is not allowed: {why}", "rules")
    if approval is None:
        raise NotReviewable(
            f"{model} has no `approval` under `release` in defs.yaml, so promote asks for none: add it first",
            "approval",
        )
    version = releases.version(model, number)

    def decide() -> Review:
        found = releases.standings(model).of(version.bundle_digest)
        evaluation = found.newest
        if evaluation is None:
            raise NotReviewable(
                f"{version.named} was never evaluated: materialize the model first", "evaluation"
            )
        if read is not None and evaluation.evaluation_digest != read:
            raise NotReviewable(
                f"{version.named} was evaluated again at {evaluation.at:%Y-%m-%d %H:%M} UTC ({evaluation.name}): "
                "read that evaluation first",
                "meanwhile",
            )
        if why := why_not_by(by.name, approval, found.evaluations):
            raise NotReviewable(f"{version.named}: {what} it is not allowed: {why}", "reviewer")
        if approves and evaluation.status != "blessed":
            raise NotReviewable(
                f"{version.named} is {evaluation.status}, not blessed, by its newest evaluation "
                f"{evaluation.name}: an approval would not help. {evaluation.summary} Report: {evaluation.report}",
                "evaluation",
            )
        if (
            approves
            and found.promotion is None
            and (why := why_not_past_gates(rules, PRODUCTION, evaluation))
        ):
            raise NotReviewable(f"{version.named}: an approval would not help: {why}", "gates")
        accounts, recorded = releases.persons_and_rules(model)
        if approves and (why := why_unchecked(approval, evaluation, accounts)):
            raise NotReviewable(f"{version.named} is not approved: {why}", "author")
        before = deciding_review(evaluation, found, accounts)
        if before is not None and before.approves == approves:
            return before
        if before is not None and approves:
            raise NotReviewable(
                f"{version.named} was rejected by {before.author} at {before.at:%Y-%m-%d %H:%M} UTC: "
                f"{before.reason}. A rejection of an evaluation stands: materialize the model on another date",
                "rejection",
            )

        def allow() -> None:
            now = releases.standings(model).of(version.bundle_digest)
            if (now.newest, now.reviews) != (found.newest, found.reviews):
                raise Overtaken
            if releases.persons_and_rules(model) != (accounts, recorded):
                raise Overtaken

        return releases.log.review(
            evaluation,
            str(number),
            approves=approves,
            by=by,
            reason=reason,
            rules=as_json(rules),
            under=recorded.digest,
            allow=allow,
        )

    return until_not_overtaken(decide)


def waiting(releases: Releases, model: str, rules: Rules) -> list[tuple[RegisteredVersion, EvaluationRow]]:
    """Return the versions that wait for an approval, newest data first, each with the evaluation to review.

    These could be promoted if somebody approved them. Empty if `rules` ask for no approval.
    """
    if rules.approval is None:
        return []
    found: list[tuple[RegisteredVersion, EvaluationRow]] = []
    standings = releases.standings(model)
    for version in releases.registry.versions(model):
        try:
            standing, evaluation = promotable(version, standings)
        except NotPromotable:
            continue
        if waits_for_approval(releases, standing, rules):
            found.append((version, evaluation))
    return sorted(found, key=lambda one: (one[1].partition, one[0].number), reverse=True)


def waits_for_approval(releases: Releases, found: BundleStanding, rules: Rules) -> bool:
    """Return True if a bundle could be promoted but for the approval of its newest evaluation."""
    if rules.approval is None or found.promotion is not None or not found.may_be_promoted:
        return False
    if found.newest is None or why_not_past_gates(rules, PRODUCTION, found.newest):
        return False
    return deciding_review(found.newest, found, releases.ledger.accounts.all()) is None


def accept_rules(releases: Releases, model: str, rules: Rules, *, by: Person, reason: str) -> RulesRow:
    """Put `rules` in force from now on; return their row, or that of the same rules in force already.

    If another person accepted the same rules, `by` confirms them with a row: then two persons decided.
    Raises `RulesNotAccepted` unless `by` may approve under the rules in force, or if they changed meanwhile.
    """
    require_reason(reason, f"accepting the rules of {model}", RulesNotAccepted)
    recorded = RulesLog.read(releases.ledger, model)
    newest = recorded.newest
    if newest and agree(newest, rules) and not is_confirmed_by(by.name, recorded):
        return newest

    def allow() -> None:
        now = RulesLog.read(releases.ledger, model)
        if now != recorded:
            raise RulesNotAccepted(
                f"the rules of {model} changed since this command began: look at them with ml-assets rules show "
                f"{model}",
                "meanwhile",
            )
        standings = releases.standings(model)
        bundles = {one.bundle_digest: standings.of(one.bundle_digest) for one in standings.evaluations}
        promotable = [
            one.newest
            for one in bundles.values()
            if one.newest is not None and one.may_be_promoted and one.promotion is None
        ]
        # The ledger refuses a person whom nobody checked, with its own message.
        accounts = releases.ledger.accounts.all() if by.checked_by != "nobody" else []
        if why := why_not_changed_by(by.name, now, standings.evaluations, promotable, accounts):
            raise RulesNotAccepted(f"the rules of {model} stay as they are: {why}", "reviewer")

    return releases.log.accept_rules(model, as_json(rules), by, reason=reason, allow=allow)
