"""Many trainings of one pod each on simulated nodes, followed by launchers in threads of this process.

Their pods have no process: this module plays how they end. The launchers, their requests and the API server are real.
The launchers have the rights of the chart's account `run`, so that the API server counts their requests apart.
"""

import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubernetes import client, config

from deployment.testbed.cluster import api_server
from deployment.testbed.cluster.simulation import LABEL, TAINT
from ml_assets_tests.cluster.cluster_environment import ClusterEnvironment, waited_for
from ml_assets_tests.cluster.launched_job import SMALL, job_of, settings_of
from ml_assets_tests.resources.launcher.scripted_jobs import CONTENT, untrained_result
from resources.artifacts import FolderArtifacts
from resources.job.errors import AttemptsExhausted
from resources.job.events import RESULT, WEIGHTS, training_folder_name
from resources.job.job import TrainingJob, TrainingResult
from resources.launcher.kubernetes.attempt_objects import ATTEMPT, CONTAINER, MANAGED, TRAINING
from resources.launcher.kubernetes.launcher import KubernetesLauncher
from resources.launcher.resource_profile import ResourceProfile

ENDS = ("succeeded", "failed", "evicted", "removed")
"""Ends of a training's first pod. After an eviction or the removal of its Job, a second attempt succeeds."""
FLOW = "launchers"
"""Name of the flow by which the API server counts the launchers' requests."""
SECONDS = 300.0


@dataclass
class FollowedTraining:
    """One training, the end that is played for it, and what its launcher noticed."""

    job: TrainingJob
    end: str
    result: "Future[TrainingResult]" = field(default_factory=Future)
    said: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    """Lines of its log, with their time."""
    played_at: float = 0.0
    ended_at: float = 0.0
    """Times of the first pod's end, and of the launcher's."""

    @property
    def key(self) -> str:
        """Value of the label of its objects."""
        return self.job.fingerprint[:12]

    def noticed_after(self) -> float | None:
        """Return the seconds from the end of the first pod until the launcher noticed it; None if it has not."""
        if self.end in ("succeeded", "failed"):
            return self.ended_at - self.played_at if self.result.done() else None
        pattern = {"evicted": r"attempt 1 ended: .*[Ee]vict", "removed": "attempt 1 ended: .*was deleted"}
        found = [at for at, line in self.said if re.search(pattern[self.end], line)]
        return found[0] - self.played_at if found else None

    def is_as_played(self) -> bool:
        """Return True if the training ended with what its pods did."""
        error = self.result.exception()
        return isinstance(error, AttemptsExhausted) if self.end == "failed" else error is None


class _SimulatedStore(FolderArtifacts):
    """Folder of this machine with addresses of S3, which no simulated pod opens."""

    def address(self, name: str) -> str:
        return f"s3://nowhere/{name}"


