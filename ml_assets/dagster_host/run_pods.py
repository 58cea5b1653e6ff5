"""Launcher of runs as pods: says on a run's page why its pod does not start, and fails a run which another pod would
not help: out of memory or disk, or dead again and again.

Private area: the launcher of `dagster_k8s`. The public `K8sRunLauncher` knows only that a pod died, and the monitoring
starts the run again, up to a number that counts drains, too. It asks the launcher first, which reports the failure. It
asks nothing about a run that has not begun, and ends it after ten minutes: a thread looks after such runs. Not here:
the reasons (`starting_pods`), processes of one machine (`run_watcher`), pods of trainings
(`resources.launcher.kubernetes`).
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# (dagster_k8s and kubernetes have no types)

import json
import logging
import math
import threading
import time
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from dagster._core.events import EngineEventData
from dagster._core.launcher.base import (
    CheckRunHealthResult,
    LaunchRunContext,
    ResumeRunContext,
    WorkerStatus,
)
from dagster_k8s import K8sRunLauncher
from dagster_k8s.client import DagsterKubernetesClient, k8s_api_retry
from dagster_k8s.job import get_job_name_from_run_id
from dagster_shared.error import SerializableErrorInfo
from kubernetes.client import V1JobStatus
from kubernetes.client.exceptions import ApiException

from ml_assets.dagster_host.dead_runs import fail_from_outside, steps_in_progress, what_ran
from ml_assets.dagster_host.drained_runs import deaths_of
from ml_assets.dagster_host.starting_pods import MAIN, Obstacle, obstacle_of
from resources.clocks import time_told
from resources.launcher.kubernetes.classify import is_over_its_disk
from resources.launcher.kubernetes.pod_state import Pod
from resources.memory import LESS_AT_ONCE, ON_KUBERNETES

MOST_DEATHS = 4
"""Pods of a run that may die. Pods of a drained node do not count: a month of training may see dozens of drains."""
LOOK_SECONDS = 5.0
"""Seconds between two looks at the runs that wait for their pod."""
KEPT_SECONDS = 5.0
"""Seconds for which the state of a run's Job counts: half of the time between two looks of Dagster's monitoring."""
OF_RUNS = "dagster/run-id"
"""Label of the Jobs of runs."""
_REQUEST_SECONDS, _RETRY_SECONDS = 30.0, 10.0
_LINES = 20
_TO_BEGIN = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED)


class JobsOfRuns(DagsterKubernetesClient):
    """Client of the cluster that reads the Jobs of all runs by one request. Dagster's own sends one for each run every
    ten seconds, so 20 a second for 200 runs.
    """

    def __init__(self, client: DagsterKubernetesClient) -> None:
        super().__init__(client.batch_api, client.core_api, client.logger, client.sleeper, client.timer)
        self._read_at = -math.inf
        self._found: dict[str, V1JobStatus] = {}

    def get_job_status(
        self, job_name: str, namespace: str, wait_time_between_attempts: float = _RETRY_SECONDS
    ) -> V1JobStatus | None:
        """Return the status of a run's Job, up to `KEPT_SECONDS` old; None without one."""
        if time.monotonic() - self._read_at > KEPT_SECONDS:
            answer = k8s_api_retry(
                lambda: self.batch_api.list_namespaced_job(
                    namespace,
                    label_selector=OF_RUNS,
                    _preload_content=False,
                    _request_timeout=_REQUEST_SECONDS,
                ),
                max_retries=3,
                timeout=wait_time_between_attempts,
            )
            self._found = {
                one["metadata"]["name"]: V1JobStatus(
                    **{name: one.get("status", {}).get(name) for name in ("active", "failed", "succeeded")}
                )
                for one in json.loads(answer.data)["items"]
            }
            self._read_at = time.monotonic()
        if (found := self._found.get(job_name)) is not None:
            return found
        return super().get_job_status(job_name, namespace, wait_time_between_attempts)  # made just now


