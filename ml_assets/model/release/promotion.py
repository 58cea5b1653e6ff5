"""Choice of the version in production.

The ledger decides: its evaluations allow a promotion, and its promotions name the version in production. The
transaction that writes a decision also reads its grounds. During it, nobody can record a verdict on any table or an
evaluation of the model. A rejection that is recorded later does not undo a decision: the inputs of a version that is
registered or in production may be rejected. Its next promotion is refused, and so is training on those inputs. Not
here: gates (`evaluation`), the conditions of one promotion (`promotable`), the way out of production (`way_back`).
"""

from collections.abc import Callable, Mapping

from ml_assets.data.tables.guard import rejections_of
from ml_assets.model.release.bundle_standing import CANARY, PRODUCTION, BundleStandings
from ml_assets.model.release.client_breaks import breaks_for_clients
from ml_assets.model.release.dossiers import why_no_dossier
from ml_assets.model.release.mlflow_view import MlflowView
from ml_assets.model.release.promotable import (
    named,
    next_role,
    not_on_these_inputs,
    promotable,
    require_not_worse,
    require_reviews,
    stays_canary,
)
from ml_assets.model.release.refusals import NotPromotable, Overtaken, until_not_overtaken
from ml_assets.model.release.registry import RegisteredVersion
from ml_assets.model.release.rows_behind import InputsUnknown, contents_of, in_words
from ml_assets.model.release.rules import Rules, why_not_past_gates
from ml_assets.model.release.rules_in_force import as_json, in_force, why_not_under_accepted, why_other
from resources.ledger import EvaluationRow, Person, Promotion


