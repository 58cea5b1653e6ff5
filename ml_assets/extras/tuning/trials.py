"""Trials of a study, several at once. Each is a training like any other, by the same launcher.

Here: the job of a trial, its pause, what its failure means, its cost, and threads that train trials side by side. Not
here: the study (`tune`), the choice of values (`tuning.study`).
"""

import ctypes
import dataclasses
import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from ml_assets.extras.tuning.study import BegunTrial, Study
from ml_assets.model.steps.identity import settings_digest
from ml_assets.model.steps.live_report import Attempts, Reports, StudyPage, TrainingPage
from ml_assets.model.steps.search_space import BudgetSection, Choice, PrunerWarmupSection, in_words
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.model.steps.study_metric import TRIAL_VALUE, StudyMetric
from ml_assets.model.steps.study_result import TrialOutcome, spent_on
from ml_assets.model.steps.train import PartOfStudy, train_model
from ml_assets.model.steps.values import TrainingSet
from resources.job.errors import (
    AttemptsExhausted,
    BadConfiguration,
    DeadlineExceeded,
    Diverged,
    FailedTwice,
    OutOfDisk,
    OutOfMemory,
)
from resources.job.events import TrainingEvent, read_events, training_folder_name
from resources.launcher.local import TrainingPaused
from resources.platform import Platform

_MAY_PASS = (AttemptsExhausted, DeadlineExceeded, FailedTwice, OutOfDisk, OutOfMemory)
"""Failures whose cause may be gone at the next launch: other resources, more room, a mended store."""
_OF_THE_TRIAL = (*_MAY_PASS, BadConfiguration, Diverged)
"""Failures that other values may avoid. They end the trial, and the study goes on; any other failure stops the study,
and the trial continues with the next run."""


class TrialPaused(TrainingPaused):
    """The pruner stopped a trial: its workers save a checkpoint and end. Only the study handles it.

    Not an `Exception`, so that MLflow shows the run as KILLED, which may go on, not as FAILED.
    """

    def __init__(self, epoch: int, validation_loss: float) -> None:
        super().__init__(f"paused after epoch {epoch} with validation loss {validation_loss:.6g}")
        self.epoch, self.validation_loss = epoch, validation_loss


