"""Registration of bundles as versions, and choice of the version in production.

The ledger decides: its evaluations allow registration and promotion, and its promotions name the version in production.
MLflow's alias and tags only show that. This module writes them after the ledger's row and corrects them if they differ.
It never reads them for a decision, because then anybody who can write a tag could promote. Not here: gates
(`evaluation`), MLflow's versions (`registry`).

The transaction that writes a decision also reads its grounds. During it, nobody can record a verdict on any table or an
evaluation of the model. A rejection that is recorded later does not undo a decision: the inputs of a version that is
registered or in production may be rejected. Its next promotion is refused, and so is training on those inputs.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from ml_assets.release.bundle_standing import CANARY, PRODUCTION, BundleStanding, BundleStandings
from ml_assets.release.bundle_store import Bundle, BundleStore
from ml_assets.release.dossiers import why_no_dossier
from ml_assets.release.registry import RegisteredVersion, Registry, VersionMissing
from ml_assets.release.rows_behind import InputsRejected, InputsUnknown, contents_of, in_words
from ml_assets.release.rules import (
    NO_RULES,
    ReleaseSection,
    review_of,
    why_not_approved,
    why_not_by,
    why_not_past_gates,
    why_rejected,
    why_unchecked,
    why_void,
)
from ml_assets.release.rules_in_force import (
    RulesLog,
    agree,
    as_json,
    in_force,
    is_confirmed_by,
    why_not_changed_by,
    why_not_under_accepted,
    why_other,
)
from ml_assets.release.shown_in_mlflow import ALIASES, holder_of, number_of, tags_of
from ml_assets.release.signature import breaks_for_clients
from ml_assets.release.versions import Numbered, SemanticVersion, next_version
from ml_assets.tables.guard import rejections_of
from resources.lake import VersionedStore
from resources.ledger import (
    Account,
    Archival,
    CheckedBy,
    Decision,
    EvaluationRow,
    Ledger,
    Person,
    Promotion,
    Review,
    RulesRow,
    SemanticName,
)
from resources.mlflow_client import TrackerError, TrackerRefused

Answer = TypeVar("Answer")


class NotRegistrable(Exception):
    """The bundle's newest evaluation rejected it, or it has no evaluation. No version is registered."""


class NotPromotable(Exception):
    """A promotion, demotion, rollback or archival is not allowed. The message has the reason and the remedy."""


class NotReviewable(Exception):
    """An approval or rejection by a person is not allowed. The message has the rule and the remedy."""


class RulesNotAccepted(Exception):
    """A change of a model's rules is not allowed. The message has the rule and the remedy."""


class _Overtaken(Exception):
    """The grounds of a decision changed while they were looked up, for example by a new evaluation."""


