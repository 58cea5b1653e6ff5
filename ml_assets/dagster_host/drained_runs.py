"""Runs whose process is asked to end although nobody cancels them, as at the drain of a node or the eviction of a pod.

A signal does not say who sent it. Dagster sets a run to CANCELING before it ends anything, so the row of the run
decides if a SIGTERM is a cancel. If it is not, and Dagster resumes the run, the process ends here without a failure:
Dagster itself would write that the interrupted step failed, and sensors would take that for the reason of a later
failure. Not here: the pods of trainings, which go on (`resources.launcher`), the resume (`run_monitoring` of
`instance`).

Private area: the count of resumes. The public events have its message, which is no public name.
"""

import logging
import os
import sys
from contextlib import suppress

import dagster as dg

DRAINED = (
    "The pod of this run was asked to end, and nobody canceled the run: its node is drained, or the pod evicted. Pods "
    "of its trainings go on, and the run resumes in a new pod"
)
_EXIT_CODE = 75
"""Not 0: the Job of the run must count as failed, or the monitoring would wait for it. 75 is "try again later"."""


def is_canceled(instance: dg.DagsterInstance, run_id: str) -> bool:
    """True if this run is being canceled, has ended, or was deleted. False if Dagster's storage does not answer.

    Without an answer nobody can cancel: that is a write to the same storage. And a training that is left by mistake is
    removed by the pruner once its run has ended; a training that is removed by mistake loses the hours of a restart.
    """
    try:
        run = instance.get_run_by_id(run_id)
    except Exception:  # of any storage
        logging.getLogger(__name__).exception("the storage does not say if run %s is being canceled", run_id)
        return False
    return run is None or run.is_finished or run.status == dg.DagsterRunStatus.CANCELING


def end_if_resumed(instance: dg.DagsterInstance, run_id: str) -> None:
    """End this process at once if nobody cancels the run and Dagster resumes it; else return.

    The step that was interrupted must have released what it holds. Only its event "failed" is not written.
    """
    if not instance.run_monitoring_enabled or instance.run_monitoring_max_resume_run_attempts < 1:
        return
    if is_canceled(instance, run_id):
        return
    with suppress(Exception):  # of any storage; the run resumes without this line, too
        instance.report_engine_event(DRAINED, instance.get_run_by_id(run_id), run_id=run_id)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(_EXIT_CODE)


def deaths_of(instance: dg.DagsterInstance, run_id: str) -> int:
    """Return how many processes of this run died, the newest included, and were not asked to end."""
    # Imports of the whole daemon, which definitions and plans do not need.
    from dagster._daemon.monitoring.run_monitoring import count_resume_run_attempts

    events = instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
    drained = sum(event.message == DRAINED for event in events)
    return count_resume_run_attempts(instance, run_id) + 1 - drained
