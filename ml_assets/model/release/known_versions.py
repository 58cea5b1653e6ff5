"""Readers of stages and version numbers that fall back on the last answer while a server is away.

Here: reads of notebooks and servers, which fall back on the last answer of this machine and say so. Not here: decisions
(`promotion`) and their grounds. They need the ledger, and never import this module.
"""

from datetime import datetime
from typing import Self

from pydantic import BaseModel, ConfigDict

from ml_assets.model.release.registry import Registry
from ml_assets.model.release.releases import registry_of, with_its_bundle
from ml_assets.model.release.rules import CanarySection
from ml_assets.model.release.rules_in_force import RulesLog, in_force
from ml_assets.model.release.standing import BundleStandings
from resources.ledger import Ledger, LedgerBusy, LedgerUnavailable, ModelLog, Promotion
from resources.platform import Platform
from resources.tracking.mlflow_client import TrackerUnavailable
from resources.web.last_answers import Answer, LastAnswers

_FOLDER = "known-versions"
_PATIENCE_SECONDS = 30.0
_ONE_TRY_SECONDS = 1.0
"""Patience of the ledger in one try: the last answers have the retries."""
_LEDGER_AWAY = (LedgerUnavailable, LedgerBusy)
_ANSWER_SECONDS = 5.0
"""Time limit of one read. A frozen ledger answers nothing and refuses nothing, and a server must notice a rollback soon
after it is back."""


class Holder(BaseModel):
    """Version that holds a stage."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    """MLflow's number when it was promoted."""
    bundle_digest: str
    since: datetime

    @classmethod
    def of(cls, promotion: Promotion | None) -> Self | None:
        if promotion is None:
            return None
        return cls(number=int(promotion.version), bundle_digest=promotion.bundle_digest, since=promotion.at)


class Stages(Answer):
    """Holders of the stages of a model, and the rules of its canary that are in force."""

    production: Holder | None
    canary: Holder | None
    rules: CanarySection | None = None
    """None: the rules in force have no canary, or none are recorded."""


class KnownBundle(Answer):
    bundle_digest: str


class StageReader:
    """Stages of models: from the ledger, or the last answer while it is away."""

    def __init__(self, ledger: Ledger, answers: LastAnswers) -> None:
        self._ledger, self._log, self._answers = ledger, ledger.models, answers

    def stages(self, model: str) -> Stages:
        """Return the stages of a model. Raises `LedgerError`; `LedgerUnavailable` if there is no last answer."""

        def read(now: datetime) -> Stages:
            changes = self._log.stage_changes(model)
            # After the stages: a promotion follows its rules, so no new canary is read with the rules before them.
            recorded, accounts = self._log.rules(model), self._ledger.accounts.all()
            standings = BundleStandings.of_stages(changes)
            place = max((one.place for one in (*changes, *recorded, *accounts)), default=0)
            return Stages(
                read_at=now,
                place=place,
                is_of_empty_log=not place and self._log.head().place == 0,
                production=Holder.of(standings.in_production),
                canary=Holder.of(standings.canary),
                rules=in_force(RulesLog.of(recorded, accounts)).canary,
            )

        return self._answers.ask(f"stages of {model}", Stages, read)


class NumberReader:
    """Bundles of registered versions: from MLflow, compared with the ledger, or the last answer while one is away."""

    def __init__(self, registry: Registry, log: ModelLog, answers: LastAnswers) -> None:
        self._registry, self._log, self._answers = registry, log, answers

    def bundle(self, model: str, number: int) -> KnownBundle:
        """Return the bundle of a version. Raises `VersionMissing`; `NumberReused` if the ledger knows the number for
        another bundle; `TrackerUnavailable` or `LedgerError` if there is no last answer."""

        def read(now: datetime) -> KnownBundle:
            found = with_its_bundle(self._registry.version(model, number), self._log)
            return KnownBundle(read_at=now, bundle_digest=found.bundle_digest)

        return self._answers.ask(f"bundle of {model}/{number}", KnownBundle, read)


def stage_reader_of(platform: Platform) -> StageReader:
    settings = platform.settings
    server = f"ledger {settings.resolved_ledger_url} of environment {settings.namespace}"
    folder = settings.cache_folder / _FOLDER
    return StageReader(_quick(platform), LastAnswers(folder, server, _LEDGER_AWAY, _patience(platform)))


def number_reader_of(platform: Platform) -> NumberReader:
    settings, registry = platform.settings, registry_of(platform)
    server = f"MLflow {settings.resolved_tracking_uri} with bundles in {registry.bundles}"
    folder, away = settings.cache_folder / _FOLDER, (TrackerUnavailable, *_LEDGER_AWAY)
    answers = LastAnswers(folder, server, away, _patience(platform))
    return NumberReader(registry, _quick(platform).models, answers)


def _quick(platform: Platform) -> Ledger:
    """Return the ledger over connections of their own that give up soon."""
    settings = platform.settings
    settings.own_home.mkdir(parents=True, exist_ok=True)
    return Ledger(
        settings.resolved_ledger_url.reveal(),
        min(_ONE_TRY_SECONDS, _patience(platform)),
        environment=settings.namespace,
        answer_seconds=_ANSWER_SECONDS,
    )


def _patience(platform: Platform) -> float:
    return _PATIENCE_SECONDS if platform.patience_seconds is None else platform.patience_seconds
