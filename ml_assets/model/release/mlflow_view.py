"""View of the ledger's decisions in MLflow: written after the ledger's row, and corrected where it differs.

The ledger decides. MLflow's alias and tags are never read for a decision, because then anybody who can write a tag
could promote. Not here: which tags and aliases follow from the ledger (`shown_in_mlflow`).
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime

from ml_assets.model.release.bundle_standing import CANARY, PRODUCTION, BundleStandings
from ml_assets.model.release.decisions import Decisions
from ml_assets.model.release.registry import RegisteredVersion, VersionMissing
from ml_assets.model.release.shown_in_mlflow import ALIASES, holder_of, number_of, tags_of
from resources.ledger import Promotion
from resources.tracking.mlflow_client import TrackerError, TrackerRefused


class MlflowView(Decisions):
    """The decisions of the ledger, as MLflow shows them."""

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
        held = standings.in_production
        if held is not None and number_of(held, versions) is None:
            said.append(
                f"version {held.version} of {model} is in production, and MLflow has no version of its bundle "
                f"{held.bundle_digest[:12]} under {self._registry.bundles}: the home was moved (ml-assets home move), "
                "or the registry is new: materialize its partition again, which registers it there"
            )
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
            held = holder_of(alias, standings)
            shown, right = self._registry.aliased(model, alias), number_of(held, versions)
            if shown == right or (shown is not None and held is not None and self._is_moved(held, shown)):
                continue
            yield alias, shown, right

    def _is_moved(self, held: Promotion, shown: int) -> bool:
        """Return True if MLflow shows the right bundle at its address before the home was moved: the alias stays."""
        try:
            return self._registry.is_of_moved_home(held.model, shown, held.bundle_digest)
        except TrackerRefused:  # the alias points to a version that was deleted
            return False

    def _aliased(self, model: str) -> str | None:
        """Return the bundle digest of the version that MLflow shows as in production."""
        number = self._registry.aliased(model, PRODUCTION)
        if number is None:
            return None
        try:
            return self._registry.version(model, number).bundle_digest
        except VersionMissing:  # the alias points to a version without a bundle
            return ""


def _wrong_tags(
    versions: Sequence[RegisteredVersion], standings: BundleStandings
) -> Iterator[tuple[RegisteredVersion, str, str]]:
    """Yield each tag that differs from the ledger, with the ledger's value."""
    for version in versions:
        for name, value in tags_of(standings.of(version.bundle_digest)).items():
            if version.tags.get(name) != value:
                yield version, name, value
