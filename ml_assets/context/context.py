"""The one way in: what a person or a program asks of the platform, as methods with typed results.

Commands, notebooks and the page of reviews call these methods. A context reads, unless it was opened to write. Each
decision names the `Person` who decides. With accounts in the ledger, the person must act for one in force.

Not here: how a result looks (`ml_assets.cli`, `ml_assets.pages`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ml_assets.context.errors import HomeRefused, LaunchRefused, NotFound, ReadOnly
from ml_assets.context.home import make_home, pointing_dagster, prepare_to_read, read_settings
from ml_assets.context.project import Project
from resources.ledger import (
    Acceptance,
    Account,
    Archival,
    Decision,
    EvaluationRow,
    Person,
    Promotion,
)
from resources.settings import Settings

if TYPE_CHECKING:
    from ml_assets.context.data import Data
    from ml_assets.context.decisions import AcceptedRules, Promoted, Reviewed, RolledBack
    from ml_assets.context.environments import Environments
    from ml_assets.context.launch import Finished, Launchable
    from ml_assets.context.plan import LaunchPlan
    from ml_assets.context.prediction import ComingPrediction
    from ml_assets.context.runs import Runs
    from ml_assets.context.studies import ShownStudy
    from ml_assets.context.views import FeaturesView, OpenedSnapshot
    from ml_assets.extras.costs.budget import BudgetState
    from ml_assets.extras.costs.costs import By, Costs, TrainingCost
    from ml_assets.extras.reproduction.reproduce import Reproduction
    from ml_assets.foundation.reports.page import WrittenPage
    from ml_assets.model.release.foreign_document import ForeignModel
    from ml_assets.model.release.registry import RegisteredVersion
    from ml_assets.model.release.runtime import ServingModel
    from ml_assets.pages.digest import ScheduledShare
    from ml_assets.pages.version_difference import VersionDifference
    from ml_assets.use.live.canary_watch import CanaryEvidence


@dataclass(frozen=True, kw_only=True)
class ShownVersion:
    """A registered version with the evaluation that counts for it."""

    registered: "RegisteredVersion"
    stage: str
    """`production`, `canary`, `staging` or `archived`."""
    evaluation: EvaluationRow
    _project: Project

    def card(self) -> "WrittenPage":
        """Return the model card. Raises `ReportUnavailable` if the report of the evaluation is gone."""
        from ml_assets.model.steps.record import card_of

        return card_of(self._project.platform, self.registered)


@dataclass(frozen=True, kw_only=True)
class History:
    """Decisions about a model, oldest first."""

    decisions: Sequence[Decision]
    accounts: Sequence[Account]
    """All accounts of the ledger: an approval whose account was revoked is void."""


@dataclass(frozen=True)
class Context:
    """The platform in one home."""

    project: Project
    writes: bool = False
    """False: methods that change anything raise `ReadOnly`."""

    @classmethod
    def open(
        cls, settings: Settings, *, writes: bool = False, patience_seconds: float | None = None
    ) -> "Context":
        """Return a context with these settings. `patience_seconds` is the longest wait for a server.

        One that writes creates the home. One that reads creates nothing: without a home, it sees an empty one. Raises
        `HomeRefused` and `EnvironmentMissing`.
        """
        if writes:
            make_home(settings)
            return cls(Project(settings, patience_seconds), writes=True)
        return cls(Project(prepare_to_read(settings), patience_seconds))

    @property
    def person(self) -> Person:
        """Person of ML_ASSETS_TOKEN, ML_ASSETS_OIDC_TOKEN or ML_ASSETS_AUTHOR, who may decide.

        Raises `IdentityRefused` for a proof that proves no account, and `IdentityNeeded` if the ledger has accounts and
        nobody proved to be one.
        """
        person = self.project.platform.acting
        self.project.platform.ledger.accounts.require_identity(person)
        return person

    # Run

    def plan(self, model: str, partition: str | None = None) -> "LaunchPlan":
        """Return what a launch of a model would read and run, and what stands in its way.

        `partition` is by default the newest. Raises `NotFound` and `LaunchRefused`.
        """
        from ml_assets.context.plan import plan_of, with_expectation

        return with_expectation(self.project, plan_of(self.project, model, partition))

    def missing_behind(self, target: str, partitions: str | None = None) -> Sequence[tuple[str, str | None]]:
        """Return what a launch reads and nobody built: tables and partitions, as `launch` takes them, in its order.

        Raises `NotFound` and `LaunchRefused`.
        """
        from ml_assets.context.plan import missing_behind

        return missing_behind(self.project, target, partitions)

    def launch(
        self,
        target: str,
        partitions: str | None = None,
        *,
        resources: str | None = None,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> "Finished":
        """Materialize a model, a table, a study or predictions in this process, as `ml-assets launch` does.

        `partitions` is `KEY` or, for tables and predictions, `FIRST..LAST`; None for a table without partitions.
        `on_progress` gets a line about the running step. Raises `NotFound`, `LaunchRefused`, `RunFailed`, `ReadOnly`.
        """
        from ml_assets.context.launch import launch

        self._require_writes("launch")
        with pointing_dagster(self.project.settings):
            return launch(self.project, target, partitions, resources=resources, on_progress=on_progress)

    def launchable(
        self, target: str, partitions: str | None = None, *, resources: str | None = None
    ) -> "Launchable":
        """Return what a launch would materialize, for a process that launches it elsewhere. Launches nothing.

        Raises `NotFound`, `LaunchRefused` and `ProfileRefused`, as a launch does before it begins.
        """
        from ml_assets.context.launch import launchable

        return launchable(self.project, target, partitions, resources=resources)

    def restorable(self, run_id: str, step: int, *, resources: str | None = None) -> "Launchable":
        """Return the launch of a new training that begins with a checkpoint of the training of a run.

        For a process that launches it elsewhere, after `prepare`, which copies the checkpoint. Changes nothing. Raises
        `NotFound`, `RestoreRefused`, `CheckpointGone`, `CheckpointUnusable` and `ProfileRefused`.
        """
        from ml_assets.context.restore import restorable

        return restorable(self.project, run_id, step, resources=resources)

    def restore(
        self,
        run_id: str,
        step: int,
        *,
        resources: str | None = None,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> "Finished":
        """Train on from the checkpoint of `step` of the training of a run, as a new training, in this process.

        The other training stays as it is. Raises as `restorable`, and as `launch`.
        """
        from ml_assets.context.launch import launch_here

        self._require_writes("restore")
        with pointing_dagster(self.project.settings):
            what = self.restorable(run_id, step, resources=resources)
            return launch_here(self.project, what, on_progress)

    def registrable(self, document: "ForeignModel") -> "Launchable":
        """Return the launch that evaluates a model that was trained elsewhere, and registers it if the gates allow it.

        For a process that launches it elsewhere, after `prepare`: that checks the graph, reproduces golden rows in a
        process of its own, which takes some seconds, and keeps the document. Changes nothing itself. Raises `NotFound`,
        `LaunchRefused`, and `ForeignModelRefused`.
        """
        from ml_assets.context.foreign import registrable

        return registrable(self.project, document)

    def register(
        self, document: "ForeignModel", *, on_progress: Callable[[str], None] = lambda _: None
    ) -> "Finished":
        """Evaluate a model that was trained elsewhere in this process; register it if no gate rejects it.

        Raises as `registrable`, and as `launch`.
        """
        from ml_assets.context.launch import launch_here

        self._require_writes("register")
        with pointing_dagster(self.project.settings):
            return launch_here(self.project, self.registrable(document), on_progress)

    def evaluate(
        self, model: str, partition: str, *, on_progress: Callable[[str], None] = lambda _: None
    ) -> EvaluationRow:
        """Evaluate the finished training of a partition again, under the acting person; return the new evaluation.

        Raises `LaunchRefused` if a launch would train, since its window, settings or code changed; and the errors of
        `launch`.
        """
        planned = self.plan(model, partition)
        if not planned.is_as_trained:
            raise LaunchRefused(
                f"{model} {partition} has no finished training with these settings and rows, so a launch would train: "
                f"ml-assets plan {model} {partition} says why"
            )
        done = self.launch(model, partition, on_progress=on_progress)
        made = [
            one for one in self.project.platform.ledger.models.evaluations(model) if one.run_id == done.run_id
        ]
        return made[-1]

    def reproduce(
        self,
        version: str,
        *,
        workers: int | None = None,
        with_this_code: bool = False,
        on_log: Callable[[str], None] = lambda _: None,
    ) -> "Reproduction":
        """Train `MODEL/NUMBER`, or the version that a run evaluated, again on this machine, and compare.

        Nothing is stored. Raises `NotFound`, `VersionMissing`, `NotReproducible`, and the errors of a training.
        """
        from ml_assets.context.versions import version_named
        from ml_assets.extras.reproduction.reproduce import reproduce

        found = version_named(self.project, version)
        return reproduce(
            self.project.declared.pipeline(found.model),
            self.project.platform,
            found,
            workers=workers,
            with_this_code=with_this_code,
            on_log=on_log,
        )

    # Look

    def show(self, model: str, version: int | None = None) -> ShownVersion:
        """Return a version; by default the one in production, or else the newest.

        Raises `NotFound`, `VersionMissing`, and `ReportUnavailable` for a version that was never evaluated.
        """
        from ml_assets.context.versions import registered_version
        from ml_assets.model.steps.record import evaluation_of

        found = registered_version(self.project, model, version)
        return ShownVersion(
            registered=found,
            stage=self.project.releases.standings(model).of(found.bundle_digest).stage,
            evaluation=evaluation_of(self.project.platform, found),
            _project=self.project,
        )

    def compare(self, model: str, before: int, after: int) -> "VersionDifference":
        """Return what differs between two versions: data, code, settings, and both models on the same rows.

        Raises `NotFound`, `VersionMissing` and `ReportUnavailable`.
        """
        from ml_assets.context.versions import registered_version
        from ml_assets.pages.version_difference import compare_versions

        spec = self.project.declared.pipeline(model)
        versions = [registered_version(self.project, model, number) for number in (before, after)]
        return compare_versions(spec, self.project.platform, *versions)

    def history(self, model: str) -> History:
        """Return every decision about a model, from the ledger alone. Raises `NotFound` if there is none."""
        ledger = self.project.platform.ledger
        found = ledger.models.decisions(model)
        if not found:
            self._require_known(model)
            raise NotFound(
                f"the ledger has no decision about a model '{model}'. To train and evaluate it: ml-assets launch "
                f"{model} DATE"
            )
        return History(decisions=found, accounts=ledger.accounts.all())

    def in_production(self, model: str, at: datetime | None = None) -> Promotion | None:
        """Return the promotion that was in effect at a moment (None: now), from the ledger alone."""
        return self.project.platform.ledger.models.in_production(model, at=at)

    def canary(self, model: str) -> "CanaryEvidence":
        """Return what the requests of a model's canary show so far. Takes nothing back."""
        from ml_assets.use.live.canary_watch import evidence

        return evidence(self.project.declared.pipeline(model), self.project.platform)

    def load_model(self, name: str, *, threads: int = 1) -> "ServingModel":
        """Return a version as it serves: `predict` takes a polars frame with raw columns, `predict_row` a dict.

        `name` is `MODEL@production`, `MODEL@canary` or `MODEL/NUMBER`. If the ledger, or MLflow for a number, is away,
        the last answer of this machine counts, with the warning `StaleAnswer`. Raises `NotFound`, `VersionMissing`,
        `BundleMissing` and `BundleDamaged`; `LedgerUnavailable` or `TrackerUnavailable` without a last answer.
        """
        from ml_assets.context.views import load_model

        return load_model(self.project.platform, name, threads=threads)

    def predict(self, model: str, version: int | None = None) -> "ComingPrediction":
        """Return predictions for the partition that comes next; by default of the version in production, or else of the
        newest.

        Values that are not known before it begins are absent, and nothing is written. Raises `NotFound`,
        `VersionMissing`, `PredictionRefused`, and the errors of source and feature function.
        """
        from ml_assets.context.prediction import predict_next

        return predict_next(self.project, model, version)

    def open_snapshot(self, name: str) -> "OpenedSnapshot":
        """Return the rows that a training read.

        `name` is `MODEL/PARTITION`, for the newest evaluated training of that partition; `MODEL@production` or
        `MODEL@canary`; or the commit that keeps them, which reports and pages name. Raises `NotFound`.
        """
        from ml_assets.context.views import open_snapshot

        return open_snapshot(self.project.platform, name)

    def features(self, table: str, *, commit: str = "main") -> "FeaturesView":
        """Return the feature table `table` (without `features/`) at a commit or branch of the lake, by default main
        now.

        Raises `NotFound` if nothing declares it.
        """
        from ml_assets.context.views import FeaturesView

        spec = self.project.declared.feature_table(table)
        return FeaturesView(spec=spec, reader=self.project.reader(commit), platform=self.project.platform)

    @cached_property
    def data(self) -> "Data":
        """Versions of the lake's tables."""
        from ml_assets.context.data import Data

        return Data(self.project)

    @cached_property
    def runs(self) -> "Runs":
        """Runs of Dagster, whoever launched them."""
        from ml_assets.context.runs import Runs

        return Runs(self.project)

    def study(self, run_id: str) -> "ShownStudy":
        """Return the study of hyperparameters that a run is, with its trials. Raises `NotFound` and `StudyChanged`."""
        from ml_assets.context.studies import study_of

        return study_of(self.project, run_id)

    def costs(self, by: "By" = "pipeline", since: date | None = None) -> "Costs":
        """Return hours and money of what all trainings reserved, from the UTC day `since` on.

        Trainings that failed, diverged, were cancelled or lost cost, too. Raises `PricesRefused` and `ArtifactsError`.
        """
        from ml_assets.extras.costs.project_costs import all_costs

        return all_costs(self.project, by, since)

    def budgets(self) -> "Sequence[BudgetState]":
        """Return the budget of each pipeline that has one, with what it spent this month (UTC). Raises as `costs`."""
        from ml_assets.extras.costs.project_costs import all_budgets

        return all_budgets(self.project)

    def scheduled_trainings(self, since: date | None = None) -> "Sequence[ScheduledShare]":
        """Return how many trainings of each schedule completed, of those that ended from the UTC day `since` on.

        A launch counts once, by its newest repetition. None: the last 30 days.
        """
        from ml_assets.components.sensors.ended_runs import scheduled_shares

        now = datetime.now(UTC)
        first = now - timedelta(days=30) if since is None else datetime.combine(since, time(), UTC)
        return scheduled_shares(self.project.instance, first, now)

    def training_cost(self, training: str) -> "TrainingCost":
        """Return what one training cost, and where its wall time went. `training`: `MODEL/NUMBER`, or a Dagster run.

        Raises `NotFound`, `VersionMissing`, `PricesRefused` and `ArtifactsError`.
        """
        from ml_assets.extras.costs.project_costs import training_cost

        return training_cost(self.project, training)

    @cached_property
    def env(self) -> "Environments":
        """Environments of the home. Raises `HomeRefused` in a context of an environment."""
        from ml_assets.context.environments import Environments

        if (inside := self.project.settings.env) is not None:
            raise HomeRefused(
                f"this context works in environment {inside}, and environments are seen from main: unset ML_ASSETS_ENV"
            )
        return Environments(self.project, self._require_writes)

    # Decide

    def promote(
        self,
        model: str,
        version: int | None = None,
        *,
        by: Person,
        reason: str,
        despite_inputs: bool = False,
        on_missing: Callable[[str], None] = lambda _: None,
    ) -> "Promoted":
        """Put a version into production, or make it the canary, by the rules in force.

        By default the canary, without one the blessed version with the newest data. `despite_inputs`: although training
        inputs were rejected since. `on_missing` gets each metric of the canary that has no evidence, with the reason,
        also before a refusal. Raises `NotFound`, `NotPromotable`, `VersionMissing`, `BundleMissing`,
        `BundleDamaged`, `IdentityNeeded` and `ReadOnly`.
        """
        self._require_decision("promote", by)
        spec = self.project.declared.pipeline(model)
        return _decisions().promote(
            self.project.platform,
            spec,
            version,
            by=by,
            reason=reason,
            despite_inputs=despite_inputs,
            on_missing=on_missing,
        )

    def approve(
        self, model: str, version: int, *, by: Person, reason: str, read: str | None = None
    ) -> "Reviewed":
        """Approve the newest evaluation of a version. `read` is the digest of the evaluation that was read.

        Raises `NotReviewable`, `VersionMissing`, `IdentityNeeded` and `ReadOnly`.
        """
        self._require_decision("approve", by)
        return self._review(model, version, approves=True, by=by, reason=reason, read=read)

    def reject(
        self, model: str, version: int, *, by: Person, reason: str, read: str | None = None
    ) -> "Reviewed":
        """Reject the newest evaluation of a version; an earlier approval no longer counts. Raises as `approve`."""
        self._require_decision("reject", by)
        return self._review(model, version, approves=False, by=by, reason=reason, read=read)

    def rollback(self, model: str, *, by: Person, reason: str) -> "RolledBack":
        """Return to the version that was in production before the present one.

        Raises `NotPromotable`, `BundleMissing`, `BundleDamaged`, `IdentityNeeded` and `ReadOnly`.
        """
        self._require_decision("rollback", by)
        self._require_known(model)
        return _decisions().roll_back(self.project.releases, model, by=by, reason=reason)

    def demote(self, model: str, *, by: Person, reason: str, canary: bool = False) -> Promotion:
        """Take the version in production, or the canary, out of its place; return the promotion that ended.

        Raises `NotPromotable`, `IdentityNeeded` and `ReadOnly`.
        """
        self._require_decision("demote", by)
        self._require_known(model)
        return _decisions().demote(self.project.releases, model, by=by, reason=reason, canary=canary)

    def archive(self, model: str, version: int, *, by: Person, reason: str) -> Archival:
        """Take a version out of use for good. Raises as `demote`, and `VersionMissing`."""
        self._require_decision("archive", by)
        self._require_known(model)
        return _decisions().archive(self.project.releases, model, version, by=by, reason=reason)

    def accept_rules(self, model: str, *, by: Person, reason: str) -> "AcceptedRules":
        """Put the rules of the declared model in force. Raises `RulesNotAccepted`, `IdentityNeeded` and `ReadOnly`."""
        self._require_decision("accept_rules", by)
        rules = self.project.declared.pipeline(model).rules
        return _decisions().accept_rules(self.project.releases, model, rules, by=by, reason=reason)

    def accept(self, table: str, partition: str, *, by: Person, reason: str) -> list[Acceptance]:
        """Put the rejected rows of a partition on main as they are.

        A range `FIRST..LAST` accepts the partitions in it that only the number of rows rejects, as a new level. Raises
        `NothingToAccept`, `EvidenceGone`, `IdentityNeeded` and `ReadOnly`.
        """
        self._require_decision("accept", by)
        if partition.partition("..")[0] not in self.project.platform.ledger.newest_verdicts(table):
            self._require_partition(table, partition)
        return _decisions().accept(self.project, table, partition, by=by, reason=reason)

    def _review(
        self, model: str, version: int, *, approves: bool, by: Person, reason: str, read: str | None
    ) -> "Reviewed":
        rules = self.project.declared.pipeline(model).rules
        return _decisions().review(
            self.project.releases,
            model,
            version,
            approves=approves,
            by=by,
            reason=reason,
            rules=rules,
            read=read,
        )

    def _require_known(self, model: str) -> None:
        """Raise `NotFound` with the nearest name for a model that neither the ledger nor a `defs.yaml` knows."""
        if model not in self.project.platform.ledger.models.models():
            self.project.declared.pipeline(model)

    def _require_partition(self, table: str, key: str) -> None:
        """Raise `NotFound` or `LaunchRefused` for a table or a partition that no `defs.yaml` declares."""
        from ml_assets.context.launch import require_partitions

        self.project.declared.table(table)
        require_partitions(self.project, table, key)

    def _require_decision(self, what: str, by: Person) -> None:
        """Raise `ReadOnly`, or `IdentityNeeded` also for a decision that would change nothing."""
        self._require_writes(what)
        self.project.platform.ledger.accounts.require_identity(by)

    def _require_writes(self, what: str) -> None:
        if not self.writes:
            raise ReadOnly(
                f"this context only reads, and `{what}` writes: open it with ml_assets.open(writes=True)"
            )


def _decisions():
    """Return the functions of decisions. They load polars and the parts of a release, which most questions need not."""
    from ml_assets.context import decisions

    return decisions


def open_context(home: str | Path | None = None, *, env: str | None = None, writes: bool = False) -> Context:
    """Return the platform in `home`, by default that of ML_ASSETS_HOME, with all other settings of the environment.

    `env` is an environment of the home, by default that of ML_ASSETS_ENV. Raises `HomeRefused`, `EnvironmentMissing`.
    """
    if home == "":
        raise HomeRefused("the name of the home is empty: name a folder, or leave it out for ML_ASSETS_HOME")
    # The process may change its folder later, and only shells know `~`.
    given = {"home": None if home is None else Path(home).expanduser().absolute(), "env": env}
    settings = read_settings(**{name: value for name, value in given.items() if value is not None})
    return Context.open(settings, writes=writes)
