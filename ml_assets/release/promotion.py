"""Which version of a model is in production, decided by a person and written down for good.

The ledger's promotion log is the fact; MLflow's alias and the `stage` tags are its picture, drawn after the
row is written and drawn again where somebody finds them different. Not here: gates (`evaluation`), versions
(`registry`).
"""

import logging
from datetime import datetime

from ml_assets.release.registry import Registry
from ml_assets.release.store import Bundle, BundleStore
from resources.ledger import Ledger, Promotion
from resources.mlflow_client import TrackerError

PRODUCTION = "production"


class NotPromotable(Exception):
    """This version may not go to production; the message says why and what would let it."""


class Releases:
    """Promotions of all models: ledger, registry and bundles together."""

    def __init__(self, ledger: Ledger, registry: Registry, store: BundleStore) -> None:
        self._ledger = ledger
        self._registry = registry
        self._store = store

    def promote(self, model: str, number: int, *, author: str, reason: str) -> Promotion:
        """Put a version into production, in place of the one that is there; also back to an older one.

        Promoting what is in production already changes nothing and returns the standing promotion. Raises
        `NotPromotable` for a version the gate did not bless or without a reason, `VersionMissing`, and
        `BundleMissing` or `BundleDamaged` where its bundle could not be served.
        """
        if not reason.strip():
            raise NotPromotable(f"promoting {model} {number} needs a reason that others can read later")
        version = self._registry.version(model, number)
        if version.gate_status != "blessed":
            raise NotPromotable(
                f"{model} {number} ({version.semantic}) is {version.gate_status}, not blessed: its "
                "evaluation says which rule could not be decided and what would decide it; materialize the "
                "model on a later date, or change the gates in defs.yaml"
            )
        self._store.open(version.bundle_digest)
        standing = self._ledger.in_production(model, PRODUCTION)
        if standing is None or standing.version != str(number):
            standing = self._ledger.promote(
                model,
                str(number),
                PRODUCTION,
                author=author,
                reason=reason,
                bundle_digest=version.bundle_digest,
            )
        self._draw(model)
        return standing

    def in_production(self, model: str, at: datetime | None = None) -> Promotion | None:
        """Who was in production at a moment (None: now), from the log alone.

        Asked about now, the alias in MLflow is repaired where it differs; a tracker that is away is only
        logged, because the answer does not depend on it.
        """
        promotion = self._ledger.in_production(model, PRODUCTION, at)
        if promotion is not None and at is None:
            try:
                if self._registry.aliased(model, PRODUCTION) != int(promotion.version):
                    self._draw(model)
            except TrackerError as error:
                logging.getLogger(__name__).warning("the alias of %s was not checked: %s", model, error)
        return promotion

    def champion(self, model: str) -> Bundle | None:
        """The bundle in production with its lineage (`bundle.facts`), or None before the first promotion.

        Needs the ledger and the bundle store only. Raises `BundleMissing` or `BundleDamaged`.
        """
        promotion = self._ledger.in_production(model, PRODUCTION)
        return None if promotion is None else self._store.open(promotion.bundle_digest)

    def log(self, model: str) -> list[Promotion]:
        """Every promotion of a model, oldest first."""
        return self._ledger.promotions(model)

    def _draw(self, model: str) -> None:
        """Show the log in MLflow: the alias, and a stage on each version that was ever promoted."""
        numbers = [int(row.version) for row in self._ledger.promotions(model) if row.alias == PRODUCTION]
        newest = numbers[-1]
        for number in set(numbers):
            self._registry.tag(model, number, "stage", PRODUCTION if number == newest else "archived")
        self._registry.set_alias(model, PRODUCTION, newest)
