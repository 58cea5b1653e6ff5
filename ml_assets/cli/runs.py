"""Materialization from a terminal: a Dagster run in this process, with its progress shown meanwhile."""

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
from dagster_shared.error import SerializableErrorInfo

from ml_assets.cli.abandoned import announced
from ml_assets.cli.interrupts import not_for_children
from ml_assets.cli.problems import Problem
from ml_assets.cli.project import Project
from ml_assets.components.failures import Stop, Terminated, stopping_by
from ml_assets.components.metadata import RANGE_END, RANGE_START
from resources.acting import launched_in_terminal
from resources.threads import working_beside

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
POLL_SECONDS = 0.3
_WRAPPERS = ("RetryRequestedFromPolicy", "DagsterExecutionStepExecutionError")
"""Dagster's errors around a step's own error."""


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
    project.tidy()
    with (
        announced(project.settings, run_id),
        _canceled_if_stopped(project.instance, run_id),
        _progress(project.instance, run_id, on_progress),
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


_STOPPED = "Stopped by Ctrl-C."


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
            message = failure.description if failure and failure.description else _without_module(error)
            step, sentence = _step(event.step_key or ""), message.strip()
            # A sentence about a table begins with the table's name, which is also the step's name.
            return sentence if sentence.startswith((f"{step}:", f"{step} ")) else f"{step}: {sentence}"
    return "the run failed before any step; ML_ASSETS_TRACEBACK=1 shows why"


def _without_module(error: SerializableErrorInfo) -> str:
    _, name, rest = error.message.partition(f"{error.cls_name}: ")
    return f"{name}{rest}" or error.message


@contextmanager
def _progress(instance: dg.DagsterInstance, run_id: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Report progress to `tell` from the run's events, which a second thread polls."""
    with working_beside(partial(_follow, instance, run_id, tell), "progress"):
        yield


def _follow(
    instance: dg.DagsterInstance, run_id: str, tell: Callable[[str], None], over: threading.Event
) -> None:
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
