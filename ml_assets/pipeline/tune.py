"""Study of a model: its window, its trials, and its result.

Each trial is a training like any other, by the same launcher. Here: the window to search on, the job of each trial, and
what a failed trial means. Not here: the choice of values (`tuning.study`), the use of the result (`chosen`).
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ml_assets.pipeline.chosen import REPORT, RESULT, prior_for, store_result
from ml_assets.pipeline.identity import settings_digest
from ml_assets.pipeline.links import run_url
from ml_assets.pipeline.live import StudyPage
from ml_assets.pipeline.side_by_side import LedPage, SideBySide
from ml_assets.pipeline.snapshot import take_snapshot
from ml_assets.pipeline.spec import PipelineSpec
from ml_assets.pipeline.spending import Attempts
from ml_assets.pipeline.study_identity import decided_by, study_digest
from ml_assets.pipeline.train import PartOfStudy, train_model
from ml_assets.pipeline.values import TrainingSet
from ml_assets.pipeline.window import require_nothing_rejected_since, validate_inputs
from ml_assets.tables.cadence import KeyRefused
from ml_assets.tables.declared import DeclaredTables
from ml_assets.tables.reader import TableReader
from ml_assets.tables.refusal import BuildRefused
from ml_assets.tuning.budget import BudgetSection
from ml_assets.tuning.choice import Choice, in_words
from ml_assets.tuning.spec import TuningSection
from ml_assets.tuning.study import BegunTrial, Study, StudyFacts
from ml_assets.tuning.study_report import StudyReport, render
from ml_assets.tuning.study_result import StudyResult, TrialOutcome, spent_on
from resources.job.errors import (
    AttemptsExhausted,
    BadConfiguration,
    DeadlineExceeded,
    Diverged,
    OutOfDisk,
    OutOfMemory,
)
from resources.job.events import TrainingEvent, read_events, training_folder_name
from resources.mlflow_client import TrackerUnavailable, page_of
from resources.platform import Platform
from resources.tracker import RunFacts
from resources.words import counted

OF_THE_VALUES = (AttemptsExhausted, BadConfiguration, DeadlineExceeded, Diverged, OutOfDisk, OutOfMemory)
"""Failures that other values may avoid. They end the trial, and the study goes on; any other failure stops the study,
and the trial continues with the next run."""


class NothingToSearchOn(BuildRefused):
    """No partition of the model has rows on main."""


class NoTrialFinished(BuildRefused):
    """Every trial of a study failed."""


class TrialPaused(BaseException):
    """The pruner stopped a trial: its workers save a checkpoint and end. Only the study handles it.

    Not an `Exception`, so that MLflow shows the run as KILLED, which may go on, not as FAILED.
    """

    def __init__(self, epoch: int, validation_loss: float) -> None:
        super().__init__(f"paused after epoch {epoch} with validation loss {validation_loss:.6g}")
        self.epoch, self.validation_loss = epoch, validation_loss


@dataclass(frozen=True, kw_only=True)
class StoredStudy:
    """Finished study whose result is stored."""

    report: StudyReport
    folder: str
    """Name of the folder of document and report among the artifacts."""
    address: str
    """Address of that folder."""


def run_study(
    spec: PipelineSpec,
    tuning: TuningSection,
    platform: Platform,
    tables: DeclaredTables,
    page: StudyPage,
    *,
    run_id: str,
    resources: Mapping[str, Any],
) -> StoredStudy:
    """Run the trials that the study on the newest window lacks; store its result and its report.

    Trials train on the training rows of the snapshot and are compared by its validation rows; no trial reads the
    holdout. A study that was stopped continues: same snapshot, space, sampler, declared values and code are the same
    study. Raises `InputsRefused` for a window that no training may read, `NothingToSearchOn`, `NoTrialFinished`, and
    the launcher's errors that are not of the trial's values.
    """
    partition, keys = _newest_window(spec, platform, tables)
    validated = validate_inputs(spec, platform, tables, partition, keys)
    frozen, _ = take_snapshot(spec, platform, partition, validated, run_id)
    digest = study_digest(frozen, tuning)
    name = f"{spec.name}-{digest[:12]}"
    study = _open(spec, tuning, platform, frozen, name)
    page.info(f"study {name} on {len(keys)} partitions up to {partition}: {study.most} trials at most")
    if study.differs:
        page.info(f"study {name}: {study.differs}")
    if study.prior.result:
        page.info(
            f"study {name} begins with {counted(len(study.prior.repeated), 'best point')} of result "
            f"{study.prior.result[:12]}, and its sampler sees {len(study.prior.seen)} others"
        )
    if study.prior.left_out:
        page.info(f"study {name}: {study.prior.left_out}")
    with platform.tracker.start(_tracking_facts(spec, platform, frozen, digest, tuning)) as tracked:
        parent = ""
        with suppress(TrackerUnavailable):
            parent = tracked.run_id
        side: SideBySide[TrialOutcome] = SideBySide(tuning.parallel_trials)
        led = LedPage(page, side)
        trials = _Trials(
            spec=spec,
            platform=platform,
            frozen=frozen,
            digest=digest,
            study=study,
            page=led,
            parent=parent,
            run_id=run_id,
            resources=resources,
            budget=tuning.budget,
        )
        side.run(trials.begin, trials.end)
        require_nothing_rejected_since(platform, frozen)
        result = StudyResult(
            study=digest,
            name=name,
            model=spec.name,
            partition=partition,
            snapshot=frozen.job.snapshot_digest,
            window=frozen.trained_on,
            sampler=tuning.sampler,
            pruner=tuning.pruner,
            trials=tuple(study.outcomes()),
            seconds=study.seconds,
            stopped=_stopped(trials.spent_says(), study),
            differs=study.differs,
            prior=study.prior.result,
            inherited=tuple(study.inherited()),
        )
        if result.stopped:
            page.info(
                f"{result.stopped}. To go on, raise tuning.budget of {spec.name} and launch the study again"
            )
        if not result.finished:
            first = result.trials[0]
            stopped = f". Also, {result.stopped}: raise tuning.budget" if result.stopped else ""
            raise NoTrialFinished(
                f"none of {counted(len(result.trials), 'trial')} of {spec.name} finished. Trial {first.number} "
                f"({in_words(first.parameters)}): {first.why}{stopped}"
            )
        best = result.chosen
        tracked.log({"best_validation_loss": best.validation_loss or 0.0, "best_trial": best.number}, 0)
    report = StudyReport(
        result=result,
        space=tuning.space,
        importance=study.importances(),
        lineage=_lineage(platform, result, parent, run_id),
    )
    folder = store_result(platform, result, render(report))
    if parent:
        with suppress(TrackerUnavailable):
            for file in (REPORT, RESULT):
                platform.tracker.attach(parent, platform.artifacts.folder(folder) / file)
    return StoredStudy(report=report, folder=folder, address=platform.artifacts.address(folder))


def _lineage(platform: Platform, result: StudyResult, parent: str, run_id: str) -> dict[str, str]:
    window = result.window
    return {
        "result": result.digest,
        "study": result.study,
        "name in Optuna": result.name,
        "lake commit": platform.lake.commit_url(window.commit) or window.commit,
        "snapshot": result.snapshot,
        "MLflow run": (page_of(platform.tracker.uri, f"runs/{parent}") or parent) if parent else "–",
        "Dagster run": run_url(platform.settings.ui_url, run_id),
    }


def _open(
    spec: PipelineSpec, tuning: TuningSection, platform: Platform, frozen: TrainingSet, name: str
) -> Study:
    facts = StudyFacts(
        model=spec.name,
        partition=frozen.job.partition,
        snapshot=frozen.job.snapshot_digest,
        decided_by=decided_by(frozen, tuning),
    )
    prior = prior_for(spec, tuning, platform)
    with platform.ledger.turn("studies"):  # processes that create the tables or the study together would fail
        return Study(platform.studies, name, tuning, spec.seed, facts, _most_epochs(spec, tuning), prior)


def _stopped(is_spent: str, study: Study) -> str:
    """Return the reason for which a study ended before all its trials and their continuations; empty if it did not."""
    if not is_spent:
        return ""
    left = study.most - len(study.outcomes())
    if left <= 0:
        return f"{is_spent}, so no paused trial continued" if study.would_continue else ""
    return f"{is_spent}, so {left:,} of {counted(study.most, 'trial')} did not begin"


def _newest_window(spec: PipelineSpec, platform: Platform, tables: DeclaredTables) -> tuple[str, list[str]]:
    """Return the newest partition of the model whose rows are on main, and the partitions of its window."""
    table = spec.features.table
    declared = tables.find(table)
    own = spec.partitions.as_cadence
    possible = [
        key for key in TableReader.at(platform.lake, "main").keys(table) if declared and _is_of(own, key)
    ]
    if declared is None or not possible:
        raise NothingToSearchOn(
            f"{spec.name}/hyperparameters searches on the newest window, and main holds no partition of {table} from "
            f"{spec.partitions.start} on: materialize {table} first"
        )
    return possible[-1], declared.cadence.window(possible[-1], spec.window.total)


def _is_of(cadence: Any, key: str) -> bool:
    try:
        cadence.require(key)
    except KeyRefused:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class _Trials:
    """Trainings of one study."""

    spec: PipelineSpec
    platform: Platform
    frozen: TrainingSet
    """Snapshot of the study, with the declared values."""
    digest: str
    """Digest of the study."""
    study: Study
    page: StudyPage
    parent: str
    """Id of the study's run in MLflow; empty if MLflow was away."""
    run_id: str
    resources: Mapping[str, Any]
    budget: BudgetSection | None
    running: dict[int, BegunTrial] = field(default_factory=dict[int, BegunTrial])
    """Number → trial that this process trains now."""

    def begin(self) -> Callable[[], TrialOutcome] | None:
        """Return the training of the next trial; None if the study is complete but for the running trials."""
        may_begin = not self.spent_says()
        with self.platform.ledger.turn(f"studies/{self.study.name}"):
            trial = self.study.next(may_begin=may_begin, besides=self.running)
        if trial is None:
            return None
        self.study.note_alive(time.time())
        self.running[trial.number] = trial
        return partial(self.train, trial)

    def end(self, outcome: TrialOutcome) -> None:
        """Record the end of a running trial."""
        self.study.end(self.running.pop(outcome.number), outcome)
        self.study.note_alive(time.time())
        self.page.info(_said(outcome))

    def spent_says(self) -> str:
        """Return the spent part of the study's budget in words; empty if it may begin another trial."""
        if self.budget is None:
            return ""
        sets = [trial_set(self.spec, self.frozen, self.digest, trial) for trial in self.running.values()]
        running = sum(Attempts.of(_events(self.platform, one)).worker_seconds for one in sets)
        # A continued trial has an outcome from its pause, and its reports cover that time, too.
        ended = [one for one in self.study.outcomes() if one.number not in self.running]
        return self.budget.spent_says(spent_on(self.study.seconds, ended, running))

    def train(self, trial: BegunTrial) -> TrialOutcome:
        """Train one trial, or continue it; return its end. Raises failures that are not of its values."""
        training_set = trial_set(self.spec, self.frozen, self.digest, trial)
        common: dict[str, Any] = {
            "number": trial.number,
            "parameters": dict(trial.parameters),
            "fingerprint": training_set.job.fingerprint,
            "most_epochs": training_set.job.settings.epochs,
            "pauses": trial.pauses,
        }

        def after_epoch(epoch: int, validation_loss: float) -> None:
            self.study.note_alive(time.time())
            # After the last epoch there is nothing left to save.
            pauses = self.study.should_pause(trial, epoch, validation_loss)
            if pauses and epoch < training_set.job.settings.epochs:
                raise TrialPaused(epoch, validation_loss)

        begins = f"continues after epoch {trial.pauses[-1]}" if trial.pauses else in_words(trial.parameters)
        self.page.info(f"trial {trial.number}: {begins}")
        try:
            trained = train_model(
                self.spec,
                self.platform,
                training_set,
                self.page.of_trial(trial.number),
                run_id=self.run_id,
                resources=self.resources,
                study=PartOfStudy(
                    run=self.parent,
                    name=f"{self.frozen.job.partition} trial {trial.number}",
                    after_epoch=after_epoch,
                ),
            )
        except TrialPaused as paused:
            common["pauses"] = (*trial.pauses, paused.epoch)
            return TrialOutcome(
                **common,
                **_cost(self.platform, training_set),
                state="paused",
                validation_loss=paused.validation_loss,
                # The workers train on until the signal arrives.
                epochs=max([paused.epoch, *_epochs(self.platform, training_set)]),
                why=f"{paused}",
            )
        except OF_THE_VALUES as error:
            why = f"{type(error).__name__}: {error}"
            return TrialOutcome(**common, **_cost(self.platform, training_set), state="failed", why=why)
        result = trained.result
        cost = _cost(self.platform, training_set)
        cost |= {"seconds": result.seconds, "worker_seconds": result.worker_seconds}
        if not math.isfinite(result.best_validation_loss):
            why = f"its validation loss was {result.best_validation_loss:g}"
            return TrialOutcome(**common, **cost, state="failed", why=why)
        return TrialOutcome(
            **common,
            **cost,
            state="finished",
            validation_loss=result.best_validation_loss,
            epochs=result.epochs,
            steps=result.steps,
            mlflow_run=trained.mlflow_run,
        )


