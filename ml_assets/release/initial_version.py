"""The registered version whose weights a training begins with: `init_from: model@alias` or `model/number`.

Here: which version that is when a training is launched, and whether it may be. Not here: loading its weights
(training.initial).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ml_assets.features.encoding import FittedState
from ml_assets.release.bundle_standing import PRODUCTION
from ml_assets.release.bundle_store import WEIGHTS, Bundle, BundleStore
from ml_assets.release.promotion import Releases
from ml_assets.release.registry import Registry
from ml_assets.release.rows_behind import InputsUnknown, in_words
from ml_assets.snapshots.split_reader import file_sha256
from resources.ledger import EvaluationRow


class InitialModelRefused(Exception):
    """`init_from` names no version, or one that this training may not begin with; the message says what helps."""


@dataclass(frozen=True)
class InitialModel:
    """A version of a model, as the beginning of another training."""

    version: str
    """`model/number`, also where an alias was asked for."""
    bundle: Bundle
    evaluation: str = ""
    """Digest of its newest evaluation, which says what it was trained on."""

    @property
    def weights(self) -> Path:
        """Its `model.safetensors`."""
        return self.bundle.folder / WEIGHTS

    @cached_property
    def weights_sha256(self) -> str:
        """Return the digest of that file, which the fingerprint of the training holds."""
        return file_sha256(self.weights)

    def fitted_for(
        self, numeric: Sequence[str], categorical: Sequence[str], holdout: Sequence[str]
    ) -> FittedState:
        """Return the encoding of these columns, which the new training keeps: its weights know a category by its
        number alone, and a value by its scale.

        `holdout` are the partitions that the new training is judged on. Raises `InitialModelRefused` where the model
        reads other columns, or has learned from the holdout or from what came later.
        """
        facts = self.bundle.facts
        theirs = [[column.name for column in of] for of in (facts.fitted.numeric, facts.fitted.categorical)]
        ours = [list(numeric), list(categorical)]
        if theirs != ours:
            raise InitialModelRefused(
                f"{self.version} reads numeric {theirs[0]} and categorical {theirs[1]}, this pipeline {ours[0]} and "
                f"{ours[1]}: its weights mean nothing for other columns or another order. Use the same, or leave "
                "init_from out"
            )
        newest = max(last for split, (_, last) in facts.lineage.windows.items() if split != "holdout")
        if newest >= min(holdout):
            raise InitialModelRefused(
                f"{self.version} was trained on partitions up to {newest}, and this training is evaluated on "
                f"{min(holdout)} and later: the score would include rows it has seen. Name an older version, or train "
                "a later partition"
            )
        return facts.fitted


def initial_model(reference: str, releases: Releases, registry: Registry, store: BundleStore) -> InitialModel:
    """The version that `reference` names now. Raises `InitialModelRefused`, `VersionMissing`, `BundleMissing`,
    `BundleDamaged`."""
    version = _version_of(reference, releases, registry, store)
    return replace(version, evaluation=newest_fit(version, releases).evaluation_digest)


def newest_fit(version: InitialModel, releases: Releases) -> EvaluationRow:
    """Return the newest evaluation of `version`.

    Raises `InitialModelRefused` where a gate rejected it, or it has learned from rows that are rejected by now.
    """
    evaluated = releases.standing(version.bundle.facts.lineage.model, version.bundle.digest)
    newest, shown = evaluated.newest, evaluated.shown
    if newest is None or shown is None:
        raise InitialModelRefused(
            f"{version.version} was never evaluated: name a version that was, or leave init_from out"
        )
    if shown.status == "rejected":
        raise InitialModelRefused(
            f"{version.version} is rejected by its newest evaluation {shown.name} ({shown.partition}): {shown.summary} "
            "Name another version, or leave init_from out"
        )
    helps = (
        "accept the partition (ml-assets accept TABLE PARTITION --reason '…') or mend it, name a version of other "
        "rows, or leave init_from out"
    )
    try:
        refused = releases.rejected_inputs(newest)
    except InputsUnknown as unknown:
        raise InitialModelRefused(f"{version.version} cannot be begun with: {unknown}; {helps}") from unknown
    if refused:
        raise InitialModelRefused(
            f"{version.version} was trained on rows that are rejected by now: {in_words(refused)}; {helps}"
        )
    return newest


def _version_of(reference: str, releases: Releases, registry: Registry, store: BundleStore) -> InitialModel:
    model, at, alias = reference.partition("@")
    if not at:
        model, _, number = reference.partition("/")
    elif alias == PRODUCTION:
        promotion = releases.in_production(model)
        if promotion is not None:
            # By bundle: a registry that began anew may have given the number to another.
            return InitialModel(f"{model}/{promotion.version}", store.open(promotion.bundle_digest))
        number = None
    else:
        number = registry.aliased(model, alias)
    if number is None:
        raise InitialModelRefused(
            f"no version of {model} is {alias}: promote one (ml-assets promote {model} NUMBER --reason '…'), name a "
            f"version ({model}/1), or leave init_from out"
        )
    version = registry.version(model, int(number))
    return InitialModel(f"{model}/{version.number}", store.open(version.bundle_digest))
