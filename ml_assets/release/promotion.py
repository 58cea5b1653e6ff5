"""Registration of bundles as versions, and choice of the version in production.

The ledger decides: its evaluations say what may be registered and promoted, its promotions what is in
production. MLflow's alias and tags show that. They are written after the ledger's row, corrected where they
differ, and never read for a decision, because whoever can write a tag could promote with it. Not here: gates
(`evaluation`), MLflow's versions (`registry`).

What decides is read in the transaction that writes the decision, while nobody can record a verdict on any table or an
evaluation of the model. A rejection that is recorded later comes after the decision: a version may then be registered
or in production whose inputs are rejected. The next promotion of it is refused, and so is training on them.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from ml_assets.release.bundle_standing import PRODUCTION, BundleStanding, BundleStandings
from ml_assets.release.bundle_store import Bundle, BundleStore
from ml_assets.release.registry import RegisteredVersion, Registry, VersionMissing
from ml_assets.release.rows_behind import InputsRejected, InputsUnknown, contents_of, in_words
from ml_assets.release.versions import Numbered, SemanticVersion, next_version
from ml_assets.tables.guard import rejections_of
from resources.lake import VersionedStore
from resources.ledger import EvaluationRow, Ledger, Promotion, SemanticName
from resources.mlflow_client import TrackerError, TrackerRefused

Answer = TypeVar("Answer")


class NotRegistrable(Exception):
    """The newest evaluation of the bundle rejected it, or there is none: the version is not made."""


class NotPromotable(Exception):
    """A promotion or demotion that may not be; the message says why and what would let it."""


class _Overtaken(Exception):
    """Another evaluation came while the rows behind the one before were looked up."""


class Releases:
    """Registrations and promotions of all models: ledger, registry, bundles and lake together."""

    def __init__(self, ledger: Ledger, registry: Registry, store: BundleStore, lake: VersionedStore) -> None:
        self._ledger = ledger
        self._log = ledger.models
        self._registry = registry
        self._store = store
        self._lake = lake

    def register(self, bundle: Bundle, *, run_id: str, links: Mapping[str, str]) -> RegisteredVersion:
        """The version of this bundle, made if it is not there yet.

        `links` are tags that lead elsewhere, such as lake commit, Dagster run and partition; a version keeps its
        first links. `run_id` is the MLflow run that trained it. Raises `NotRegistrable`, `InputsRejected` where a row
        that it was trained on is rejected by now, and `InputsUnknown`.
        """
        facts = bundle.facts
        model = facts.lineage.model

        def registrable() -> EvaluationRow:
            newest = self._log.newest_evaluation(model, bundle.digest)
            if newest is None or newest.status == "rejected":
                why = "was never evaluated" if newest is None else f"is rejected by evaluation {newest.name}"
                raise NotRegistrable(
                    f"{model} {facts.lineage.fingerprint[:12]} {why}: materialize the model, whose evaluation names "
                    "rule, slice and margin; train again after a change, or change the gates in defs.yaml"
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
        tags = {
            **links,
            "semantic_version": semantic,
            "bundle_digest": bundle.digest,
            "fingerprint": facts.lineage.fingerprint,
            "snapshot_digest": facts.lineage.snapshot_digest,
            "schema_digest": facts.schema_digest,
            "recipe_digest": facts.recipe_digest,
            **_tags_of(self.standing(model, bundle.digest)),
        }
        version = self._registry.add(bundle, run_id=run_id, tags=tags)
        self.show(model)
        return self._registry.version(model, version.number)

    def promote(
        self, model: str, number: int, *, author: str, reason: str, despite_inputs: bool = False
    ) -> Promotion:
        """Put a version into production, in place of the one that is there.

        Its newest evaluation must have blessed it beside what is in production now, and nothing that it was trained on
        may be rejected by now; `despite_inputs` lifts the latter, and the promotion records what was rejected. A
        version that was in production before needs none of this: going back to it is always possible, and rests on the
        evaluation it was promoted on. Promoting what is in production already changes nothing and returns the standing
        promotion. Raises `NotPromotable`, `VersionMissing`, and `BundleMissing` or `BundleDamaged` where its bundle
        could not be served.
        """
        if not reason.strip():
            raise NotPromotable(f"promoting {model} {number} needs a reason that others can read later")
        version = self._registry.version(model, number)
        self._promotable(version)
        self._store.open(version.bundle_digest)

        def write_it() -> Promotion:
            found = self._promotable(version)
            if found.is_in_production and found.promotion is not None:
                return found.promotion
            against = _nothing if found.promotion else self._against(found.newest)
            despite = against()
            if despite and not despite_inputs:
                raise NotPromotable(_not_on_these_inputs(version, despite))

            def allow() -> None:
                # Once more at the moment of writing: what decides may have changed while it was looked up.
                if self._promotable(version) != found or against() != despite:
                    raise _Overtaken

            return self._log.promote(
                model,
                str(number),
                PRODUCTION,
                author=author,
                reason=reason,
                bundle_digest=version.bundle_digest,
                evaluation_digest=found.decided_by,
                despite=in_words(despite, len(despite)),
                allow=allow,
            )

        promotion = _until_not_overtaken(write_it)
        self.show(model)
        return promotion

    def _promotable(self, version: RegisteredVersion) -> BundleStanding:
        """The standing of `version`, whose evaluations let it be promoted; else `NotPromotable`."""
        standings = BundleStandings.read(self._log, version.model)
        found, champion = standings.of(version.bundle_digest), standings.in_production
        if found.promotion is not None:
            return found
        named, newest = _named(version), found.newest
        if newest is None:
            raise NotPromotable(
                f"{named} was never evaluated: materialize the model, then promote the version that comes of it"
            )
        if newest.status != "blessed":
            raise NotPromotable(
                f"{named} is {newest.status}, not blessed, by its newest evaluation {newest.name} "
                f"({newest.partition}): {newest.summary} The report says what would decide it: {newest.report}. "
                "Materialize the model on a later date, or change the gates in defs.yaml"
            )
        if champion is not None and champion.bundle_digest != newest.champion_digest:
            raise NotPromotable(
                f"{named} was compared with {standings.name_of(newest.champion_digest)} by its newest evaluation "
                f"{newest.name} ({newest.partition}), and version {champion.version} is in production since "
                f"{champion.at:%Y-%m-%d %H:%M} UTC. Evaluate it beside that one, which reuses the training: ml-assets "
                f"launch {version.model} {newest.partition}"
            )
        return found

    def rejected_inputs(self, evaluation: EvaluationRow) -> Mapping[str, str]:
        """`table key` → why, of what the evaluated weights were trained on and is rejected by now. Raises
        `InputsUnknown`."""
        return rejections_of(self._ledger, contents_of(self._lake, self._log, evaluation.trained_on))

    def rejected_in_production(self, model: str) -> Mapping[str, str]:
        """`table key` → why, of what the version in production was trained on and is rejected by now, but for what it
        was promoted in spite of. Empty where nothing is in production. Raises `InputsUnknown`."""
        promotion = self._log.in_production(model, PRODUCTION)
        evaluation = None if promotion is None else self._log.evaluation(promotion.evaluation_digest)
        if promotion is None or evaluation is None:
            return {}
        refused = self.rejected_inputs(evaluation)
        return {what: why for what, why in refused.items() if f"{what} " not in promotion.despite}

    def _against(self, evaluation: EvaluationRow | None) -> Callable[[], Mapping[str, str]]:
        """Look up the rows behind an evaluation; return what tells, at any later moment, which are rejected."""
        try:
            behind = contents_of(self._lake, self._log, evaluation.trained_on if evaluation else None)
        except InputsUnknown as unknown:
            said = {"its inputs": f"are not known: {unknown}"}
            return lambda: said
        return lambda: rejections_of(self._ledger, behind)

    def demote(self, model: str, *, author: str, reason: str) -> Promotion:
        """Take what is in production out of it, with nothing in its place; the promotion that ended.

        The next training is evaluated as a first model. Raises `NotPromotable` where nothing is in production.
        """
        if not reason.strip():
            raise NotPromotable(f"demoting {model} needs a reason that others can read later")
        standing = self._log.in_production(model, PRODUCTION)
        if standing is None:
            raise NotPromotable(
                f"no version of {model} is in production; ml-assets promote {model} --log shows which ones were"
            )
        demotion = self._log.demote(standing, author=author, reason=reason)
        self.show(model)
        return replace(standing, demotion=demotion)

    def newest_data(self, model: str) -> RegisteredVersion | None:
        """The version to promote when nobody names one: of those that may be promoted, the one of the newest data.

        A version that was in production and was replaced has to be named. None where no version qualifies.
        """
        standings = BundleStandings.read(self._log, model)
        ranked: list[tuple[str, int, RegisteredVersion]] = []
        for version in self._registry.versions(model):
            found = standings.of(version.bundle_digest)
            was_replaced = found.promotion is not None and not found.is_in_production
            if found.may_be_promoted and not was_replaced and found.shown is not None:
                ranked.append((found.shown.partition, version.number, version))
        return max(ranked, key=lambda one: one[:2])[2] if ranked else None

    def standing(self, model: str, bundle_digest: str) -> BundleStanding:
        """Return the ledger's record of one bundle."""
        return BundleStandings.read(self._log, model).of(bundle_digest)

    def in_production(self, model: str, at: datetime | None = None) -> Promotion | None:
        """The promotion that held at a moment (None: now), from the ledger alone.

        Asked about now, the alias in MLflow is corrected where it differs; a tracker that is away is only
        logged, because the answer does not depend on it.
        """
        promotion = self._log.in_production(model, PRODUCTION, at)
        if at is None:
            try:
                if self._aliased(model) != (promotion.bundle_digest if promotion else None):
                    self.show(model)
            except TrackerError as error:
                logging.getLogger(__name__).warning("the alias of %s was not checked: %s", model, error)
        return promotion

    def champion(self, model: str) -> Bundle | None:
        """The bundle in production with its lineage (`bundle.facts`), or None before the first promotion.

        Needs the ledger and the bundle store only. Raises `BundleMissing` or `BundleDamaged`.
        """
        promotion = self._log.in_production(model, PRODUCTION)
        return None if promotion is None else self._store.open(promotion.bundle_digest)

    def log(self, model: str) -> list[Promotion]:
        """Every promotion of a model, oldest first."""
        return self._log.promotions(model)

    def evaluations(self, model: str) -> list[EvaluationRow]:
        """Every evaluation of a model, oldest first."""
        return self._log.evaluations(model)

    def show(self, model: str) -> None:
        """Make MLflow show what the ledger says: the alias, and on each version stage and evaluation.

        Versions are matched by bundle, because a registry that began anew gives the same numbers again.
        """
        standings = BundleStandings.read(self._log, model)
        versions = self._registry.versions(model)
        for version in versions:
            for name, value in _tags_of(standings.of(version.bundle_digest)).items():
                if version.tags.get(name) != value:
                    with suppress(
                        TrackerRefused
                    ):  # gone: a second version of one bundle, made at once with it
                        self._registry.tag(model, version.number, name, value)
        promotion = standings.in_production
        numbers = [
            one.number for one in versions if promotion and one.bundle_digest == promotion.bundle_digest
        ]
        if promotion is not None and not numbers:
            logging.getLogger(__name__).warning(
                "%s in production (version %s, bundle %s) is not in MLflow's registry: materialize its partition "
                "again to register it there",
                model,
                promotion.version,
                promotion.bundle_digest[:12],
            )
        number = numbers[0] if numbers else None
        if self._registry.aliased(model, PRODUCTION) != number:
            self._registry.set_alias(model, PRODUCTION, number)

    def _aliased(self, model: str) -> str | None:
        """Bundle of the version that MLflow shows as in production."""
        number = self._registry.aliased(model, PRODUCTION)
        if number is None:
            return None
        try:
            return self._registry.version(model, number).bundle_digest
        except VersionMissing:  # points to something that is no bundle
            return ""


def _until_not_overtaken(decide: Callable[[], Answer]) -> Answer:
    while True:
        try:
            return decide()
        except _Overtaken:
            continue


def _nothing() -> Mapping[str, str]:
    return {}


def _named(version: RegisteredVersion) -> str:
    return f"{version.model} {version.number} ({version.semantic})"


def _not_on_these_inputs(version: RegisteredVersion, despite: Mapping[str, str]) -> str:
    return (
        f"{_named(version)} is not promoted for what it was trained on: {in_words(despite)}. Mend the source and "
        "materialize the partition, or accept it (ml-assets accept TABLE PARTITION --reason '…'); where its rows were "
        "replaced since, materialize the model again. To promote it all the same, which the log records: "
        f"ml-assets promote {version.model} {version.number} --despite-inputs --reason '…'"
    )


def _tags_of(found: BundleStanding) -> dict[str, str]:
    """Return the tags that MLflow shows of a version, besides those of its origin."""
    stage = "production" if found.is_in_production else "archived" if found.promotion else "staging"
    if found.shown is None:
        return {"stage": stage}
    return {
        "stage": stage,
        "gate_status": found.shown.status,
        "evaluation": found.shown.name,
        "report": found.shown.report,
    }