def _epochs(platform: Platform, training_set: TrainingSet) -> list[int]:
    """Return the numbers of the epochs that the workers of a training have reported."""
    return [int(event.values["epoch"]) for event in _events(platform, training_set) if event.kind == "epoch"]


def _cost(platform: Platform, training_set: TrainingSet) -> dict[str, Any]:
    """Return the seconds that a training took so far, and the device of its workers, from their reports."""
    attempts = Attempts.of(_events(platform, training_set))
    return {
        "seconds": attempts.seconds,
        "worker_seconds": attempts.worker_seconds,
        "device": attempts.device,
    }


def _events(platform: Platform, training_set: TrainingSet) -> list[TrainingEvent]:
    return read_events(platform.artifacts.folder(training_folder_name(training_set.job)))


def trial_set(spec: PipelineSpec, frozen: TrainingSet, digest: str, trial: BegunTrial) -> TrainingSet:
    """Return the training set of a trial: the study's snapshot, with the trial's values in the job."""
    choice = Choice(source=digest, parameters=trial.parameters)
    varied = spec.with_choice(choice)
    job = dataclasses.replace(
        frozen.job, hyperparameters=varied.model.hyperparameters, settings=varied.training
    )
    return dataclasses.replace(frozen, job=job, choice=choice, settings=settings_digest(varied, job, choice))