@dataclass(frozen=True, kw_only=True)
class Trials:
    """Trainings of one study."""

    spec: PipelineSpec
    platform: Platform
    frozen: TrainingSet
    """Snapshot of the study, with the declared values."""
    digest: str
    """Digest of the study."""
    study: Study
    metric: StudyMetric
    page: StudyPage
    parent: str
    """Id of the study's run in MLflow; empty if MLflow was away."""
    run_id: str
    resources: Mapping[str, Any]
    budget: BudgetSection | None
    warmup: PrunerWarmupSection | None
    comes_back: Callable[[BaseException], bool]
    """See `TrainingLauncher.run`."""
    running: dict[int, BegunTrial] = field(default_factory=dict[int, BegunTrial])
    """Number → trial that this process trains now."""
    _reports: dict[int, Reports] = field(default_factory=dict[int, Reports])
    """Number → what the workers of a running trial reported to this process. Pods write no file that it sees."""
    _measures: threading.Lock = field(default_factory=threading.Lock)
    """Held while a trial is measured: torch's export is not for several threads at once."""

    def begin(self) -> Callable[[], TrialOutcome] | None:
        """Return the training of the next trial; None if the study is complete but for the running trials."""
        may_begin = not self.spent_says()
        trial = self.study.next(may_begin=may_begin, besides=self.running)
        if trial is None:
            return None
        self.study.note_alive(time.time())
        self.running[trial.number] = trial
        self._reports[trial.number] = Reports()
        return partial(self.train, trial)

    def end(self, outcome: TrialOutcome) -> None:
        """Record the end of a running trial."""
        self.study.end(self.running.pop(outcome.number), outcome)
        del self._reports[outcome.number]
        self.study.note_alive(time.time())
        self.page.info(_said(outcome, self.metric))
        if outcome.state == "finished" and (value := self.metric.value_of(outcome)) is not None:
            self.page.of_trial(outcome.number).observe(outcome.steps, {TRIAL_VALUE: value})

    def spent_says(self) -> str:
        """Return the spent budget in words, the model's of this month or the study's; empty if neither is spent."""
        if self.platform.settings.prices is not None:
            from ml_assets.extras.costs.budget import budget_of

            monthly = budget_of(self.platform, self.spec.name)
            if monthly is not None and monthly.is_spent:
                return monthly.says
        if self.budget is None:
            return ""
        running = [self._so_far(trial) for trial in self.running.values()]
        # A failed trial that trains once more has an outcome, and its reports cover that time, too.
        ended = [one for one in self.study.outcomes() if one.number not in self.running]
        return self.budget.spent_says(spent_on(self.study.seconds, [*running, *ended]))

    def _so_far(self, trial: BegunTrial) -> TrialOutcome:
        """Return the outcome that a trial would have if it were paused now."""
        training_set = self._set_of(trial)
        return TrialOutcome(**_common(trial, training_set), **self._cost(trial, training_set), state="paused")

    def _cost(self, trial: BegunTrial, training_set: TrainingSet) -> dict[str, Any]:
        """Return epochs and seconds of a trial so far, from the file of its workers and from their reports."""
        written = read_events(self.platform.artifacts.folder(training_folder_name(training_set.job)))
        return cost_of([*written, *self._reports[trial.number].kept], self.study.began)

    def _set_of(self, trial: BegunTrial) -> TrainingSet:
        return trial_set(self.spec, self.frozen, self.digest, trial)

    def train(self, trial: BegunTrial) -> TrialOutcome:
        """Train one trial, or continue it; return its end. Raises failures that are not of its values."""
        training_set = self._set_of(trial)
        common = _common(trial, training_set)

        def after_epoch(epoch: int, validation_loss: float, step: int) -> None:
            self.study.note_alive(time.time())
            # After the last epoch there is nothing left to save.
            is_warm = self.warmup is None or self.warmup.is_over(epoch, step)
            pauses = self.study.should_pause(trial, epoch, validation_loss, is_warm=is_warm)
            if pauses and epoch < training_set.job.settings.epochs:
                raise TrialPaused(epoch, validation_loss)

        self.page.info(f"trial {trial.number}: {_begins(trial)}")
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
                    on_event=self._reports[trial.number].hear,
                ),
                comes_back=self.comes_back,
            )
        except TrialPaused as paused:
            common["pauses"] = (paused.epoch,)
            cost = self._cost(trial, training_set)
            # The workers train on until the signal arrives.
            cost["epochs"] = max(paused.epoch, cost["epochs"])
            return TrialOutcome(
                **common, **cost, state="paused", validation_loss=paused.validation_loss, why=f"{paused}"
            )
        except _OF_THE_TRIAL as error:
            cost = self._cost(trial, training_set)
            why = f"{type(error).__name__}: {error}"
            may_pass = isinstance(error, _MAY_PASS)
            return TrialOutcome(**common, **cost, state="failed", why=why, may_pass=may_pass)
        result = trained.result
        cost = self._cost(trial, training_set)
        cost["epochs"] = result.epochs  # a script reports no others
        if not math.isfinite(result.best_validation_loss):
            why = f"its validation loss was {result.best_validation_loss:g}"
            return TrialOutcome(**common, **cost, state="failed", why=why)
        value = None
        if not self.metric.is_validation_loss:
            from ml_assets.extras.tuning.trial_metric import NotMeasured, trial_metric  # loads torch

            try:
                with self._measures:
                    value = trial_metric(self.spec, self.platform, training_set, result, self.metric.name)
            except NotMeasured as error:
                return TrialOutcome(**common, **cost, state="failed", why=f"{error}", may_pass=error.may_pass)
        return TrialOutcome(
            **common,
            **cost,
            state="finished",
            validation_loss=result.best_validation_loss,
            value=value,
            steps=result.steps,
            mlflow_run=trained.mlflow_run,
        )


