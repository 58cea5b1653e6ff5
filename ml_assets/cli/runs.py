"""Materialization from a terminal: a Dagster run in this process, with its progress shown meanwhile.

Dagster counts a run as in progress until its process reports the end. A killed command would block a place in the run
queue, and automation would wait forever. So a command locks a file during its run, and the operating system releases
the lock when the process ends (`Project.end_abandoned`). Runs of the UI have no such file: its server watches them.

A terminal sends SIGINT to every process of a command at once. Dagster's helper processes for step logs would each print
a traceback over the line that a person should read, so only the main process gets it (`not_for_children`).
"""

import _thread
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import dagster as dg
from dagster import DagsterExecutionInterruptedError

from ml_assets.cli.project import Project
from ml_assets.cli.terminal import Problem
from ml_assets.components.failures import Stop, Terminated, stopping_by, was_interrupted
from ml_assets.components.metadata import RANGE_END, RANGE_START
from ml_assets.components.sensors.reconcile import reconcile, tables_of
from ml_assets.data.tables.environments.environment import inherited_by
from resources.acting import launched_in_terminal
from resources.files import create_locked
from resources.threads import working_beside

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
POLL_SECONDS = 0.3
_WRAPPERS = ("RetryRequestedFromPolicy", "DagsterExecutionStepExecutionError")
"""Dagster's errors around a step's own error."""
_STOPPED = "Stopped by Ctrl-C."
_LOOK_SECONDS = 0.3
_INTERRUPT = {signal.SIGINT}


@dataclass(frozen=True)
class Finished:
    """Result of a run."""

    run_id: str
    seconds: float
    step_seconds: Mapping[str, float]
    """Step → seconds, in the order in which steps ended."""
    materialized: int
    """Partitions and assets materialized."""
    metadata: Mapping[dg.AssetKey, Mapping[str, Any]]
    """Newest metadata of each materialized asset, as plain values."""
    observed: Mapping[dg.AssetKey, str]
    """Asset → description of its observation, such as the reason why a model was not registered."""