def _tracking_facts(
    spec: PipelineSpec, platform: Platform, frozen: TrainingSet, digest: str, tuning: TuningSection
) -> RunFacts:
    params = {"sampler": tuning.sampler, "pruner": tuning.pruner, "trials": tuning.trials}
    params |= {f"space.{name}": one.model_dump_json() for name, one in tuning.space.dimensions.items()}
    return RunFacts(
        experiment=spec.name,
        fingerprint=digest,
        name=f"{frozen.job.partition} study",
        author=platform.settings.author,
        params=params,
        tags={
            "partition": frozen.job.partition,
            "snapshot_digest": frozen.job.snapshot_digest,
            "dagster_run": frozen.run_id,
            "dagster_url": run_url(platform.settings.ui_url, frozen.run_id),
        },
        dataset_name=frozen.table,
        dataset_digest=frozen.job.snapshot_digest,
    )


def _most_epochs(spec: PipelineSpec, tuning: TuningSection) -> int:
    """Return the largest number of epochs of a trial."""
    values = tuning.space.training.get("epochs")
    searched = [] if values is None else [int(end or 0) for end in values.ends()]
    declared = [spec.training.epochs] if values is None or values.when else []
    return max([*searched, *declared])


def _said(outcome: TrialOutcome) -> str:
    if outcome.state == "finished":
        return f"trial {outcome.number}: validation loss {outcome.validation_loss:.6g}"
    failed = "failed: " * (outcome.state == "failed")
    return f"trial {outcome.number}: {failed}{outcome.why}"
