"""Reviews by persons, and their acceptance of other rules."""

from ml_assets.model.release.bundle_standing import PRODUCTION, BundleStanding, BundleStandings
from ml_assets.model.release.mlflow_view import MlflowView
from ml_assets.model.release.promotable import named, promotable
from ml_assets.model.release.refusals import (
    NotPromotable,
    NotReviewable,
    Overtaken,
    RulesNotAccepted,
    until_not_overtaken,
)
from ml_assets.model.release.registry import RegisteredVersion
from ml_assets.model.release.rules import (
    Rules,
    counting,
    review_of,
    why_not_by,
    why_not_past_gates,
    why_unchecked,
)
from ml_assets.model.release.rules_in_force import (
    agree,
    as_json,
    in_force,
    is_confirmed_by,
    why_not_changed_by,
    why_other,
)
from resources.ledger import EvaluationRow, Person, Review, RulesRow


class Reviews(MlflowView):
    """Approvals, rejections and accepted rules of all models."""

    def review(
        self,
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
        if not reason.strip():
            raise NotReviewable(f"{what} {model} {number} needs a reason for the log")
        approval = rules.approval
        if why := why_other(self._recorded(model), rules):
            raise NotReviewable(f"{what} {model} {number} is not allowed: {why}")
        if approval is None:
            raise NotReviewable(
                f"{model} has no `approval` under `release` in defs.yaml, so promote asks for none: add it first"
            )
        version = self.version(model, number)

        def decide() -> Review:
            found = self.standing(model, version.bundle_digest)
            evaluation = found.newest
            if evaluation is None:
                raise NotReviewable(f"{named(version)} was never evaluated: materialize the model first")
            if read is not None and evaluation.evaluation_digest != read:
                raise NotReviewable(
                    f"{named(version)} was evaluated again at {evaluation.at:%Y-%m-%d %H:%M} UTC ({evaluation.name}): "
                    "read that evaluation first"
                )
            if why := why_not_by(by.name, approval, found.evaluations):
                raise NotReviewable(f"{named(version)}: {what} it is not allowed: {why}")
            if approves and evaluation.status != "blessed":
                raise NotReviewable(
                    f"{named(version)} is {evaluation.status}, not blessed, by its newest evaluation "
                    f"{evaluation.name}: an approval would not help. {evaluation.summary} Report: {evaluation.report}"
                )
            if (
                approves
                and found.promotion is None
                and (why := why_not_past_gates(rules, PRODUCTION, evaluation))
            ):
                raise NotReviewable(f"{named(version)}: an approval would not help: {why}")
            accounts, recorded = self._ledger.accounts.all(), self._recorded(model)
            if approves and (why := why_unchecked(approval, evaluation, accounts)):
                raise NotReviewable(f"{named(version)} is not approved: {why}")
            before = self._deciding(evaluation, found)
            if before is not None and before.approves == approves:
                return before
            if before is not None and approves:
                raise NotReviewable(
                    f"{named(version)} was rejected by {before.author} at {before.at:%Y-%m-%d %H:%M} UTC: "
                    f"{before.reason}. A rejection of an evaluation stands: materialize the model on another date"
                )

            def allow() -> None:
                now = self.standing(model, version.bundle_digest)
                if (now.newest, now.reviews) != (found.newest, found.reviews):
                    raise Overtaken
                if (self._ledger.accounts.all(), self._recorded(model)) != (accounts, recorded):
                    raise Overtaken

            return self._log.review(
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

    def waiting(self, model: str, rules: Rules) -> list[tuple[RegisteredVersion, EvaluationRow]]:
        """Return the versions that wait for an approval, newest data first, each with the evaluation to review.

        These could be promoted if somebody approved them. Empty if `rules` ask for no approval.
        """
        if rules.approval is None:
            return []
        found: list[tuple[RegisteredVersion, EvaluationRow]] = []
        standings = BundleStandings.read(self._log, model)
        for version in self._registry.versions(model):
            try:
                standing, evaluation = promotable(version, standings)
            except NotPromotable:
                continue
            if self.waits_for_approval(standing, rules):
                found.append((version, evaluation))
        return sorted(found, key=lambda one: (one[1].partition, one[0].number), reverse=True)

    def waits_for_approval(self, found: BundleStanding, rules: Rules) -> bool:
        """Return True if a bundle could be promoted but for the approval of its newest evaluation."""
        if rules.approval is None or found.promotion is not None or not found.may_be_promoted:
            return False
        if found.newest is None or why_not_past_gates(rules, PRODUCTION, found.newest):
            return False
        return self.counting_review(found.newest) is None

    def counting_review(self, evaluation: EvaluationRow) -> Review | None:
        """Return the review that decides about an evaluation, or None."""
        return self._deciding(evaluation, self.standing(evaluation.model, evaluation.bundle_digest))

    def _deciding(self, evaluation: EvaluationRow, found: BundleStanding) -> Review | None:
        """Return the review that decides about an evaluation of the bundle `found`, or None."""
        return review_of(evaluation, counting(found.evaluations, found.reviews, self._ledger.accounts.all()))

    def rules(self, model: str) -> Rules:
        """Return the rules in force; no rules if none are recorded."""
        return in_force(self._recorded(model))

    def accept_rules(self, model: str, rules: Rules, *, by: Person, reason: str) -> RulesRow:
        """Put `rules` in force from now on; return their row, or that of the same rules in force already.

        If another person accepted the same rules, `by` confirms them with a row: then two persons decided.
        Raises `RulesNotAccepted` unless `by` may approve under the rules in force, or if they changed meanwhile.
        """
        if not reason.strip():
            raise RulesNotAccepted(f"accepting the rules of {model} needs a reason for the log")
        recorded = self._recorded(model)
        newest = recorded.newest
        if newest and agree(newest, rules) and not is_confirmed_by(by.name, recorded):
            return newest

        def allow() -> None:
            now = self._recorded(model)
            if now != recorded:
                raise RulesNotAccepted(
                    f"the rules of {model} changed since this command began: look at them with ml-assets rules show "
                    f"{model}"
                )
            standings = BundleStandings.read(self._log, model)
            bundles = {one.bundle_digest: standings.of(one.bundle_digest) for one in standings.evaluations}
            promotable = [
                one.newest
                for one in bundles.values()
                if one.newest is not None and one.may_be_promoted and one.promotion is None
            ]
            # The ledger refuses a person whom nobody checked, with its own message.
            accounts = self._ledger.accounts.all() if by.checked_by != "nobody" else []
            if why := why_not_changed_by(by.name, now, standings.evaluations, promotable, accounts):
                raise RulesNotAccepted(f"the rules of {model} stay as they are: {why}")

        return self._log.accept_rules(model, as_json(rules), by, reason=reason, allow=allow)
