"""Decisions of the ledger about the versions of a model, and the parts that decisions need.

Not here: the decisions themselves (`registration`, `promotion`, `reviews`, `way_back`).
"""

from ml_assets.model.release.bundle_standing import PRODUCTION, BundleStanding, BundleStandings
from ml_assets.model.release.bundle_store import Bundle, BundleStore
from ml_assets.model.release.registry import NumberReused, RegisteredVersion, Registry
from ml_assets.model.release.rules_in_force import RulesLog
from resources.lake import VersionedStore
from resources.ledger import (
    Archival,
    Decision,
    DossierRow,
    EvaluationRow,
    Ledger,
    ModelLog,
    Promotion,
    Review,
)


class Decisions:
    """Ledger, registry, bundles and lake together, and what the ledger has decided so far."""

    def __init__(self, ledger: Ledger, registry: Registry, store: BundleStore, lake: VersionedStore) -> None:
        self._ledger = ledger
        self._log = ledger.models
        self._registry = registry
        self._store = store
        self._lake = lake

    def _recorded(self, model: str) -> RulesLog:
        return RulesLog.read(self._ledger, model)

    def version(self, model: str, number: int) -> RegisteredVersion:
        """Return a registered version. Raises `VersionMissing`, and `NumberReused` if the ledger knows the number for
        another bundle: somebody deleted the model in MLflow, which then counts from 1 again."""
        return with_its_bundle(self._registry.version(model, number), self._log)

    def standing(self, model: str, bundle_digest: str) -> BundleStanding:
        """Return the standing of one bundle in the ledger."""
        return BundleStandings.read(self._log, model).of(bundle_digest)

    def _standings(self, model: str) -> BundleStandings:
        return BundleStandings.read(self._log, model)

    def canary(self, model: str) -> Promotion | None:
        """Return the promotion of the canary, from the ledger alone; None if there is no canary."""
        return BundleStandings.read(self._log, model).canary

    def champion(self, model: str) -> Bundle | None:
        """Return the bundle in production with its lineage (`bundle.facts`); None if nothing is in production.

        Needs only the ledger and the bundle store. Raises `BundleMissing` or `BundleDamaged`.
        """
        promotion = self._log.in_production(model, PRODUCTION)
        return None if promotion is None else self._store.open(promotion.bundle_digest)

    def history(self, model: str) -> list[Decision]:
        """Return all decisions about a model, oldest first."""
        return self._log.decisions(model)

    def log(self, model: str) -> list[Promotion]:
        """Return all promotions of a model, oldest first."""
        return self._log.promotions(model)

    def evaluations(self, model: str) -> list[EvaluationRow]:
        """Return all evaluations of a model, oldest first."""
        return self._log.evaluations(model)


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
