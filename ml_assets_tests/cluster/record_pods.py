"""Record pods, Jobs and events of a real cluster, in the states that the launcher has to classify.

`make cluster-up`, then `python -m ml_assets_tests.cluster.record_pods [SCENARIO …]` writes a file for each into
`ml_assets_tests/resources/launcher/recorded`; `test_recorded.py` beside that folder classifies them. Each is a Job as
the launcher makes it, whose trainer is a line of shell; containers that a cluster's webhooks would inject are written
into its template. No server but the cluster is needed.
"""

import json
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deployment.testbed.cluster.command import DEFAULT
from deployment.testbed.cluster.local_cluster import LocalCluster
from ml_assets_tests.cluster.cluster_environment import waited_for
from resources.job.job import TrainingJob
from resources.job.training_settings import TrainingSettings
from resources.launcher.kubernetes.attempt_objects import CONTAINER, job_manifest
from resources.launcher.kubernetes.cluster import Document
from resources.launcher.resource_profile import ResourceProfile
from resources.settings import KubernetesSettings

RECORDED = Path(__file__).parents[1] / "resources" / "launcher" / "recorded"
SIDECAR = "mesh-proxy"
URGENT = "urgent"
"""A pod with a higher priority; in a list of pods it comes after the Job's."""
IDLE = "trap 'exit 75' TERM; while :; do sleep 0.2; done"
DEAF = "trap '' TERM; while :; do sleep 0.2; done"
_SECONDS = 60.0
_SMALL = {"cpu": "50m", "memory": "64Mi", "scratch": "20Mi", "shared_memory": "1Mi", "grace_seconds": 5}
_REGISTRY = "registry.example.com"