def materialize(
    project: Project,
    keys: Sequence[dg.AssetKey],
    *,
    partition: str | None = None,
    last: str | None = None,
    tags: Mapping[str, str] | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Finished:
    """Run `keys` for one partition, for `partition`..`last`, or without partitions.

    Raises `Problem` if the run failed, and `KeyboardInterrupt` if a person stopped it.
    """
    span = {RANGE_START: partition, RANGE_END: last} if partition and last else {}
    job = project.defs.resolve_implicit_global_asset_job_def()
    run_id = str(uuid.uuid4())
    began = time.monotonic()
    tidy(project)
    with (
        _announced(project, run_id),
        _canceled_if_stopped(project.instance, run_id),
        working_beside(partial(_follow, project.instance, run_id, on_progress), "progress"),
        not_for_children() as interrupts,
        stopping_by(Stop(is_asked=lambda: interrupts.came, tell=partial(_cancel, project.instance, run_id))),
        launched_in_terminal(),
    ):
        result = job.execute_in_process(
            run_config=QUIET,
            instance=project.instance,
            asset_selection=list(keys),
            partition_key=None if span else partition,
            tags={**(tags or {}), **span},
            run_id=run_id,
            raise_on_error=False,
        )
        if _was_terminated(result) or (interrupts.came and not result.success):
            raise KeyboardInterrupt
    if not result.success:
        raise Problem(_why_it_failed(result))
    return _finished(result, run_id, time.monotonic() - began)


def _cancel(instance: dg.DagsterInstance, run_id: str) -> None:
    """Tell Dagster that a person stops the run, so that it ends as canceled."""
    run = instance.get_run_by_id(run_id)
    if run is not None and run.status == dg.DagsterRunStatus.STARTED:
        instance.report_run_canceling(run, _STOPPED)


@contextmanager
def _canceled_if_stopped(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Report the run as canceled if a person stops it where no step tells Dagster."""
    try:
        yield
    except (KeyboardInterrupt, DagsterExecutionInterruptedError):
        run = instance.get_run_by_id(run_id)
        ended = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.CANCELED)
        if run is not None and run.status not in ended:
            instance.report_run_canceled(run, _STOPPED)
        raise KeyboardInterrupt from None


def _was_terminated(result: dg.ExecuteInProcessResult) -> bool:
    errors = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    return any(one is not None and one.cls_name == Terminated.__name__ for one in errors)


def _finished(result: dg.ExecuteInProcessResult, run_id: str, seconds: float) -> Finished:
    materializations = result.get_asset_materialization_events()
    observations = [
        event.asset_observation_data.asset_observation for event in result.get_asset_observation_events()
    ]
    return Finished(
        run_id=run_id,
        seconds=seconds,
        step_seconds={
            event.step_key: event.step_success_data.duration_ms / 1000
            for event in result.all_events
            if event.is_step_success and event.step_key
        },
        materialized=len(materializations),
        metadata={
            event.asset_key: {name: value.value for name, value in event.materialization.metadata.items()}
            for event in materializations
            if event.asset_key
        },
        observed={one.asset_key: one.description for one in observations if one.description},
    )


def _why_it_failed(result: dg.ExecuteInProcessResult) -> str:
    """Return the sentence of the first step that failed."""
    for event in result.all_events:
        if event.is_step_failure and event.step_failure_data.error:
            failure = event.step_failure_data.user_failure_data
            error = event.step_failure_data.error
            while error.cls_name in _WRAPPERS and error.cause:
                error = error.cause
            # "module.Class: sentence" without the module.
            _, name, rest = error.message.partition(f"{error.cls_name}: ")
            message = (failure and failure.description) or f"{name}{rest}" or error.message
            step, sentence = _step(event.step_key or ""), message.strip()
            # A sentence about a table begins with the table's name, which is also the step's name.
            return sentence if sentence.startswith((f"{step}:", f"{step} ")) else f"{step}: {sentence}"
    return "the run failed before any step; ML_ASSETS_TRACEBACK=1 shows why"


def _follow(
    instance: dg.DagsterInstance, run_id: str, tell: Callable[[str], None], over: threading.Event
) -> None:
    """Report progress to `tell` from the run's events until `over`."""
    cursor: str | None = None
    while not over.wait(POLL_SECONDS):
        page = instance.get_records_for_run(run_id, cursor=cursor)
        cursor = page.cursor
        said = [text for record in page.records if (text := _in_words(record.event_log_entry.dagster_event))]
        if said:
            tell(said[-1])


def _in_words(event: dg.DagsterEvent | None) -> str | None:
    if event is None:
        return None
    if event.is_step_start and event.step_key:
        return _step(event.step_key).rpartition(".")[2]
    if event.is_asset_observation:
        facts = {name: v.value for name, v in event.asset_observation_data.asset_observation.metadata.items()}
        shown = [f"{name} {facts[name]:.4g}" for name in ("step", "loss", "validation_loss") if name in facts]
        return f"train: {', '.join(shown)}" if shown else None
    return None


def _step(key: str) -> str:
    """Return the asset `a/b` of a step that Dagster calls `a__b`."""
    return key.replace("__", "/")


@contextmanager
def _announced(project: Project, run_id: str) -> Iterator[None]:
    """Lock a file during the block, so that other commands see that this run has a process."""
    folder = project.commands_folder
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run_id}.run"
    with create_locked(path):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def tidy(project: Project) -> None:
    """Update Dagster's records: cancel runs whose process is gone, and log partitions that Dagster lacks."""
    project.end_abandoned()
    reconcile(
        project.instance,
        project.reader(),
        project.platform.ledger,
        tables_of(project.defs.resolve_asset_graph()),
        inherited_by(project.platform),
    )


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """False for an interrupt that a library logs before it raises it again, as SQLAlchemy's pools do."""
    return not was_interrupted(record.exc_info[1] if record.exc_info else None)


@contextmanager
def _unsaid() -> Iterator[None]:
    """Print no traceback of an interrupt that came where Python or a library handles it: the command says its line.

    Python itself drops what is raised in the destructor or the weak reference's callback that the interrupt met.
    """
    handlers = [handler for handler in (logging.lastResort, *logging.getLogger().handlers) if handler]
    before = sys.unraisablehook
    for handler in handlers:
        handler.addFilter(_is_worth_saying)
    sys.unraisablehook = lambda dropped: None if was_interrupted(dropped.exc_value) else before(dropped)
    try:
        yield
    finally:
        sys.unraisablehook = before
        for handler in handlers:
            handler.removeFilter(_is_worth_saying)


class Interrupts:
    """SIGINT of this process, whichever of its threads took it and whatever its handler did."""

    def __init__(self) -> None:
        self._pipe = os.pipe()
        self._came = False
        for end in self._pipe:
            os.set_blocking(end, False)
        # Python writes the number of each signal there before it calls the handler, which Dagster exchanges.
        self._before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)

    @property
    def came(self) -> bool:
        """True from the first SIGINT on."""
        while not self._came:
            try:
                self._came = signal.SIGINT in os.read(self._pipe[0], 64)
            except BlockingIOError:
                return False
        return True

    def close(self) -> None:
        """Close the pipe; `came` stays as it is."""
        self._came = self.came
        signal.set_wakeup_fd(self._before)
        for end in self._pipe:
            os.close(end)


@contextmanager
def not_for_children() -> Iterator[Interrupts]:
    """Hide SIGINT from processes that this thread starts in the block. This process still receives it.

    A process inherits the blocked signals of its parent's thread. So this thread blocks SIGINT, and a second thread
    takes the signal and interrupts the main thread. Threads from before the block may take it, too.
    """
    interrupts = Interrupts()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPT)
    try:
        with working_beside(_take, "interrupts"), _unsaid():
            yield interrupts
    finally:
        interrupts.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _take(over: threading.Event) -> None:
    while not over.is_set():
        if signal.sigtimedwait(_INTERRUPT, _LOOK_SECONDS) is not None:
            _thread.interrupt_main(signal.SIGINT)
