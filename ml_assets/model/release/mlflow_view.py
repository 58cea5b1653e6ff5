"""View of the ledger's decisions in MLflow: written after the ledger's row, and corrected where it differs.

The ledger decides. MLflow's alias and tags are never read for a decision, because then anybody who can write a tag
could promote. `mlflow_guard` lets nobody write anything else.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ml_assets.model.release.registry import RegisteredVersion, Registry, VersionMissing
from ml_assets.model.release.standing import CANARY, PRODUCTION, BundleStanding, BundleStandings
from resources.ledger import ModelLog, Promotion
from resources.tracking.mlflow_client import TrackerError, TrackerRefused

_LOGGER = logging.getLogger(__name__)

ALIASES = (PRODUCTION, CANARY)
"""Aliases that follow the ledger."""
DECIDED_TAGS = ("stage", "gate_status", "evaluation", "report")
"""Tags of a version that follow the ledger."""


def holder_of(alias: str, standings: BundleStandings) -> Promotion | None:
    """Return the promotion whose version has `alias` by the ledger; None if no version has it."""
    return standings.canary if alias == CANARY else standings.in_production


def number_of(held: Promotion | None, versions: Sequence[RegisteredVersion]) -> int | None:
    """Return MLflow's number of the promoted version; None if there is none, or MLflow does not have it.

    `versions` are all versions of the model, oldest first: of several with one bundle, the oldest counts.
    """
    return next((one.number for one in versions if held and one.bundle_digest == held.bundle_digest), None)


def tags_of(found: BundleStanding) -> dict[str, str]:
    """Return the tags of a version for its stage and evaluation: all of `DECIDED_TAGS`, or `stage` alone."""
    if found.shown is None:
        return {"stage": found.stage}
    return {
        "stage": found.stage,
        "gate_status": found.shown.status,
        "evaluation": found.shown.name,
        "report": found.shown.report,
    }


def is_alias_right(registry: Registry, model: str, promotion: Promotion | None) -> bool:
    """Return True if MLflow shows the bundle of `promotion` as in production, or no version for None."""
    number = registry.aliased(model, PRODUCTION)
    if number is None or promotion is None:
        return number is None and promotion is None
    try:
        return registry.version(model, number).bundle_digest == promotion.bundle_digest
    except VersionMissing:  # the alias points to a version without a bundle
        return False


def show(registry: Registry, log: ModelLog, model: str) -> None:
    """Update MLflow from the ledger: the alias, and the stage and evaluation of each version.

    Versions are matched by bundle, because a new registry gives the same numbers again. Reads the ledger again after
    writing: if another process decided meanwhile, this one may have written over what the other showed.
    """
    shown = None
    while shown != (standings := BundleStandings.read(log, model)):
        try:
            _write(registry, model, standings)
        except TrackerRefused:  # MLflow's guard compares with the ledger of this moment
            if BundleStandings.read(log, model) == standings:
                raise
        else:
            shown = standings


def show_if_reachable(registry: Registry, log: ModelLog, model: str) -> None:
    """Update MLflow from the ledger. If MLflow does not answer, only log it: the decision does not depend on it."""
    try:
        show(registry, log, model)
    except TrackerError as error:
        _LOGGER.warning("MLflow does not show the newest decision about %s yet: %s", model, error)


def differences(registry: Registry, log: ModelLog, model: str) -> list[str]:
    """Return what MLflow shows of a model and the ledger says otherwise, in words. Changes nothing."""
    standings, versions = BundleStandings.read(log, model), registry.versions(model)
    said = [
        f"{name} of {model} {version.number} is {version.tags.get(name)!r} in MLflow and {value!r} in the ledger"
        for version, name, value in _wrong_tags(versions, standings)
    ]
    held = standings.in_production
    if held is not None and number_of(held, versions) is None:
        said.append(
            f"version {held.version} of {model} is in production, and MLflow has no version of its bundle "
            f"{held.bundle_digest[:12]} under {registry.bundles}: the home was moved (ml-assets home move), "
            "or the registry is new: materialize its partition again, which registers it there"
        )
    return said + [
        f"{model}@{alias} is version {shown or 'none'} in MLflow and {right or 'none'} in the ledger"
        for alias, shown, right in _wrong_aliases(registry, model, standings, versions)
    ]


def _write(registry: Registry, model: str, standings: BundleStandings) -> None:
    versions = registry.versions(model)
    for version, name, value in _wrong_tags(versions, standings):
        # Gone: two processes registered this bundle, and the second version was deleted.
        with suppress(TrackerRefused):
            registry.tag(model, version.number, name, value)
    promotion = standings.in_production
    if promotion is not None and number_of(promotion, versions) is None:
        _LOGGER.warning(
            "%s in production (version %s, bundle %s) is not in MLflow's registry: materialize its partition again to "
            "register it there",
            model,
            promotion.version,
            promotion.bundle_digest[:12],
        )
    for alias, _, right in _wrong_aliases(registry, model, standings, versions):
        registry.set_alias(model, alias, right)


def _wrong_aliases(
    registry: Registry, model: str, standings: BundleStandings, versions: Sequence[RegisteredVersion]
) -> Iterator[tuple[str, int | None, int | None]]:
    """Yield each alias that differs from the ledger: its name, MLflow's version, the ledger's version."""
    for alias in ALIASES:
        if alias == CANARY and not standings.canaries:
            continue  # the alias is not ours
        held = holder_of(alias, standings)
        shown, right = registry.aliased(model, alias), number_of(held, versions)
        if shown == right or (shown is not None and held is not None and _is_moved(registry, held, shown)):
            continue
        yield alias, shown, right


def _is_moved(registry: Registry, held: Promotion, shown: int) -> bool:
    """Return True if MLflow shows the right bundle at its address before the home was moved: the alias stays."""
    try:
        return registry.is_of_moved_home(held.model, shown, held.bundle_digest)
    except TrackerRefused:  # the alias points to a version that was deleted
        return False


def _wrong_tags(
    versions: Sequence[RegisteredVersion], standings: BundleStandings
) -> Iterator[tuple[RegisteredVersion, str, str]]:
    """Yield each tag that differs from the ledger, with the ledger's value."""
    for version in versions:
        for name, value in tags_of(standings.of(version.bundle_digest)).items():
            if version.tags.get(name) != value:
                yield version, name, value