class ManyTrainings:
    """Launches trainings, plays their ends, counts the requests."""

    def __init__(self, cluster: ClusterEnvironment, account: Path, folder: Path, count: int) -> None:
        """Launch `count` trainings with the kubeconfig `account`; their files go to `folder`."""
        os.environ["KUBECONFIG"] = str(account)
        self._cluster = cluster
        self._artifacts = _SimulatedStore(folder / "artifacts")
        settings = settings_of(cluster.settings() | {"ML_ASSETS_KUBERNETES_CONTEXT": account.name}).kubernetes
        launcher = KubernetesLauncher(settings=settings, artifacts=self._artifacts)
        api = config.new_client_from_config(str(cluster.kubeconfig), cluster.context)
        self._core, self._batch = client.CoreV1Api(api), client.BatchV1Api(api)
        tolerations = [{"key": TAINT, "operator": "Exists"}]
        self._profile = ResourceProfile.model_validate(
            {**SMALL, "tolerations": tolerations, "node_selector": LABEL}
        )
        snapshot = folder / "snapshot"
        snapshot.mkdir()
        (snapshot / "snapshot.json").write_text("{}")
        self.all = [
            FollowedTraining(
                job_of(f"training {number}", workers=1, max_attempts=1, snapshot=snapshot),
                ENDS[number % len(ENDS)],
            )
            for number in range(count)
        ]
        for one in self.all:
            # A daemon: a test that fails does not wait for trainings that never end.
            threading.Thread(target=self._follow, args=[one, launcher], daemon=True).start()

    def _follow(self, training: FollowedTraining, launcher: KubernetesLauncher) -> None:
        def tell(line: str) -> None:
            training.said.append((time.monotonic(), line))

        folder = self._artifacts.folder(training_folder_name(training.job))
        try:
            result = launcher.run(training.job, folder, lambda _: None, tell, self._profile)
            training.result.set_result(result)
        except BaseException as error:
            training.result.set_exception(error)
        finally:
            training.ended_at = time.monotonic()

    def wait_until_all_run(self) -> float:
        """Wait until each launcher has seen its pod run; return the seconds."""

        def all_run() -> bool:
            early = [one for one in self.all if one.result.done()]
            assert not early, [(one.result.exception(), one.said) for one in early]
            return all(any("pods run on" in line for _, line in one.said) for one in self.all)

        return waited_for(all_run, "all to run", SECONDS)

    def play_ends(self) -> None:
        """End the first pod of each training, or remove its Job."""
        pods = self._pods(attempt=1)
        space = self._cluster.namespace
        for training in self.all:
            pod = pods[training.key]
            training.played_at = time.monotonic()
            if training.end == "succeeded":
                self._finish(training, pod)
            elif training.end == "failed":
                self._end_pod(pod, 1)
            elif training.end == "evicted":
                meta = client.V1ObjectMeta(name=pod["metadata"]["name"], namespace=space)
                self._core.create_namespaced_pod_eviction(
                    pod["metadata"]["name"], space, client.V1Eviction(metadata=meta)
                )
            else:
                name = f"train-{training.key}-1"
                self._batch.delete_namespaced_job(name, space, propagation_policy="Background")

    def finish_second_attempts(self) -> None:
        """Let the second attempts succeed as their pods run, and wait until each training has ended."""
        finished: set[str] = set()

        def all_ended() -> bool:
            for key, pod in self._pods(attempt=2).items():
                if key not in finished and pod["status"]["phase"] == "Running":
                    finished.add(key)
                    (training,) = (one for one in self.all if one.key == key)
                    self._finish(training, pod)
            return all(one.result.done() for one in self.all)

        def waiting() -> str:
            return str([(one.end, one.said[-2:]) for one in self.all if not one.result.done()][:5])

        waited_for(all_ended, "each training to end", SECONDS, waiting)

    def _pods(self, attempt: int) -> dict[str, dict[str, Any]]:
        """Return training's key → its pod of this attempt."""
        found = self._cluster.objects("pods", f"--selector={MANAGED},{ATTEMPT}={attempt}")
        return {one["metadata"]["labels"][TRAINING]: one for one in found}

    def _finish(self, training: FollowedTraining, pod: dict[str, Any]) -> None:
        """Leave a result, as rank 0 does, and end the pod."""
        folder = self._artifacts.folder(training_folder_name(training.job))
        weights = folder / WEIGHTS
        weights.write_bytes(CONTENT)
        result = untrained_result(training.job.fingerprint, str(weights))
        (folder / RESULT).write_text(result.to_json())
        self._end_pod(pod, 0)

    def _end_pod(self, pod: dict[str, Any], code: int) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        terminated = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "startedAt": now,
            "finishedAt": now,
        }
        containers = [
            {**one, "ready": False, "state": {"terminated": terminated}}
            for one in pod["status"]["containerStatuses"]
            if one["name"] == CONTAINER
        ]
        status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": containers}
        self._core.patch_namespaced_pod_status(
            pod["metadata"]["name"], self._cluster.namespace, {"status": status}
        )


def count_apart(cluster: ClusterEnvironment, account: str) -> Callable[[], int]:
    """Have the API server count the requests of a service account; return the function that reads the count."""
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}
    who = {"kind": "ServiceAccount", "serviceAccount": {"name": account, "namespace": cluster.namespace}}
    cluster.apply(
        {
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
            "kind": "FlowSchema",
            "metadata": {"name": FLOW},
            "spec": {
                "priorityLevelConfiguration": {"name": "workload-low"},  # that of all service accounts
                "matchingPrecedence": 500,
                "distinguisherMethod": {"type": "ByUser"},
                "rules": [{"subjects": [who], "resourceRules": [everything]}],
            },
        }
    )

    def ever() -> int:
        text = api_server.get(cluster.cluster.layout, "/metrics")
        name = "apiserver_flowcontrol_dispatched_requests_total"
        found = re.findall(rf'^{name}{{flow_schema="{FLOW}".*}} (\S+)$', text, re.MULTILINE)
        return int(sum(map(float, found)))

    earlier = ever()
    return lambda: ever() - earlier