class Releases:
    """Registrations and promotions of all models: ledger, registry, bundles and lake together."""

    def __init__(self, ledger: Ledger, registry: Registry, store: BundleStore, lake: VersionedStore) -> None:
        self._ledger = ledger
        self._log = ledger.models
        self._registry = registry
        self._store = store
        self._lake = lake

    def register(
        self,
        bundle: Bundle,
        *,
        run_id: str,
        links: Mapping[str, str],
        rules: ReleaseSection | None = None,
    ) -> RegisteredVersion:
        """Return the version of this bundle; register it if there is none.

        The first registration of a model records `rules`, by the author of the evaluation; None leaves that to the
        first decision.
        `links` are tags such as lake commit, Dagster run and partition; a version keeps its first links. `run_id` is
        the MLflow run that trained it. Raises `NotRegistrable`, `InputsUnknown`, and `InputsRejected` if rows that
        trained it are rejected by now.
        """
        facts = bundle.facts
        model = facts.lineage.model

        def registrable() -> EvaluationRow:
            newest = self._log.newest_evaluation(model, bundle.digest)
            if newest is None or newest.status == "rejected":
                why = "was never evaluated" if newest is None else f"is rejected by evaluation {newest.name}"
                raise NotRegistrable(
                    f"{model} {facts.lineage.fingerprint[:12]} {why}: materialize the model and read its "
                    f"evaluation, which names the failed rules. Then change the model or the gates in defs.yaml"
                )
            return newest

        def choose(known: Sequence[SemanticName]) -> str:
            numbered = [
                Numbered(SemanticVersion.parse(one.semantic), one.schema_digest, one.recipe_digest)
                for one in known
            ]
            return str(next_version(numbered, facts.schema_digest, facts.recipe_digest))

        def name_it() -> str:
            evaluation = registrable()
            behind = contents_of(self._lake, self._log, evaluation.trained_on)

            def allow() -> None:
                if registrable() != evaluation:
                    raise _Overtaken
                if refused := rejections_of(self._ledger, behind):
                    raise InputsRejected(refused)

            return self._log.name_version(
                model,
                bundle.digest,
                schema_digest=facts.schema_digest,
                recipe_digest=facts.recipe_digest,
                choose=choose,
                allow=allow,
            )

        semantic = _until_not_overtaken(name_it)
        if rules is not None:
            row = registrable()
            by = Person(name=row.author, checked_by=row.checked_by, account=row.account)
            self._log.record_first_rules(model, as_json(rules), by)
        tags = {
            **links,
            "semantic_version": semantic,
            "bundle_digest": bundle.digest,
            "fingerprint": facts.lineage.fingerprint,
            "snapshot_digest": facts.lineage.snapshot_digest,
            "schema_digest": facts.schema_digest,
            "recipe_digest": facts.recipe_digest,
        }
        version = self._registry.add(bundle, run_id=run_id, tags=tags)
        self.show(model)
        return self._registry.version(model, version.number)

    def promote(
        self,
        model: str,
        number: int,
        *,
        author: str,
        checked_by: CheckedBy = "nobody",
        account: int | None = None,
        reason: str,
        despite_inputs: bool = False,
        rules: ReleaseSection = NO_RULES,
        why_worse: Callable[[Promotion], str] | None = None,
    ) -> Promotion:
        """Put a version into production, in place of the current version.

        Its newest evaluation must have blessed it in comparison with the current version, and `rules` may ask for more
        gates of that evaluation, for its approval, and for a signed dossier of it. If they ask for a canary, a version
        becomes canary first; after the bake time, its next promotion puts it into production. `why_worse` gives the
        evidence against that canary, and empty text without any. `rules` must be those in force. None of its training
        inputs may be rejected by now. `despite_inputs` lifts that rule, and the promotion records the rejected inputs.
        A version that was in production before can always return, on the evaluation of its earlier promotion.
        If the version is in production already, nothing changes and its promotion is returned. Raises `NotPromotable`,
        `VersionMissing`, and `BundleMissing` or `BundleDamaged` if its bundle cannot be served.
        """
        if not reason.strip():
            raise NotPromotable(f"promoting {model} {number} needs a reason for the log")
        version = self._registry.version(model, number)
        self._promotable(version)
        self._store.open(version.bundle_digest)

        def write_it() -> Promotion:
            found, evaluation = self._promotable(version)
            if found.is_in_production and found.promotion is not None:
                return found.promotion
            recorded = self._recorded(model)
            if why := why_other(recorded, rules):
                raise NotPromotable(f"{_named(version)} is not promoted: {why}")
            role = _next_role(version, found, rules)
            accounts = self._ledger.accounts.all()
            if found.promotion is None:  # no review blocks the way back
                if why := why_not_under_accepted(author, recorded, found.evaluations, accounts):
                    raise NotPromotable(f"{_named(version)} is not promoted: {why}")
                if why := why_not_past_gates(rules, role, evaluation):
                    raise NotPromotable(f"{_named(version)} is not promoted: {why}")
                if rules.signature == "compatible" and (breaks := self.breaks_for_clients(model, number)):
                    raise NotPromotable(
                        f"{_named(version)} is not promoted: release.signature in defs.yaml is compatible, and clients "
                        f"of the version in production would break: {'; '.join(breaks)}. Train a version that clients "
                        "can use, or change the clients first and then release.signature"
                    )
                if role == PRODUCTION and found.canary is not None and why_worse is not None:
                    _require_not_worse(version, why_worse(found.canary))
                _require_reviews(version, found, evaluation, role, author, rules, accounts)
                if why := why_no_dossier(rules.dossier, evaluation, self._log, self._store):
                    raise NotPromotable(
                        f"{_named(version)} is not promoted: {why}. To write one: ml-assets dossier write {model} "
                        f"{number}"
                    )
            against = _nothing if found.promotion else self._against(evaluation)
            despite = against()
            if despite and not despite_inputs:
                raise NotPromotable(_not_on_these_inputs(version, despite))

            def allow() -> None:
                # Check again inside the transaction: the grounds may have changed while they were looked up.
                if self._promotable(version) != (found, evaluation) or against() != despite:
                    raise _Overtaken
                if (self._ledger.accounts.all(), self._recorded(model)) != (accounts, recorded):
                    raise _Overtaken

            return self._log.promote(
                model,
                str(number),
                role,
                author=author,
                checked_by=checked_by,
                account=account,
                reason=reason,
                bundle_digest=version.bundle_digest,
                evaluation_digest=evaluation.evaluation_digest,
                despite=in_words(despite, len(despite)),
                rules=as_json(rules),
                under=recorded.digest,
                allow=allow,
            )

        promotion = _until_not_overtaken(write_it)
        self.show(model)
        return promotion

    def review(
        self,
        model: str,
        number: int,
        *,
        approves: bool,
        author: str,
        checked_by: CheckedBy = "nobody",
        account: int | None = None,
        reason: str,
        rules: ReleaseSection,
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
        version = self._registry.version(model, number)

        def decide() -> Review:
            found = self.standing(model, version.bundle_digest)
            evaluation = found.newest
            if evaluation is None:
                raise NotReviewable(f"{_named(version)} was never evaluated: materialize the model first")
            if read is not None and evaluation.evaluation_digest != read:
                raise NotReviewable(
                    f"{_named(version)} was evaluated again at {evaluation.at:%Y-%m-%d %H:%M} UTC ({evaluation.name}): "
                    "read that evaluation first"
                )
            if why := why_not_by(author, approval, found.evaluations):
                raise NotReviewable(f"{_named(version)}: {what} it is not allowed: {why}")
            if approves and evaluation.status != "blessed":
                raise NotReviewable(
                    f"{_named(version)} is {evaluation.status}, not blessed, by its newest evaluation "
                    f"{evaluation.name}: an approval would not help. {evaluation.summary} Report: {evaluation.report}"
                )
            if (
                approves
                and found.promotion is None
                and (why := why_not_past_gates(rules, PRODUCTION, evaluation))
            ):
                raise NotReviewable(f"{_named(version)}: an approval would not help: {why}")
            accounts, recorded = self._ledger.accounts.all(), self._recorded(model)
            if approves and (why := why_unchecked(approval, evaluation, accounts)):
                raise NotReviewable(f"{_named(version)} is not approved: {why}")
            before = review_of(evaluation, self._counting(found.reviews))
            if before is not None and before.approves == approves:
                return before
            if before is not None and approves:
                raise NotReviewable(
                    f"{_named(version)} was rejected by {before.author} at {before.at:%Y-%m-%d %H:%M} UTC: "
                    f"{before.reason}. A rejection of an evaluation stands: materialize the model on another date"
                )

            def allow() -> None:
                now = self.standing(model, version.bundle_digest)
                if (now.newest, now.reviews) != (found.newest, found.reviews):
                    raise _Overtaken
                if (self._ledger.accounts.all(), self._recorded(model)) != (accounts, recorded):
                    raise _Overtaken

            return self._log.review(
                evaluation,
                str(number),
                approves=approves,
                author=author,
                checked_by=checked_by,
                account=account,
                reason=reason,
                rules=as_json(rules),
                under=recorded.digest,
                allow=allow,
            )

        return _until_not_overtaken(decide)

    def rules(self, model: str) -> ReleaseSection:
        """Return the rules in force; no rules if none are recorded."""
        return in_force(self._recorded(model))

    def _recorded(self, model: str) -> RulesLog:
        return RulesLog.read(self._ledger, model)

    def accept_rules(self, model: str, rules: ReleaseSection, *, by: Person, reason: str) -> RulesRow:
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

    def waiting(self, model: str, rules: ReleaseSection) -> list[tuple[RegisteredVersion, EvaluationRow]]:
        """Return the versions that wait for an approval, newest data first, each with the evaluation to review.

        These could be promoted if somebody approved them. Empty if `rules` ask for no approval.
        """
        if rules.approval is None:
            return []
        found: list[tuple[RegisteredVersion, EvaluationRow]] = []
        standings = BundleStandings.read(self._log, model)
        for version in self._registry.versions(model):
            try:
                standing, evaluation = self._promotable(version, standings)
            except NotPromotable:
                continue
            if self.waits_for_approval(standing, rules):
                found.append((version, evaluation))
        return sorted(found, key=lambda one: (one[1].partition, one[0].number), reverse=True)

    def waits_for_approval(self, found: BundleStanding, rules: ReleaseSection) -> bool:
        """Return True if a bundle could be promoted but for the approval of its newest evaluation."""
        if rules.approval is None or found.promotion is not None or not found.may_be_promoted:
            return False
        if found.newest is None or why_not_past_gates(rules, PRODUCTION, found.newest):
            return False
        return self.counting_review(found.newest) is None

    def counting_review(self, evaluation: EvaluationRow) -> Review | None:
        """Return the review that decides about an evaluation, or None."""
        return review_of(evaluation, self._counting(self._log.reviews(evaluation.model)))

    def _counting(self, reviews: Sequence[Review]) -> tuple[Review, ...]:
        """Return the reviews that count. With accounts in the ledger, an approval ends with its account."""
        accounts = self._ledger.accounts.all()
        return tuple(one for one in reviews if not why_void(one, accounts))

    def _promotable(
        self, version: RegisteredVersion, standings: BundleStandings | None = None
    ) -> tuple[BundleStanding, EvaluationRow]:
        """Return the standing of `version`, and the evaluation to record with its promotion.

        Raises `NotPromotable` if its evaluations do not allow a promotion.
        """
        standings = standings or BundleStandings.read(self._log, version.model)
        found, champion = standings.of(version.bundle_digest), standings.in_production
        named, newest = _named(version), found.shown
        if found.archival is not None:
            raise NotPromotable(
                f"{named} was archived at {found.archival.at:%Y-%m-%d %H:%M} UTC by {found.archival.author}: "
                f"{found.archival.reason}. An archived version stays out of production: materialize the model on "
                "another date, or promote another version"
            )
        if newest is None:
            raise NotPromotable(
                f"{named} was never evaluated: materialize the model, then promote the version that it registers"
            )
        if found.promotion is not None:
            return found, newest
        if newest.status != "blessed":
            raise NotPromotable(
                f"{named} is {newest.status}, not blessed, by its newest evaluation {newest.name} "
                f"({newest.partition}): {newest.summary} The report shows the condition under which each rule "
                f"passes: {newest.report}. Materialize the model on a later date, or change the gates in defs.yaml"
            )
        if champion is not None and champion.bundle_digest != newest.champion_digest:
            raise NotPromotable(
                f"the newest evaluation {newest.name} ({newest.partition}) of {named} compared it with "
                f"{standings.name_of(newest.champion_digest)}, but version {champion.version} is in "
                f"production since {champion.at:%Y-%m-%d %H:%M} UTC. Compare it with that version; the "
                f"training is reused: ml-assets launch {version.model} {newest.partition}"
            )
        return found, newest

    def rejected_inputs(self, evaluation: EvaluationRow) -> Mapping[str, str]:
        """Return `table key` → reason for training inputs of the evaluated weights that are rejected by now.

        Raises `InputsUnknown`.
        """
        return rejections_of(self._ledger, contents_of(self._lake, self._log, evaluation.trained_on))

    def rejected_in_production(self, model: str) -> Mapping[str, str]:
        """Return `table key` → reason for training inputs of the version in production that are rejected by now.

        Leaves out inputs that its promotion recorded as rejected. Empty if nothing is in production. Raises
        `InputsUnknown`.
        """
        standings = BundleStandings.read(self._log, model)
        promotion = standings.in_production
        shown = None if promotion is None else standings.of(promotion.bundle_digest).shown
        if promotion is None or shown is None:
            return {}
        refused = self.rejected_inputs(shown)
        return {what: why for what, why in refused.items() if f"{what} " not in promotion.despite}

    def _against(self, evaluation: EvaluationRow) -> Callable[[], Mapping[str, str]]:
        """Look up the rows behind an evaluation; return a function that returns those rejected when it is called."""
        try:
            behind = contents_of(self._lake, self._log, evaluation.trained_on)
        except InputsUnknown as unknown:
            said = {"its inputs": f"are not known: {unknown}"}
            return lambda: said
        return lambda: rejections_of(self._ledger, behind)

    def demote(
        self,
        model: str,
        *,
        author: str,
        checked_by: CheckedBy = "nobody",
        account: int | None = None,
        reason: str,
        role: str = PRODUCTION,
        seen: Promotion | None = None,
    ) -> Promotion:
        """Take the current version out of production without a successor; return the promotion that ended.

        The next training is evaluated as a first model. With `role` canary, the canary goes back to staging. `seen` is
        the promotion that the caller decided about; None: the present one. Raises `NotPromotable` if no version has the
        role, or if another version got it meanwhile.
        """
        if not reason.strip():
            raise NotPromotable(f"demoting {model} needs a reason for the log")

        def held() -> Promotion | None:
            standings = BundleStandings.read(self._log, model)
            return standings.canary if role == CANARY else standings.in_production

        standing, has = seen or held(), "the canary" if role == CANARY else "in production"
        if standing is None:
            raise NotPromotable(
                f"no version of {model} is {has}. To see all decisions: ml-assets history {model}"
            )

        def allow() -> None:
            if (now := held()) == standing:
                return
            since = "no version is any more" if now is None else _since(now)
            raise NotPromotable(
                f"version {standing.version} of {model} was {has} when this command began, but {since}. Nothing was "
                f"demoted. To see all decisions: ml-assets history {model}"
            )

        demotion = self._log.demote(
            standing, author=author, checked_by=checked_by, account=account, reason=reason, allow=allow
        )
        self.show_if_reachable(model)
        return replace(standing, demotion=demotion)

    def rollback(
        self,
        model: str,
        *,
        author: str,
        checked_by: CheckedBy = "nobody",
        account: int | None = None,
        reason: str,
    ) -> Promotion:
        """Put the version into production again that was there before the present one; return the new promotion.

        No rule is checked again: it returns on the evaluation of its earlier promotion. MLflow shows it as soon as it
        answers. Raises `NotPromotable` if no earlier version is left, or if another promotion or rollback came
        meanwhile: of two persons who roll back at once, one must not go back by a version more. Raises `BundleMissing`
        or `BundleDamaged` if the bundle cannot be served.
        """
        if not reason.strip():
            raise NotPromotable(f"rolling back {model} needs a reason for the log")
        replaced = BundleStandings.read(self._log, model).newest_promotion

        def write_it() -> Promotion:
            target, recorded = self._rollback_target(model, replaced), self._recorded(model)
            self._store.open(target.bundle_digest)

            def allow() -> None:
                if (self._rollback_target(model, replaced), self._recorded(model)) != (target, recorded):
                    raise _Overtaken

            return self._log.promote(
                model,
                target.version,
                PRODUCTION,
                author=author,
                checked_by=checked_by,
                account=account,
                reason=reason,
                bundle_digest=target.bundle_digest,
                evaluation_digest=target.evaluation_digest,
                returns_to=target.place,
                under=recorded.digest,
                allow=allow,
            )

        promotion = _until_not_overtaken(write_it)
        self.show_if_reachable(model)
        return promotion

    def _rollback_target(self, model: str, replaced: Promotion | None) -> Promotion:
        """Return the promotion to which a rollback of `replaced` returns. Raise `NotPromotable` if there is none."""
        standings = BundleStandings.read(self._log, model)
        newest = standings.newest_promotion
        if newest is not None and (replaced is None or newest.place != replaced.place):
            raise NotPromotable(
                f"{model} is not rolled back: since this command began, {_since(newest)}. To see all decisions: "
                f"ml-assets history {model}. To go back from there: the same command again"
            )
        target = standings.rollback_target
        if target is None and not standings.promotions:
            raise NotPromotable(
                f"no version of {model} was ever in production: there is nothing to roll back to. To promote one: "
                f"ml-assets promote {model} --reason '…'"
            )
        if target is None:
            raise NotPromotable(
                f"no version of {model} that is neither archived nor demoted was in production before version "
                f"{standings.promotions[-1].version}: there is nothing to roll back to. To see all decisions: "
                f"ml-assets history {model}. To take the present version out of production: ml-assets demote {model} "
                f"--reason '…'. To promote another one: ml-assets promote {model} NUMBER --reason '…'"
            )
        return target

    def replaced_by(self, promotion: Promotion) -> Promotion | None:
        """Return the promotion whose version lost its role to `promotion`; None if no version had the role."""
        before = BundleStandings.read(self._log, promotion.model).before(promotion.place)
        return before.canary if promotion.alias == CANARY else before.in_production

    def archive(
        self,
        model: str,
        number: int,
        *,
        author: str,
        checked_by: CheckedBy = "nobody",
        account: int | None = None,
        reason: str,
    ) -> Archival:
        """Record that a version is never promoted again, and that no rollback returns to it.

        If it is archived already, nothing changes and its archival is returned. Raises `NotPromotable` for the version
        in production, and `VersionMissing`.
        """
        if not reason.strip():
            raise NotPromotable(f"archiving {model} {number} needs a reason for the log")
        version = self._registry.version(model, number)

        def allow() -> None:
            if self.standing(model, version.bundle_digest).is_in_production:
                raise NotPromotable(
                    f"{_named(version)} is in production and cannot be archived. First put another version in its "
                    f"place (ml-assets rollback {model} --reason '…', or promote), or take it out: ml-assets demote "
                    f"{model} --reason '…'"
                )

        archival = self._log.archive(
            model,
            str(number),
            author=author,
            checked_by=checked_by,
            account=account,
            reason=reason,
            bundle_digest=version.bundle_digest,
            allow=allow,
        )
        self.show(model)
        return archival

    def newest_data(self, model: str, rules: ReleaseSection = NO_RULES) -> RegisteredVersion | None:
        """Return the version to promote by default: among the versions that may be promoted, that with the newest data.

        If `rules` ask for a canary, the present canary is the default, unless its newest evaluation or a reviewer
        rejected it. Otherwise a nightly version would take its place each day, and the bake time would never end.
        Versions that pass the gates of the transition go first. A version that was replaced in production, or demoted
        as canary, is never the default. None if no version qualifies.
        """
        standings = BundleStandings.read(self._log, model)
        ranked: list[tuple[bool, str, int, RegisteredVersion]] = []
        canary = None if rules.canary is None else standings.canary
        role = PRODUCTION if rules.canary is None else CANARY
        for version in self._registry.versions(model):
            found = standings.of(version.bundle_digest)
            if canary is not None and found.canary == canary and _stays_canary(found, rules):
                return version
            was_replaced = found.promotion is not None and not found.is_in_production
            if (
                found.may_be_promoted
                and not was_replaced
                and not found.was_taken_back
                and found.shown is not None
            ):
                # If no version passes the gates of the transition, the promotion of the newest names what failed.
                passes = not why_not_past_gates(rules, role, found.shown)
                ranked.append((passes, found.shown.partition, version.number, version))
        return max(ranked, key=lambda one: one[:3])[3] if ranked else None

    def standing(self, model: str, bundle_digest: str) -> BundleStanding:
        """Return the standing of one bundle in the ledger."""
        return BundleStandings.read(self._log, model).of(bundle_digest)

    def in_production(self, model: str, at: datetime | None = None) -> Promotion | None:
        """Return the promotion that was in effect at a moment (None: now), from the ledger alone.

        For now, the alias in MLflow is also corrected if it differs. An unreachable tracker is only logged, because the
        result does not depend on it.
        """
        promotion = self._log.in_production(model, PRODUCTION, at)
        if at is None:
            try:
                if self._aliased(model) != (promotion.bundle_digest if promotion else None):
                    self.show(model)
            except TrackerError as error:
                logging.getLogger(__name__).warning("the alias of %s was not checked: %s", model, error)
        return promotion

    def canary(self, model: str) -> Promotion | None:
        """Return the promotion of the canary, from the ledger alone; None if there is no canary."""
        return BundleStandings.read(self._log, model).canary

    def champion(self, model: str) -> Bundle | None:
        """Return the bundle in production with its lineage (`bundle.facts`); None if nothing is in production.

        Needs only the ledger and the bundle store. Raises `BundleMissing` or `BundleDamaged`.
        """
        promotion = self._log.in_production(model, PRODUCTION)
        return None if promotion is None else self._store.open(promotion.bundle_digest)

    def breaks_for_clients(self, model: str, number: int) -> list[str]:
        """Return what breaks for clients of the version in production if version `number` answers them, a clause each.

        Empty if nothing is in production. Raises `VersionMissing`, `BundleMissing`, `BundleDamaged`.
        """
        champion = self.champion(model)
        if champion is None:
            return []
        answering = self._store.open(self._registry.version(model, number).bundle_digest)
        return breaks_for_clients(champion.facts, answering.facts)

    def history(self, model: str) -> list[Decision]:
        """Return all decisions about a model, oldest first."""
        return self._log.decisions(model)

    def log(self, model: str) -> list[Promotion]:
        """Return all promotions of a model, oldest first."""
        return self._log.promotions(model)

    def evaluations(self, model: str) -> list[EvaluationRow]:
        """Return all evaluations of a model, oldest first."""
        return self._log.evaluations(model)

    def show(self, model: str) -> None:
        """Update MLflow from the ledger: the alias, and the stage and evaluation of each version.

        Versions are matched by bundle, because a new registry gives the same numbers again. Reads the ledger again
        after writing: if another process decided meanwhile, this one may have written over what the other showed.
        """
        shown = None
        while shown != (standings := BundleStandings.read(self._log, model)):
            try:
                self._show(model, standings)
            except TrackerRefused:  # MLflow's guard compares with the ledger of this moment
                if BundleStandings.read(self._log, model) == standings:
                    raise
            else:
                shown = standings

    def show_if_reachable(self, model: str) -> None:
        """Update MLflow from the ledger. If MLflow does not answer, only log it: the decision does not depend on it."""
        try:
            self.show(model)
        except TrackerError as error:
            logging.getLogger(__name__).warning(
                "MLflow does not show the newest decision about %s yet: %s", model, error
            )

    def _show(self, model: str, standings: BundleStandings) -> None:
        versions = self._registry.versions(model)
        for version, name, value in _wrong_tags(versions, standings):
            # Gone: two processes registered this bundle, and the second version was deleted.
            with suppress(TrackerRefused):
                self._registry.tag(model, version.number, name, value)
        promotion, number = standings.in_production, number_of(standings.in_production, versions)
        if promotion is not None and number is None:
            logging.getLogger(__name__).warning(
                "%s in production (version %s, bundle %s) is not in MLflow's registry: materialize its partition "
                "again to register it there",
                model,
                promotion.version,
                promotion.bundle_digest[:12],
            )
        for alias, _, right in self._wrong_aliases(model, standings, versions):
            self._registry.set_alias(model, alias, right)

    def differences(self, model: str) -> list[str]:
        """Return what MLflow shows of a model and the ledger says otherwise, in words. Changes nothing."""
        standings, versions = BundleStandings.read(self._log, model), self._registry.versions(model)
        said = [
            f"{name} of {model} {version.number} is {version.tags.get(name)!r} in MLflow and {value!r} in the ledger"
            for version, name, value in _wrong_tags(versions, standings)
        ]
        return said + [
            f"{model}@{alias} is version {shown or 'none'} in MLflow and {right or 'none'} in the ledger"
            for alias, shown, right in self._wrong_aliases(model, standings, versions)
        ]

    def _wrong_aliases(
        self, model: str, standings: BundleStandings, versions: Sequence[RegisteredVersion]
    ) -> Iterator[tuple[str, int | None, int | None]]:
        """Yield each alias that differs from the ledger: its name, MLflow's version, the ledger's version."""
        for alias in ALIASES:
            if alias == CANARY and not standings.canaries:
                continue  # the alias is not ours
            shown, right = (
                self._registry.aliased(model, alias),
                number_of(holder_of(alias, standings), versions),
            )
            if shown != right:
                yield alias, shown, right

    def _aliased(self, model: str) -> str | None:
        """Return the bundle digest of the version that MLflow shows as in production."""
        number = self._registry.aliased(model, PRODUCTION)
        if number is None:
            return None
        try:
            return self._registry.version(model, number).bundle_digest
        except VersionMissing:  # the alias points to a version without a bundle
            return ""


def _until_not_overtaken(decide: Callable[[], Answer]) -> Answer:
    while True:
        try:
            return decide()
        except _Overtaken:
            continue


def _require_reviews(
    version: RegisteredVersion,
    found: BundleStanding,
    evaluation: EvaluationRow,
    role: str,
    promoter: str,
    rules: ReleaseSection,
    accounts: Sequence[Account],
) -> None:
    """Raise `NotPromotable` if a reviewer rejected `evaluation`, or if production needs an approval that is missing."""
    if why := why_rejected(rules.approval, evaluation, found.reviews):
        raise NotPromotable(
            f"{_named(version)} is not promoted: {why} A rejection of an evaluation stands: materialize the model on "
            "another date, or promote another version"
        )
    if role != PRODUCTION:
        return
    if why := why_not_approved(
        promoter, rules.approval, evaluation, found.evaluations, found.reviews, accounts
    ):
        raise NotPromotable(
            f"{_named(version)} is not promoted: {why} To approve it: ml-assets approve {version.model} "
            f"{version.number} --reason '…'"
        )


def _require_not_worse(version: RegisteredVersion, evidence: str) -> None:
    """Raise `NotPromotable` if there is evidence that the canary is worse than the champion."""
    if evidence:
        raise NotPromotable(
            f"{_named(version)} is not promoted: as canary it is {evidence}. To take it back: ml-assets demote "
            f"{version.model} --canary --reason '…'"
        )


def _stays_canary(found: BundleStanding, rules: ReleaseSection) -> bool:
    """Return True if neither the newest evaluation nor a reviewer rejected the canary `found`."""
    newest = found.newest
    return (
        found.may_be_promoted
        and newest is not None
        and not why_rejected(rules.approval, newest, found.reviews)
    )


def _since(promotion: Promotion) -> str:
    """Return the words for a promotion that came meanwhile: its author, version and time."""
    did = "promoted" if promotion.returns_to is None else "rolled back to"
    return f"{promotion.author} {did} version {promotion.version} at {promotion.at:%Y-%m-%d %H:%M:%S} UTC"


def in_full_minutes(moment: datetime) -> str:
    """Return the first full minute from `moment` on, for people: before it, a command may still be refused."""
    return f"{moment + timedelta(minutes=1) - timedelta(microseconds=1):%Y-%m-%d %H:%M} UTC"


def _nothing() -> Mapping[str, str]:
    return {}


def _named(version: RegisteredVersion) -> str:
    return f"{version.model} {version.number} ({version.semantic})"


def _not_on_these_inputs(version: RegisteredVersion, despite: Mapping[str, str]) -> str:
    return (
        f"{_named(version)} is not promoted because of its training inputs: {in_words(despite)}. Fix the "
        f"source and materialize the partition, or accept it (ml-assets accept TABLE PARTITION --reason '…'). "
        f"If its rows were replaced since, materialize the model again. To promote the version anyway, on "
        f"record in the log: ml-assets promote {version.model} {version.number} --despite-inputs --reason '…'"
    )


def _wrong_tags(
    versions: Sequence[RegisteredVersion], standings: BundleStandings
) -> Iterator[tuple[RegisteredVersion, str, str]]:
    """Yield each tag that differs from the ledger, with the ledger's value."""
    for version in versions:
        for name, value in tags_of(standings.of(version.bundle_digest)).items():
            if version.tags.get(name) != value:
                yield version, name, value


def _next_role(version: RegisteredVersion, found: BundleStanding, rules: ReleaseSection) -> str:
    """Return the role that a promotion gives to a version. Raise `NotPromotable` while a canary bakes.

    A version that was in production before returns there without being canary again.
    """
    if rules.canary is None or found.promotion is not None:
        return PRODUCTION
    if found.canary is None:
        return CANARY
    baked = rules.canary.end_of_bake(found.canary.at)
    if datetime.now(UTC) < baked:
        raise NotPromotable(
            f"{_named(version)} is the canary since {found.canary.at:%Y-%m-%d %H:%M} UTC, and "
            f"release.canary.bake_hours in defs.yaml is {rules.canary.bake_hours or 0:g}: promote it from "
            f"{in_full_minutes(baked)} on, or take it back: ml-assets demote {version.model} --canary --reason '…'. "
            "Another version becomes the canary if you give its number"
        )
    return PRODUCTION