def _common(trial: BegunTrial, training_set: TrainingSet) -> dict[str, Any]:
    """Return the facts of an outcome that do not depend on the trial's end."""
    job = training_set.job
    return {
        "number": trial.number,
        "parameters": dict(trial.parameters),
        "fingerprint": job.fingerprint,
        "most_epochs": 0 if job.script else job.settings.epochs,  # a script has its own loop
    }


def cost_of(events: Sequence[TrainingEvent], began: float) -> dict[str, Any]:
    """Return epochs and seconds of a training so far, from the reports of its workers.

    What they reported before `began`, the start of the study in seconds since the epoch, is also counted apart. Reports
    may be repeated, and in any order.
    """
    before = [event for event in events if event.time < began]
    attempts = Attempts.of(events)
    return {
        "epochs": _epochs(events),
        "epochs_before": _epochs(before),
        "seconds": attempts.seconds,
        "worker_seconds": attempts.worker_seconds,
        "worker_seconds_before": Attempts.of(before).worker_seconds,
    }


def _epochs(events: Iterable[TrainingEvent]) -> int:
    """Return the number of the last epoch that the workers reported; 0 before the first."""
    return max((int(event.values["epoch"]) for event in events if event.kind == "epoch"), default=0)


def trial_set(spec: PipelineSpec, frozen: TrainingSet, digest: str, trial: BegunTrial) -> TrainingSet:
    """Return the training set of a trial: the study's snapshot, with the trial's values in the job."""
    choice = Choice(source=digest, parameters=trial.parameters)
    varied = spec.with_choice(choice)
    job = dataclasses.replace(
        frozen.job, hyperparameters=varied.model.hyperparameters, settings=varied.training
    )
    return dataclasses.replace(frozen, job=job, choice=choice, settings=settings_digest(varied, job, choice))


def _begins(trial: BegunTrial) -> str:
    if trial.failed_before:
        return f"trains once more, after {trial.failed_before.partition(chr(10))[0]}"
    return in_words(trial.parameters)


def _said(outcome: TrialOutcome, metric: StudyMetric) -> str:
    if outcome.state == "finished":
        return f"trial {outcome.number}: {metric.in_words} {metric.value_of(outcome):.6g}"
    failed = "failed: " * (outcome.state == "failed")
    return f"trial {outcome.number}: {failed}{outcome.why}"


Result = TypeVar("Result")
_POLL_SECONDS = 0.5
"""Longest wait of the leader before it notices Ctrl-C, which may arrive without waking it."""
_AGAIN_SECONDS = 5.0
"""Time after which a piece of work that goes on is interrupted again. Python drops an exception that it raises within a
destructor, or within a callback of a weak reference or of the garbage collector."""


class StoppedWithOthers(BaseException):
    """The study ended while this training ran: its workers save a checkpoint and end.

    Not an `Exception`, so that MLflow shows the run as KILLED, which may go on, not as FAILED.
    """


