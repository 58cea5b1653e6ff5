"""Launcher of runs as pods that fails a run which another pod would not help: out of memory, or dead again and again.

Private area: the launcher of `dagster_k8s`. The public `K8sRunLauncher` knows only that a pod died, and the monitoring
starts the run again, up to a number that counts drains, too. It asks the launcher first, which reports the failure. Not
here: processes of one machine (`run_watcher`), pods of trainings (`resources.launcher.kubernetes`).
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# (dagster_k8s and kubernetes have no types)

from typing import Any

import dagster as dg
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster_k8s import K8sRunLauncher
from dagster_k8s.job import get_job_name_from_run_id

from ml_assets.dagster_host.dead_runs import fail_from_outside, steps_in_progress, what_ran
from ml_assets.dagster_host.drained_runs import deaths_of
from resources.memory import LESS_AT_ONCE, ON_KUBERNETES

MOST_DEATHS = 4
"""Pods of a run that may die. Pods of a drained node do not count: a month of training may see dozens of drains."""


class RunPods(K8sRunLauncher):
    """`K8sRunLauncher` that fails a run whose pod the kernel killed, or whose pods died `MOST_DEATHS` times."""

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Return the state of the run's Job. If another pod would not help, fail the run first."""
        health: CheckRunHealthResult = super().check_run_worker_health(run)
        if health.status not in (WorkerStatus.RUNNING, WorkerStatus.SUCCESS):
            steps = steps_in_progress(self._instance, run.run_id)
            killed = self._killed_for_memory(run) if health.status == WorkerStatus.FAILED else ""
            why = (
                f"OutOfMemory: {what_ran(run, steps)} ran out of memory: {killed}. {ON_KUBERNETES}; {LESS_AT_ONCE}"
                if killed
                else self._died_too_often(run, what_ran(run, steps))
            )
            if why:
                fail_from_outside(self._instance, run, steps, why)
        return health

    def _died_too_often(self, run: dg.DagsterRun, what: str) -> str:
        """Return why the run has no other pod, in words; empty if it may have one."""
        if deaths_of(self._instance, run.run_id) < MOST_DEATHS:
            return ""
        return (
            f"{what} lost its pod {MOST_DEATHS} times, drains of nodes not counted. Look at `kubectl describe` of the "
            f"pods with the label dagster/run-id={run.run_id}, and launch again: trainings resume"
        )

    def _killed_for_memory(self, run: dg.DagsterRun) -> str:
        """Return which pod of the run's Job was killed at which limit, in words; empty if none was."""
        name = get_job_name_from_run_id(
            run.run_id, resume_attempt_number=self._get_resume_attempt_number(run)
        )
        space = self.get_container_context_for_run(run).namespace
        found: Any = self._api_client.core_api.list_namespaced_pod(
            namespace=space, label_selector=f"job-name={name}"
        )
        for pod in found.items:
            limits = {one.name: one.resources and one.resources.limits for one in pod.spec.containers}
            for status in pod.status.container_statuses or ():
                end = status.state.terminated
                if end is not None and end.reason == "OOMKilled":
                    limit = (limits.get(status.name) or {}).get("memory", "that of its node")
                    return (
                        f"the kernel killed {status.name} in pod {pod.metadata.name}, whose limit is {limit}"
                    )
        return ""
