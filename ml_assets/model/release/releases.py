"""Ledger, registry, bundles and lake of releases together, and what the ledger has decided so far.

Each decision is a function over `Releases`: `promotion`, `reviews`, `rollback`. The transaction that writes a decision
also reads its grounds. If they changed while they were looked up, the decision is taken again.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeVar

from ml_assets.data.tables.guard import rejections_of
from ml_assets.model.release.bundle_store import Bundle, BundleStore
from ml_assets.model.release.mlflow_view import is_alias_right, show
from ml_assets.model.release.registry import NumberReused, RegisteredVersion, Registry
from ml_assets.model.release.rules import Rules
from ml_assets.model.release.rules_in_force import RulesLog, in_force
from ml_assets.model.release.standing import PRODUCTION, BundleStandings, contents_of
from resources.lake import VersionedStore
from resources.ledger import Account, Archival, DossierRow, EvaluationRow, Ledger, ModelLog, Promotion, Review
from resources.platform import Platform
from resources.tracking.mlflow_client import TrackerError

Answer = TypeVar("Answer")


class NotRegistrable(Exception):
    """The bundle's newest evaluation rejected it, or it has no evaluation. No version is registered."""


Ground = Literal[
    "reason", "evaluation", "champion", "inputs", "archived", "rules", "acceptance", "gates", "signature", "canary",
    "rejection", "approval", "dossier", "reviewer", "author", "role", "production", "history", "meanwhile",
    "columns", "objective", "tokens", "seen",
]  # fmt: skip
"""Rule that speaks against a decision, or against training on from a version. `acceptance`: of weaker rules;
`meanwhile`: another decision came first; `seen`: days of the holdout."""


class DecisionRefused(Exception):
    """A decision about a release is not allowed. The message has the rule and the remedy."""

    def __init__(self, message: str, ground: Ground) -> None:
        super().__init__(message, ground)
        self.ground: Ground = ground

    def __str__(self) -> str:
        return str(self.args[0])


class NotPromotable(DecisionRefused):
    """A promotion, demotion, rollback or archival is not allowed. The message has the reason and the remedy."""


class NotReviewable(DecisionRefused):
    """An approval or rejection by a person is not allowed. The message has the rule and the remedy."""


class RulesNotAccepted(DecisionRefused):
    """A change of a model's rules is not allowed. The message has the rule and the remedy."""


class Overtaken(Exception):
    """The grounds of a decision changed while they were looked up, for example by a new evaluation."""


@dataclass(frozen=True)
class Releases:
    """Parts that decisions about releases need."""

    ledger: Ledger
    registry: Registry
    store: BundleStore
    lake: VersionedStore

    @property
    def log(self) -> ModelLog:
        """Rows of the ledger about models."""
        return self.ledger.models

    def version(self, model: str, number: int) -> RegisteredVersion:
        """Return a registered version. Raises `VersionMissing`, and `NumberReused` if the ledger knows the number for
        another bundle: somebody deleted the model in MLflow, which then counts from 1 again."""
        return with_its_bundle(self.registry.version(model, number), self.log)

    def standings(self, model: str) -> BundleStandings:
        return BundleStandings.read(self.log, model)

    def in_production(self, model: str, at: datetime | None = None) -> Promotion | None:
        """Return the promotion that was in effect at a moment (None: now), from the ledger alone.

        For now, the alias in MLflow is also corrected if it differs. An unreachable tracker is only logged, because the
        result does not depend on it.
        """
        promotion = self.log.in_production(model, PRODUCTION, at)
        if at is None:
            try:
                if not is_alias_right(self.registry, model, promotion):
                    show(self.registry, self.log, model)
            except TrackerError as error:
                logging.getLogger(__name__).warning("the alias of %s was not checked: %s", model, error)
        return promotion

    def champion(self, model: str) -> Bundle | None:
        """Return the bundle in production with its lineage (`bundle.facts`); None if nothing is in production.

        Needs only the ledger and the bundle store. Raises `BundleMissing` or `BundleDamaged`.
        """
        promotion = self.log.in_production(model, PRODUCTION)
        return None if promotion is None else self.store.open(promotion.bundle_digest)

    def rules(self, model: str) -> Rules:
        """Return the rules in force; no rules if none are recorded."""
        return in_force(RulesLog.read(self.ledger, model))

    def rejected_inputs(self, evaluation: EvaluationRow) -> Mapping[str, str]:
        """Return `table key` → reason for training inputs of the evaluated weights that are rejected by now.

        Raises `InputsUnknown`.
        """
        return rejections_of(self.ledger, contents_of(self.lake, self.log, evaluation.trained_on))

    def rejected_in_production(self, model: str) -> Mapping[str, str]:
        """Return `table key` → reason for training inputs of the version in production that are rejected by now.

        Its newest evaluation names the inputs: a later run may have read rows that replaced rejected ones, with the
        same values in the columns of the training. Leaves out inputs that its promotion recorded as rejected. Empty if
        nothing is in production. Raises `InputsUnknown`.
        """
        standings = self.standings(model)
        promotion = standings.in_production
        newest = None if promotion is None else standings.of(promotion.bundle_digest).newest
        if promotion is None or newest is None:
            return {}
        refused = self.rejected_inputs(newest)
        return {what: why for what, why in refused.items() if f"{what} " not in promotion.despite}

    def persons_and_rules(self, model: str) -> tuple[list[Account], RulesLog]:
        """Return the ledger's accounts and the recorded rules of a model, which a decision rests on."""
        accounts = self.ledger.accounts.all()
        return accounts, RulesLog.of(self.log.rules(model), accounts)


def bundles_of(platform: Platform) -> BundleStore:
    return BundleStore(platform.artifacts)


def registry_of(platform: Platform) -> Registry:
    return Registry(platform.settings.resolved_tracking_uri.reveal(), bundles_of(platform).address)


def releases_of(platform: Platform) -> Releases:
    """Return the parts of a platform that decide about releases."""
    return Releases(platform.ledger, registry_of(platform), bundles_of(platform), platform.lake)


def with_its_bundle(found: RegisteredVersion, log: ModelLog) -> RegisteredVersion:
    """Return `found`. Raise `NumberReused` if the ledger knows its number for another bundle. Whatever a number names,
    also to read it, is asked here: the dossier of a wrong bundle would make the number mean both."""
    known = known_numbers(log, found.model).get(found.number)
    if known is not None and found.bundle_digest not in known:
        raise NumberReused(
            f"{found.model} version {found.number} is bundle {found.bundle_digest[:12]} in MLflow, and the ledger "
            f"decided about bundle {', '.join(sorted(one[:12] for one in known))} under this number: somebody "
            f"registered the bundles of {found.model} again in another order. Materialize the model, which registers "
            "its bundle under a new number"
        )
    return found


def known_numbers(log: ModelLog, model: str) -> dict[int, set[str]]:
    """Return number → digests of the bundles about which the ledger decided under it."""
    known: dict[int, set[str]] = {}
    for one in log.decisions(model):
        if isinstance(one, Promotion | Archival | Review | DossierRow):
            known.setdefault(int(one.version), set()).add(one.bundle_digest)
    return known


def require_reason(reason: str, doing: str, refusal: type[DecisionRefused]) -> None:
    """Raise `refusal` if a decision has no reason for the log. `doing` names the decision."""
    if not reason.strip():
        raise refusal(f"{doing} needs a reason for the log", "reason")


def until_not_overtaken(decide: Callable[[], Answer]) -> Answer:
    """Return what `decide` returns; call it again as long as its grounds change while it looks them up."""
    while True:
        try:
            return decide()
        except Overtaken:
            continue