class SideBySide(Generic[Result]):
    """Up to `most` pieces of work at once. With 1, the work runs in the caller's thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._leader = threading.current_thread()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._running: set[threading.Thread] = set()
        self._ended: set[threading.Thread] = set()
        """Threads whose work raised."""
        self._why: BaseException | None = None
        """Exception that stopped all work."""

    def run(
        self, next_work: Callable[[], Callable[[], Result] | None], done: Callable[[Result], None]
    ) -> None:
        """Begin work until `next_work` returns None and all work has ended. Pass each result to `done`.

        Both are called in this thread, one call at a time. `next_work` is called again after each result. If one of
        them, or a piece of work, raises, or a signal interrupts this thread, all other work is stopped at once, each
        piece by `StoppedWithOthers` in its thread, unless an exception of its own ends it already; the exception is
        raised again after all threads have ended.
        """
        try:
            while True:
                while len(self._running) < self._most and (work := next_work()) is not None:
                    if self._most == 1:
                        done(work())
                    else:
                        self._start(work, done)
                if not self._running:
                    return
                running = len(self._running)
                while len(self._running) == running:
                    self._answer()
        except BaseException as error:
            self._why = error
            self._stop()
            raise

    def cause_of(self, error: BaseException) -> BaseException:
        """Return what stopped a piece of work that ended by `error`: with `StoppedWithOthers`, what stopped all."""
        return self._why if isinstance(error, StoppedWithOthers) and self._why is not None else error

    def say(self, call: Callable[[], None]) -> None:
        """Run `call` in the leader's thread: at once there, soon from the thread of a piece of work."""
        if threading.current_thread() is self._leader:
            call()
        else:
            self._calls.put(call)

    def _start(self, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
        def follow() -> None:
            try:
                result = work()
            except BaseException as error:
                self._ended.add(thread)
                self._calls.put(lambda error=error: self._fail(thread, error))
            else:
                self._calls.put(lambda: self._end(thread, result, done))

        # A daemon: if a second signal ends the leader's wait for it, its workers see the end of their stdin and save.
        thread = threading.Thread(target=follow, daemon=True)
        self._running.add(thread)
        thread.start()

    def _answer(self) -> None:
        """Run the next call of a piece of work, or return after a while."""
        try:
            call = self._calls.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            return
        call()

    def _end(self, thread: threading.Thread, result: Result, done: Callable[[Result], None]) -> None:
        self._running.discard(thread)
        done(result)

    def _fail(self, thread: threading.Thread, error: BaseException) -> None:
        self._running.discard(thread)
        raise error

    def _stop(self) -> None:
        told: dict[threading.Thread, float] = {}
        while alive := [thread for thread in self._running - self._ended if thread.is_alive()]:
            now = time.monotonic()
            for thread in alive:
                # A piece of work that ends by its own exception gives its workers time to save: a second exception
                # would cut this time.
                if now - told.get(thread, -math.inf) > _AGAIN_SECONDS and not _handles_exception(thread):
                    told[thread] = now
                    _interrupt(thread)
            alive[0].join(_POLL_SECONDS)


def _handles_exception(thread: threading.Thread) -> bool:
    """True while the code of `thread` is in an `except` or a `finally` that an exception reached."""
    handled = sys._current_exceptions().get(thread.ident or 0)  # pyright: ignore[reportPrivateUsage]
    return handled not in (None, (None, None, None))  # Python 3.11 has a triple for each thread


def _interrupt(thread: threading.Thread) -> None:
    """Raise `StoppedWithOthers` in `thread` when its code runs next: launchers look at workers each second."""
    assert thread.ident is not None  # it was started
    # The only way to interrupt a thread wherever it waits.
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(StoppedWithOthers)
    )


class LedPage:
    """Page of a study that speaks in the leader's thread, whoever calls it."""

    def __init__(self, page: StudyPage, leader: SideBySide[Result]) -> None:
        self._page, self._say = page, leader.say

    def info(self, text: str) -> None:
        self._say(partial(self._page.info, text))

    def of_trial(self, number: int) -> TrainingPage:
        return _LedTrialPage(self._page.of_trial(number), self._say)


class _LedTrialPage:
    def __init__(self, page: TrainingPage, say: Callable[[Callable[[], None]], None]) -> None:
        self._page, self._say = page, say

    def info(self, text: str) -> None:
        self._say(partial(self._page.info, text))

    def warning(self, text: str) -> None:
        self._say(partial(self._page.warning, text))

    def observe(self, step: int, numbers: Mapping[str, float]) -> None:
        self._say(partial(self._page.observe, step, numbers))
