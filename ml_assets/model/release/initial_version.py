"""Registered version whose weights a training begins with: `init_from: model@alias` or `model/number`.

Here: finding the version when a training is launched, and checking that the training may use it. Not here: loading its
weights (training.checkpoint.initial).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ml_assets.data.features.encoding import FittedState
from ml_assets.data.snapshots.split_reader import file_sha256
from ml_assets.foundation.days import Days
from ml_assets.foundation.objective_facts import facts_of
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.releases import DecisionRefused, Releases
from ml_assets.model.release.runtime import WEIGHTS
from ml_assets.model.release.standing import CANARY, PRODUCTION, InputsUnknown, in_words
from resources.ledger import EvaluationRow


class InitialModelRefused(DecisionRefused):
    """`init_from` names no version, or a version that this training may not begin with."""


@dataclass(frozen=True)
class InitialModel:
    """Version of a model with whose weights another training begins."""

    version: str
    """`model/number`, even if `init_from` names an alias."""
    bundle: Bundle
    evaluation: str = ""
    """Digest of its newest evaluation, which records its training window."""

    @property
    def weights(self) -> Path:
        return self.bundle.folder / WEIGHTS

    @cached_property
    def weights_sha256(self) -> str:
        """SHA-256 of that file. It is part of the training's fingerprint."""
        return file_sha256(self.weights)

    @property
    def seen(self) -> Days:
        """Days that its weights and its values have seen."""
        return self.bundle.facts.lineage.seen

    def require_unseen(self, holdout: Days) -> None:
        """Raise `InitialModelRefused` if it has seen `holdout`, whose days measure the new training, or later days."""
        if self.seen.reaches(holdout):
            raise InitialModelRefused(
                f"{self.version} has seen {self.seen} (its training and validation rows, those of the versions that it "
                f"began with, and of the study that chose its values), and this training is measured on {holdout}: the "
                "score would include rows that trained it. Name an older version, or train a later partition",
                "seen",
            )

    def fitted_for(self, numeric: Sequence[str], categorical: Sequence[str]) -> FittedState:
        """Return the encoding of these columns, which the new training keeps.

        Initial weights depend on the ids of categories and the scales of numbers. Raises `InitialModelRefused` if the
        model reads other columns.
        """
        facts = self.bundle.facts
        theirs = [[column.name for column in of] for of in (facts.fitted.numeric, facts.fitted.categorical)]
        ours = [list(numeric), list(categorical)]
        if theirs != ours:
            raise InitialModelRefused(
                f"{self.version} reads numeric {theirs[0]} and categorical {theirs[1]}, this pipeline {ours[0]} and "
                f"{ours[1]}: its weights are meaningless for other columns or another order. Use its columns "
                f"and order, or leave init_from out",
                "columns",
            )
        return facts.fitted

    def require_outputs(self, objective: str, tokens: str) -> None:
        """Raise `InitialModelRefused` if one of this model and `objective` has classes and the other has not, or if
        this model reads texts as other tokens than `tokens` (`bundle_store.tokens_of`).
        """
        theirs = self.bundle.facts.objective
        if facts_of(theirs).has_classes != facts_of(objective).has_classes:
            raise InitialModelRefused(
                f"{self.version} has objective {theirs}, this pipeline {objective}: the last layer of its network has "
                "another number of outputs. Name a version with the same objective, or leave init_from out",
                "objective",
            )
        read = self.bundle.facts.tokens
        if read != tokens:
            raise InitialModelRefused(
                f"{self.version} reads texts as other tokens ({read or 'none'}) than this pipeline "
                f"({tokens or 'none'}): its weights are meaningless for other token ids. Use its `decode` and "
                "vocabulary (features.blob), name another version, or leave init_from out",
                "tokens",
            )


def initial_model(wanted: str, releases: Releases) -> InitialModel:
    """Return the version that `wanted` names now.

    Raises `InitialModelRefused`, `VersionMissing`, `BundleMissing`, `BundleDamaged`.
    """
    version = _version_of(wanted, releases)
    return replace(version, evaluation=newest_fit(version, releases).evaluation_digest)


def newest_fit(version: InitialModel, releases: Releases) -> EvaluationRow:
    """Return the newest evaluation of `version`.

    Raises `InitialModelRefused` if it was never evaluated, if a person archived it, if a gate rejected it, or if
    rows that trained it are rejected by now.
    """
    evaluated = releases.standings(version.bundle.facts.lineage.model).of(version.bundle.digest)
    newest, shown = evaluated.newest, evaluated.shown
    if newest is None or shown is None:
        raise InitialModelRefused(
            f"{version.version} was never evaluated: name an evaluated version, or leave init_from out",
            "evaluation",
        )
    if (archival := evaluated.archival) is not None:
        raise InitialModelRefused(
            f"{version.version} was archived at {archival.at:%Y-%m-%d %H:%M} UTC by {archival.author}: "
            f"{archival.reason}. Name another version, or leave init_from out",
            "archived",
        )
    if shown.status == "rejected":
        raise InitialModelRefused(
            f"{version.version} is rejected by its newest evaluation {shown.name} ({shown.partition}): {shown.summary} "
            "Name another version, or leave init_from out",
            "evaluation",
        )
    helps = (
        "accept the partition (ml-assets accept TABLE PARTITION --reason '…') or fix it, name a version that "
        "was trained on other rows, or leave init_from out"
    )
    try:
        refused = releases.rejected_inputs(newest)
    except InputsUnknown as unknown:
        raise InitialModelRefused(
            f"training cannot begin with {version.version}: {unknown}; {helps}",
            "inputs",
        ) from unknown
    if refused:
        raise InitialModelRefused(
            f"{version.version} was trained on rows that were rejected since: {in_words(refused)}; {helps}",
            "inputs",
        )
    return newest


def _version_of(wanted: str, releases: Releases) -> InitialModel:
    model, at, alias = wanted.partition("@")
    if not at:
        model, _, number = wanted.partition("/")
    elif alias in (PRODUCTION, CANARY):
        promotion = releases.in_production(model) if alias == PRODUCTION else releases.standings(model).canary
        if promotion is not None:
            # Open it by bundle: a new registry may have given the number to another version.
            return InitialModel(f"{model}/{promotion.version}", releases.store.open(promotion.bundle_digest))
        number = None
    else:
        number = releases.registry.aliased(model, alias)
    if number is None:
        raise InitialModelRefused(
            f"no version of {model} is {alias}: promote one (ml-assets promote {model} NUMBER --reason '…'), name a "
            f"version ({model}/1), or leave init_from out",
            "role",
        )
    version = releases.version(model, int(number))
    return InitialModel(f"{model}/{version.number}", releases.store.open(version.bundle_digest))