class RunPods(K8sRunLauncher):
    """`K8sRunLauncher` that says within a minute why a pod does not start, and fails a run whose pod exceeded its
    memory or disk, or whose pods died `MOST_DEATHS` times.
    """

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self._api_client = JobsOfRuns(self._api_client)
        self._turn = threading.Lock()
        self._watch: threading.Thread | None = None
        self._over = threading.Event()
        self._waiting: set[str] = set()
        self._told: set[tuple[str, str]] = set()

    def launch_run(self, context: LaunchRunContext) -> None:
        """Make the pod of a run, and look after it until it starts."""
        super().launch_run(context)
        self._look_after(context.dagster_run)

    def resume_run(self, context: ResumeRunContext) -> None:
        """Make another pod of a run, and look after it until it starts."""
        super().resume_run(context)
        self._look_after(context.dagster_run)

    def dispose(self) -> None:
        """End the thread that looks after runs."""
        self._over.set()
        super().dispose()

    def _look_after(self, run: dg.DagsterRun) -> None:
        """Have the thread look at this run, and at those that an earlier process of the daemon started."""
        with self._turn:
            self._waiting.add(run.run_id)
            if self._watch is None:
                self._watch = threading.Thread(target=self._look, name="pods of runs", daemon=True)
                self._watch.start()

    def _look(self) -> None:
        """Say on the page of each run that waits for its pod what it waits for, until no run waits."""
        while not self._over.wait(LOOK_SECONDS):
            try:
                for run_id in self._all_waiting():
                    self._look_at(run_id)
            # Any, of Dagster's storage or of the cluster: they may be away, and the runs still wait.
            except Exception:
                logging.getLogger(__name__).exception("cannot look after the pods of runs; trying again")
            with self._turn:
                if not self._waiting:
                    self._watch = None
                    return

    def _all_waiting(self) -> list[str]:
        starting = self._instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTING]))
        with self._turn:
            self._waiting.update(run.run_id for run in starting)
            return sorted(self._waiting)

    def _look_at(self, run_id: str) -> None:
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.status not in _TO_BEGIN or not self._still_waits(run):
            with self._turn:
                self._waiting.discard(run_id)

    def _still_waits(self, run: dg.DagsterRun) -> bool:
        """Return True while no pod of the run has started, and say why on its page. Fail it if one ended before."""
        pods, now = self._pods(run)
        found = [Pod.of(pod, MAIN) for pod in pods]
        if run.status == dg.DagsterRunStatus.STARTING and any(pod.has_ended for pod in found):
            # The monitoring looks after a run whose process said that it began; nobody makes another pod of this one.
            why = self._exceeded(run, what_ran(run, ())) or self._ended_early(run, found)
            fail_from_outside(self._instance, run, (), why)
            return False
        if any(pod.has_started for pod in found):
            return False
        self._tell(run, pods, now)
        return True

    def _tell(self, run: dg.DagsterRun, pods: list[dict[str, Any]], now: datetime) -> None:
        """Say on the run's page, once for each reason, why its pod does not start."""
        found = self._obstacle(run, pods, now)
        if found is not None and (run.run_id, found.kind) not in self._told:
            self._told.add((run.run_id, found.kind))
            error = SerializableErrorInfo(found.said, [], cls_name=None)
            self._instance.report_engine_event(found.said, run, EngineEventData.engine_error(error), RunPods)

    def _obstacle(self, run: dg.DagsterRun, pods: list[dict[str, Any]], now: datetime) -> Obstacle | None:
        space = self.get_container_context_for_run(run).namespace

        def events_of(fields: str) -> list[dict[str, Any]]:
            return self._listed("event", namespace=space, field_selector=fields)[0]

        of_job = [] if pods else events_of(f"involvedObject.kind=Job,involvedObject.name={self._job_of(run)}")
        return obstacle_of(pods, of_job, lambda uid: events_of(f"involvedObject.uid={uid}"), now)

    def _pods(self, run: dg.DagsterRun) -> tuple[list[dict[str, Any]], datetime]:
        """Return the pods of the run's newest Job, and the time of the API server."""
        space = self.get_container_context_for_run(run).namespace
        return self._listed("pod", namespace=space, label_selector=f"job-name={self._job_of(run)}")

    def _listed(self, kind: str, **which: Any) -> tuple[list[dict[str, Any]], datetime]:
        """Return documents of the API, and the time at which the server answered."""
        ask = getattr(self._api_client.core_api, f"list_namespaced_{kind}")
        answer = ask(**which, _preload_content=False, _request_timeout=_REQUEST_SECONDS)
        return json.loads(answer.data)["items"], time_told(answer.headers) or datetime.now(UTC)

    def _ended_early(self, run: dg.DagsterRun, pods: list[Pod]) -> str:
        """Return how the pod ended whose process never said that it began, with its last lines."""
        (pod, *_) = (one for one in pods if one.has_ended)
        space = self.get_container_context_for_run(run).namespace
        log = self._api_client.core_api.read_namespaced_pod_log
        try:
            lines = log(pod.name, space, container=MAIN, tail_lines=_LINES, _request_timeout=_REQUEST_SECONDS)
        except ApiException:  # it was removed with its node
            lines = ""
        how = pod.message or pod.disrupted or pod.trainer.how_it_ended
        return (
            f"the pod {pod.name} of this run ended before the run began: {how}. Launch again. {lines}".strip()
        )

    def _job_of(self, run: dg.DagsterRun) -> str:
        return get_job_name_from_run_id(
            run.run_id, resume_attempt_number=self._get_resume_attempt_number(run)
        )

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Return the state of the run's Job. If another pod would not help, fail the run first."""
        health: CheckRunHealthResult = super().check_run_worker_health(run)
        if health.status not in (WorkerStatus.RUNNING, WorkerStatus.SUCCESS):
            steps = steps_in_progress(self._instance, run.run_id)
            what = what_ran(run, steps)
            exceeded = self._exceeded(run, what) if health.status == WorkerStatus.FAILED else ""
            if why := exceeded or self._died_too_often(run, what):
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

    def _exceeded(self, run: dg.DagsterRun, what: str) -> str:
        """Return which limit a pod of the run's Job exceeded, in words; empty if none did."""
        for document in self._pods(run)[0]:
            pod = Pod.of(document, MAIN)
            if is_over_its_disk(pod):
                return (
                    f"OutOfDisk: {what} wrote more to its disk than its limit, so pod {pod.name} was evicted: "
                    f"{pod.message} Raise runs.resources.limits.ephemeral-storage of the chart, or make fewer "
                    "partitions in one run"
                )
            limits = {
                one["name"]: one.get("resources", {}).get("limits", {})
                for one in document["spec"]["containers"]
            }
            for one in (pod.trainer, *pod.others):
                if one.reason == "OOMKilled":
                    limit = limits.get(one.name, {}).get("memory", "that of its node")
                    return (
                        f"OutOfMemory: {what} ran out of memory: the kernel killed {one.name} in pod {pod.name}, whose "
                        f"limit is {limit}. {ON_KUBERNETES}; {LESS_AT_ONCE}"
                    )
        return ""