@dataclass
class ScenarioNamespace:
    """A namespace of one scenario."""

    cluster: LocalCluster
    namespace: str

    def kubectl(self, *words: str, stdin: str = "") -> str:
        """Return kubectl's output in this namespace."""
        return self.cluster.kubectl(f"--namespace={self.namespace}", *words, stdin=stdin)

    def make(self, *objects: Document) -> None:
        """Create objects in this namespace."""
        self.kubectl(
            "create", "--filename=-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        )

    def objects(self, kind: str) -> list[Document]:
        """Return all objects of a kind in this namespace."""
        return json.loads(self.kubectl("get", kind, "--output=json"))["items"]

    def statuses(self) -> dict[str, Document]:
        """Status of each container of the first pod, by name; none before the kubelet tells."""
        told: list[Document] = []
        for one in self.objects("pods")[:1]:
            told += one["status"].get("initContainerStatuses", []) + one["status"].get(
                "containerStatuses", []
            )
        return {one["name"]: one for one in told}

    def wait(self, done: Callable[[], bool], what: str) -> None:
        """Poll until `done`."""
        waited_for(
            done, f"{self.namespace}: {what}", _SECONDS, lambda: json.dumps(self.objects("pods"), indent=1)
        )


Until = Callable[[ScenarioNamespace], bool]


def _state(name: str, kind: str, *reasons: str) -> Until:
    """Return a condition: the container is in this kind of state, for one of these reasons."""

    def reached(stage: ScenarioNamespace) -> bool:
        state = stage.statuses().get(name, {}).get("state", {})
        return kind in state and (not reasons or state[kind]["reason"] in reasons)

    return reached


def _all(*untils: Until) -> Until:
    return lambda stage: all(until(stage) for until in untils)


def _phase(*phases: str) -> Until:
    return lambda stage: [one["status"]["phase"] in phases for one in stage.objects("pods")] == [True]


def _true(kind: str, condition: str) -> Until:
    """Return a condition: the first object of this kind has the status condition `condition`."""

    def reached(stage: ScenarioNamespace) -> bool:
        told = [c for one in stage.objects(kind)[:1] for c in one["status"].get("conditions", [])]
        return any(one["type"] == condition and one["status"] == "True" for one in told)

    return reached


def _event(reason: str, times: int = 1) -> Until:
    """Return a condition: an event with this reason occurred at least `times` times."""
    return lambda stage: (
        times <= sum(one.get("count") or 1 for one in stage.objects("events") if one["reason"] == reason)
    )


RUNS = _state(CONTAINER, "running")
ENDED = _phase("Succeeded", "Failed")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One state that pods can be in, and how to bring a Job's pod there."""

    script: str = IDLE
    """Program of the trainer."""
    profile: dict[str, Any] = field(default_factory=dict[str, Any])
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    before: tuple[Document, ...] = ()
    """Objects to be there before the Job."""
    sidecars: tuple[tuple[str, str], ...] = ()
    """Name and script of containers before the trainer."""
    inits: tuple[Document, ...] = ()
    """Init containers; name and script, and what else they have."""
    ready: Until | None = None
    """Condition for acting."""
    act: Callable[[ScenarioNamespace], None] | None = None
    """Action on the pod."""
    until: Until = ENDED
    """Condition for recording."""


def _init(name: str, script: str, **facts: Any) -> Document:
    return {"name": name, "command": ["sh", "-c", script], **facts}


def _evict(stage: ScenarioNamespace) -> None:
    name = stage.objects("pods")[0]["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    path = f"/api/v1/namespaces/{stage.namespace}/pods/{name}/eviction"
    stage.kubectl("create", "--raw", path, "--filename=-", stdin=json.dumps(eviction))


def _delete(stage: ScenarioNamespace) -> None:
    stage.kubectl("delete", "pods", "--all", "--wait=false")


def _lift_quota(stage: ScenarioNamespace) -> None:
    stage.kubectl("delete", "resourcequota", "team")


def _kill_node(stage: ScenarioNamespace) -> None:
    stage.cluster.kill_node(2)


def _restart_node(stage: ScenarioNamespace) -> None:
    stage.cluster.kill_node(2)
    stage.cluster.start_node(2)


def _prefer_another(stage: ScenarioNamespace) -> None:
    """Create a pod with a higher priority that needs the space of this pod."""
    container = {"name": "main", "image": stage.cluster.image, "command": ["sh", "-c", IDLE]}
    container["resources"] = {"requests": {"cpu": "1200m"}}
    spec = {"priorityClassName": "system-cluster-critical", "nodeName": "", "containers": [container]}
    spec["nodeSelector"] = {"kubernetes.io/hostname": "node2"}
    stage.make({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": URGENT}, "spec": spec})


QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "team"},
    "spec": {"hard": {"pods": "0"}},
}
ON_NODE_2 = {"node_selector": {"kubernetes.io/hostname": "node2"}}
ALWAYS = {"restartPolicy": "Always"}
NEVER_READY = {"startupProbe": {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 100}}
PROXY = (SIDECAR, f"echo the proxy listens; {IDLE}")

SCENARIOS: dict[str, Scenario] = {
    "no-node": Scenario(profile={"cpu": "512"}, until=_event("FailedScheduling")),
    "pulling": Scenario(settings={"image": f"{_REGISTRY}/slow:1"}, until=_event("Pulling")),
    "image-missing": Scenario(
        settings={"image": "localhost/nowhere:1"}, until=_state(CONTAINER, "waiting", "ImagePullBackOff")
    ),
    "image-failed-once": Scenario(
        settings={"image": "localhost/nowhere:1"}, until=_state(CONTAINER, "waiting", "ErrImagePull")
    ),
    "image-name": Scenario(
        settings={"image": "Not/A/Name"}, until=_state(CONTAINER, "waiting", "InvalidImageName")
    ),
    "secret-missing": Scenario(
        profile={"env_from_secrets": ["nobody"]},
        until=_state(CONTAINER, "waiting", "CreateContainerConfigError"),
    ),
    "volume-missing": Scenario(
        profile={"volumes": [{"mount_path": "/more", "config_map": "nobody"}]}, until=_event("FailedMount", 3)
    ),
    "command-missing": Scenario(settings={"command": ("/nowhere",)}),
    "running": Scenario(until=RUNS),
    "succeeded": Scenario(script="exit 0", until=_all(ENDED, _true("jobs", "Complete"))),
    "diverged": Scenario(script="echo the loss is nan; exit 65"),
    "failed": Scenario(script="echo last words; exit 3", until=_all(ENDED, _true("jobs", "Failed"))),
    "out-of-memory": Scenario(script="tail /dev/zero"),
    "deadline": Scenario(profile={"deadline_minutes": 0.05}, until=_true("jobs", "Failed")),
    "over-its-scratch": Scenario(
        script=f"head -c 40000000 /dev/zero >/scratch/shards; {IDLE}", until=_phase("Failed")
    ),
    "evicted": Scenario(ready=RUNS, act=_evict, until=_true("pods", "DisruptionTarget")),
    "deleted": Scenario(
        ready=RUNS,
        act=_delete,
        script=DEAF,
        until=lambda stage: "deletionTimestamp" in stage.objects("pods")[0]["metadata"],
    ),
    "preempted": Scenario(
        profile={"cpu": "1200m", **ON_NODE_2},
        script=DEAF,
        ready=RUNS,
        act=_prefer_another,
        until=_true("pods", "DisruptionTarget"),
    ),
    "running-with-sidecar": Scenario(sidecars=(PROXY,), until=_all(RUNS, _state(SIDECAR, "running"))),
    "diverged-with-sidecar": Scenario(
        script="echo the loss is nan; exit 65", sidecars=(PROXY,), until=_state(CONTAINER, "terminated")
    ),
    "out-of-memory-with-sidecar": Scenario(
        script="tail /dev/zero", sidecars=(PROXY,), until=_state(CONTAINER, "terminated")
    ),
    "done-with-sidecar": Scenario(script="exit 0", sidecars=(PROXY,), until=_state(CONTAINER, "terminated")),
    "done-but-sidecar-failed": Scenario(
        script="exit 0", sidecars=((SIDECAR, "echo no certificate; exit 9"),), until=_phase("Failed")
    ),
    "runs-but-sidecar-failed": Scenario(
        sidecars=((SIDECAR, "echo no certificate; exit 9"),), until=_all(RUNS, _state(SIDECAR, "terminated"))
    ),
    "done-with-native-sidecar": Scenario(script="exit 0", inits=(_init(SIDECAR, IDLE, **ALWAYS),)),
    "native-sidecar-crashes": Scenario(
        inits=(_init(SIDECAR, "echo no certificate; exit 9", **ALWAYS, **NEVER_READY),),
        until=lambda stage: stage.statuses()[SIDECAR]["restartCount"] > 1,
    ),
    "init-failed": Scenario(inits=(_init("fetch-keys", "echo no keys today; exit 7"),)),
    "init-running": Scenario(
        inits=(_init("fetch-keys", IDLE),), until=_state("fetch-keys", "running")
    ),
    "init-image-missing": Scenario(
        inits=(_init("fetch-keys", IDLE, image="localhost/nowhere:2"),),
        until=_state("fetch-keys", "waiting", "ImagePullBackOff"),
    ),
    "pulling-after-init": Scenario(
        inits=(_init("fetch-keys", "sleep 2"),),
        settings={"image": f"{_REGISTRY}/slow:1"},
        until=_event("Pulling"),
    ),
    "no-quota": Scenario(before=(QUOTA,), until=_event("FailedCreate", 2)),
    "ran-after-no-quota": Scenario(
        before=(QUOTA,), ready=_event("FailedCreate"), act=_lift_quota, until=RUNS
    ),
    "refused-by-policy": Scenario(
        profile={"volumes": [{"mount_path": "/cache", "host_path": "/tmp"}]}, until=_event("FailedCreate", 2)
    ),
    "node-lost": Scenario(
        profile=ON_NODE_2, ready=RUNS, act=_kill_node, until=_true("pods", "DisruptionTarget")
    ),
    "node-restarted": Scenario(profile=ON_NODE_2, ready=RUNS, act=_restart_node),
}  # fmt: skip


@contextmanager
def staged(cluster: LocalCluster, name: str) -> Iterator[ScenarioNamespace]:
    """Create the namespace of a scenario, with the objects that its pods need, while the block runs."""
    namespace = f"scenario-{name}"
    stage = ScenarioNamespace(cluster, namespace)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"} if name == "refused-by-policy" else {}
    place = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}
    cluster.kubectl("create", "--filename=-", stdin=json.dumps(place))
    try:
        stage.wait(lambda: bool(stage.objects("serviceaccounts")), "its account")
        credentials = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing"}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ml-assets-s3"}}
        stage.make(secret | {"stringData": credentials}, *SCENARIOS[name].before)
        yield stage
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def record(cluster: LocalCluster, name: str, registry: str) -> None:
    """Run a scenario and write the API's answers to a file."""
    scenario = SCENARIOS[name]
    with staged(cluster, name) as stage:
        try:
            stage.make(scenario_job(name, cluster.image, registry))
            if scenario.ready is not None and scenario.act is not None:
                ready = scenario.ready
                stage.wait(lambda: ready(stage), "ready to act")
                scenario.act(stage)
            stage.wait(lambda: scenario.until(stage), "its state")
            found = {
                "job": _trimmed(stage.objects("jobs")[0]),
                "pods": [_trimmed(one) for one in stage.objects("pods") if one["metadata"]["name"] != URGENT],
                "events": [_trimmed(one) for one in stage.objects("events")],
            }
        finally:
            cluster.start_node(2)
            stage.kubectl("delete", "jobs,pods", "--all", "--wait=false", "--grace-period=0", "--force")
    words = json.dumps(found, indent=1).replace(registry, _REGISTRY).replace(cluster.image, "trainer:1")
    (RECORDED / f"{name}.json").write_text(_without_addresses(words) + "\n")


