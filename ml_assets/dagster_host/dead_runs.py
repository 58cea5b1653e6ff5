"""Runs whose process died: the steps that were in progress, their last words, the failure that another process reports;
and the executor that runs steps beside such a process.

Private area: executors, and events of steps of a run in another process. The public `dg.in_process_executor` has no
place for a block around a run. The public `report_run_failed` reports no failure of a step, and sensors read the
reason there.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import dagster as dg
from dagster._core.events import DagsterEvent
from dagster._core.execution.plan.objects import StepFailureData, UserFailureData
from dagster._core.executor.in_process import InProcessExecutor
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
)
from dagster_shared.error import SerializableErrorInfo

_PARTITIONS = (PARTITION_NAME_TAG, ASSET_PARTITION_RANGE_START_TAG, ASSET_PARTITION_RANGE_END_TAG)
_BEGUN, _ENDED = (
    dg.DagsterEventType.STEP_START,
    (dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.STEP_FAILURE),
)


def steps_in_progress(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    """Return the keys of steps that began and did not end, in order."""

    def keys(of_type: dg.DagsterEventType) -> list[str]:
        records = instance.get_records_for_run(run_id, of_type=of_type).records
        return [key for one in records if (key := one.event_log_entry.step_key) is not None]

    ended = {key for of_type in _ENDED for key in keys(of_type)}
    return [key for key in dict.fromkeys(keys(_BEGUN)) if key not in ended]


def what_ran(run: dg.DagsterRun, steps: Sequence[str]) -> str:
    """Return assets and partition of the steps in progress, for a message."""
    named = " and ".join(step.replace("__", "/") for step in steps) or "the run"
    keys = dict.fromkeys(run.tags[tag] for tag in _PARTITIONS if tag in run.tags)
    return f"{named} of {'..'.join(keys)}" if keys else named


def last_words(instance: dg.DagsterInstance, run_id: str) -> bytes:
    """Return what the steps of a run wrote to standard error, as far as Dagster captured it."""
    manager = instance.compute_log_manager
    captured = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.LOGS_CAPTURED).records
    events = [event for one in captured if (event := one.event_log_entry.dagster_event) is not None]
    keys = [event.logs_captured_data.file_key for event in events]
    logs = [manager.get_log_data(manager.build_log_key_for_run(run_id, key)).stderr for key in keys]
    return b"\n".join(filter(None, logs))


def fail_from_outside(
    instance: dg.DagsterInstance, run: dg.DagsterRun, steps: Sequence[str], why: str
) -> None:
    """Report `why` as the failure of `steps` and, unless it ended meanwhile, of the run."""
    for step in steps:
        failure = StepFailureData(
            SerializableErrorInfo(why, [], cls_name=None), UserFailureData("intentional-failure", why)
        )
        event = DagsterEvent(
            dg.DagsterEventType.STEP_FAILURE.value,
            job_name=run.job_name,
            step_key=step,
            event_specific_data=failure,
            message=f'Execution of step "{step}" failed.',
        )
        instance.report_dagster_event(event, run.run_id, logging.ERROR)
    now = instance.get_run_by_id(run.run_id)
    if now is not None and not now.is_finished:
        instance.report_run_failed(run, why)


def in_process_within(
    block: Callable[[dg.DagsterInstance, str], AbstractContextManager[None]],
) -> dg.ExecutorDefinition:
    """Return the executor `in_process`, whose steps run inside of `block`, called with instance and id of the run."""

    class Within(InProcessExecutor):
        def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[DagsterEvent]:
            with block(plan_context.instance, plan_context.run_id):
                yield from super().execute(plan_context, execution_plan)

    of_dagster: Any = dg.in_process_executor

    @dg.executor(name="in_process", config_schema=of_dagster.config_schema)
    def in_process(context: dg.InitExecutorContext) -> Within:
        plain: InProcessExecutor = of_dagster.executor_creation_fn(context)
        return Within(plain.retries, plain.step_dependency_config)

    return in_process