class Promotions(MlflowView):
    """Promotions of all models."""

    def promote(
        self,
        model: str,
        number: int,
        *,
        by: Person,
        reason: str,
        despite_inputs: bool = False,
        rules: Rules | None = None,
        why_worse: Callable[[Promotion], str] | None = None,
    ) -> Promotion:
        """Put a version into production, in place of the current version.

        Its newest evaluation must have blessed it in comparison with the current version, and `rules` may ask for more
        gates of that evaluation, for its approval, and for a signed dossier of it. If they ask for a canary, a version
        becomes canary first; after the bake time, its next promotion puts it into production. `why_worse` gives the
        evidence against that canary, and empty text without any. `rules` are those of a `defs.yaml`, and must be those
        in force; None takes the rules in force. None of its training inputs may be rejected by now. `despite_inputs`
        lifts that rule, and the promotion records the rejected inputs. A version that was in production before can
        always return, on the evaluation of its earlier promotion. If the version is in production already, nothing
        changes and its promotion is returned. Raises `NotPromotable`, `VersionMissing`, and `BundleMissing` or
        `BundleDamaged` if its bundle cannot be served.
        """
        if not reason.strip():
            raise NotPromotable(f"promoting {model} {number} needs a reason for the log")
        version = self.version(model, number)
        promotable(version, self._standings(version.model))
        self._store.open(version.bundle_digest)

        def write_it() -> Promotion:
            found, evaluation = promotable(version, self._standings(version.model))
            if found.is_in_production and found.promotion is not None:
                return found.promotion
            recorded = self._recorded(model)
            asked = in_force(recorded) if rules is None else rules
            if why := why_other(recorded, asked):
                raise NotPromotable(f"{named(version)} is not promoted: {why}")
            role = next_role(version, found, asked, self._log.now())
            accounts = self._ledger.accounts.all()
            if found.promotion is None:  # no review blocks the way back
                if why := why_not_under_accepted(by.name, recorded, found.evaluations, accounts):
                    raise NotPromotable(f"{named(version)} is not promoted: {why}")
                if why := why_not_past_gates(asked, role, evaluation):
                    raise NotPromotable(f"{named(version)} is not promoted: {why}")
                if asked.signature == "compatible" and (breaks := self.breaks_for_clients(model, number)):
                    raise NotPromotable(
                        f"{named(version)} is not promoted: release.signature in defs.yaml is compatible, and clients "
                        f"of the version in production would break: {'; '.join(breaks)}. Train a version that clients "
                        "can use, or change the clients first and then release.signature"
                    )
                if role == PRODUCTION and found.canary is not None and why_worse is not None:
                    require_not_worse(version, why_worse(found.canary))
                require_reviews(version, found, evaluation, role, by.name, asked, accounts)
                if why := why_no_dossier(asked.dossier, evaluation, self._log, self._store):
                    raise NotPromotable(
                        f"{named(version)} is not promoted: {why}. To write one: ml-assets dossier write {model} "
                        f"{number}"
                    )
            against = _nothing if found.promotion else self._against(evaluation)
            despite = against()
            if despite and not despite_inputs:
                raise NotPromotable(not_on_these_inputs(version, despite))

            def allow() -> None:
                # Check again inside the transaction: the grounds may have changed while they were looked up.
                if (
                    promotable(version, self._standings(version.model)) != (found, evaluation)
                    or against() != despite
                ):
                    raise Overtaken
                if (self._ledger.accounts.all(), self._recorded(model)) != (accounts, recorded):
                    raise Overtaken

            return self._log.promote(
                model,
                str(number),
                role,
                by=by,
                reason=reason,
                bundle_digest=version.bundle_digest,
                evaluation_digest=evaluation.evaluation_digest,
                despite=in_words(despite, len(despite)),
                rules=as_json(asked),
                under=recorded.digest,
                allow=allow,
            )

        promotion = until_not_overtaken(write_it)
        self.show_if_reachable(model)
        return promotion

    def newest_data(self, model: str, rules: Rules | None = None) -> RegisteredVersion | None:
        """Return the version to promote by default: among the versions that may be promoted, that with the newest data.

        `rules` are those of a `defs.yaml`; None: those in force. If they ask for a canary, the present canary is the
        default, unless its newest evaluation or a reviewer rejected it. Otherwise a nightly version would take its
        place each day, and the bake time would never end. Versions that pass the gates of the transition go first. A
        version that was replaced in production, or demoted as canary, is never the default. None if no version
        qualifies.
        """
        rules = in_force(self._recorded(model)) if rules is None else rules
        standings = BundleStandings.read(self._log, model)
        ranked: list[tuple[bool, str, int, RegisteredVersion]] = []
        canary = None if rules.canary is None else standings.canary
        role = PRODUCTION if rules.canary is None else CANARY
        for version in self._registry.versions(model):
            found = standings.of(version.bundle_digest)
            if canary is not None and found.canary == canary and stays_canary(found, rules):
                return version
            was_replaced = found.promotion is not None and not found.is_in_production
            if (
                found.may_be_promoted
                and not was_replaced
                and not found.was_taken_back
                and found.shown is not None
            ):
                # If no version passes the gates of the transition, the promotion of the newest names what failed. The
                # version in production needs no transition: a passing backfill of an old day must not replace it.
                passes = found.is_in_production or not why_not_past_gates(rules, role, found.shown)
                ranked.append((passes, found.shown.partition, version.number, version))
        return max(ranked, key=lambda one: one[:3])[3] if ranked else None

    def breaks_for_clients(self, model: str, number: int) -> list[str]:
        """Return what breaks for clients of the version in production if version `number` answers them, a clause each.

        Empty if nothing is in production. Raises `VersionMissing`, `BundleMissing`, `BundleDamaged`.
        """
        champion = self.champion(model)
        if champion is None:
            return []
        answering = self._store.open(self.version(model, number).bundle_digest)
        return breaks_for_clients(champion.facts, answering.facts)

    def rejected_inputs(self, evaluation: EvaluationRow) -> Mapping[str, str]:
        """Return `table key` → reason for training inputs of the evaluated weights that are rejected by now.

        Raises `InputsUnknown`.
        """
        return rejections_of(self._ledger, contents_of(self._lake, self._log, evaluation.trained_on))

    def rejected_in_production(self, model: str) -> Mapping[str, str]:
        """Return `table key` → reason for training inputs of the version in production that are rejected by now.

        Its newest evaluation names the inputs: a later run may have read rows that replaced rejected ones, with the
        same values in the columns of the training. Leaves out inputs that its promotion recorded as rejected. Empty if
        nothing is in production. Raises `InputsUnknown`.
        """
        standings = BundleStandings.read(self._log, model)
        promotion = standings.in_production
        newest = None if promotion is None else standings.of(promotion.bundle_digest).newest
        if promotion is None or newest is None:
            return {}
        refused = self.rejected_inputs(newest)
        return {what: why for what, why in refused.items() if f"{what} " not in promotion.despite}

    def _against(self, evaluation: EvaluationRow) -> Callable[[], Mapping[str, str]]:
        """Look up the rows behind an evaluation; return a function that returns those rejected when it is called."""
        try:
            behind = contents_of(self._lake, self._log, evaluation.trained_on)
        except InputsUnknown as unknown:
            said = {"its inputs": f"are not known: {unknown}"}
            return lambda: said
        return lambda: rejections_of(self._ledger, behind)


def _nothing() -> Mapping[str, str]:
    return {}