def scenario_profile(name: str) -> ResourceProfile:
    """Return the profile that the launcher would get for this scenario."""
    return ResourceProfile.model_validate({**_SMALL, **SCENARIOS[name].profile})


def scenario_job(name: str, image: str, registry: str = _REGISTRY) -> Document:
    """Return the Job that the launcher creates, with the changes that webhooks may make."""
    scenario, profile = SCENARIOS[name], scenario_profile(name)
    settings = KubernetesSettings(
        **{"image": image, "command": ("sh", "-c", scenario.script), **scenario.settings}
    )
    if settings.image is not None:
        settings = settings.model_copy(update={"image": settings.image.replace(_REGISTRY, registry)})
    made = job_manifest(
        TRAINING, 1, profile, settings, nodes=1, cause="", folder="", snapshot="", s3_endpoint_url=None
    )
    spec = made["spec"]["template"]["spec"]
    spec["containers"] = [
        *(
            {"name": name, "image": image, "command": ["sh", "-c", script]}
            for name, script in scenario.sidecars
        ),
        *spec["containers"],
    ]
    if scenario.inits:
        spec["initContainers"] = [{"image": image, **one} for one in scenario.inits]
    return made


def _trimmed(document: Document) -> Document:
    """Return the object without the fields that no launcher reads: managed fields, environment, mounts."""
    document["metadata"].pop("managedFields", None)
    spec = document.get("spec", {})
    if document["kind"] == "Job":
        spec.pop("template")
    for name in ("volumes", "tolerations", "topologySpreadConstraints", "securityContext"):
        spec.pop(name, None)
    for container in [*spec.get("containers", []), *spec.get("initContainers", [])]:
        for name in ("env", "envFrom", "volumeMounts", "securityContext"):
            container.pop(name, None)
    for status in [
        *document.get("status", {}).get("containerStatuses", []),
        *document.get("status", {}).get("initContainerStatuses", []),
    ]:
        status.pop("volumeMounts", None)
    return document


def _without_addresses(words: str) -> str:
    return re.sub(r"\b10\.\d+\.\d+\.\d+\b", "192.0.2.1", words)


TRAINING = TrainingJob(
    model="recorded",
    partition="2024-01-01",
    model_function="a.b",
    objective="binary",
    hyperparameters={},
    snapshot="",
    snapshot_digest="0" * 64,
    code_version="",
    seed=0,
    settings=TrainingSettings(workers=1),
)


@contextmanager
def _silent_registry(cluster: LocalCluster) -> Iterator[str]:
    """An address that takes connections and never answers: a pull from there begins and does not end."""
    with socket.create_server((cluster.layout.address, 0), backlog=100) as server:
        yield f"{cluster.layout.address}:{server.getsockname()[1]}"


def main() -> None:
    """Record the scenarios named on the command line, or all."""
    cluster = LocalCluster(DEFAULT.resolve())
    RECORDED.mkdir(exist_ok=True)
    with _silent_registry(cluster) as registry:
        for name in sys.argv[1:] or SCENARIOS:
            began = time.monotonic()
            record(cluster, name, registry)
            sys.stdout.write(f"{name}: {time.monotonic() - began:.1f} s\n")


if __name__ == "__main__":
    main()
