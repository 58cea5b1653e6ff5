"""The worker of a training that steals, in a pod as the launcher makes it: it runs code of a pipeline, and gets nothing
beside its own training. A pod of the platform's namespace that nothing holds back gets all of it.
"""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ml_assets_tests.cluster.cluster_environment import waited_for
from ml_assets_tests.cluster.platform import thief
from ml_assets_tests.cluster.platform.team_in_pods import PARTS, TeamInPods
from ml_assets_tests.cluster.record_pods import TRAINING
from ml_assets_tests.deployment.who_reaches_what import TRAININGS
from resources.launcher.kubernetes.attempt_objects import (
    CONTAINER,
    MASTER_PORT,
    job_manifest,
    training_labels,
)
from resources.launcher.resource_profile import ResourceProfile
from resources.settings import KubernetesSettings

pytestmark = pytest.mark.timeout(1200)

SERVERS = {
    "the ledger": "ML_ASSETS_LEDGER_URL",
    "the lake": "ML_ASSETS_LAKE_URL",
    "the tracker": "ML_ASSETS_TRACKING_URI",
}
FREE = "free"
"""Pod and namespace without policy and without limits."""


def test_a_worker_gets_nothing_beside_its_training(team: TeamInPods) -> None:
    """Only S3 and the name service are open to it."""
    worker = idle_worker(team)
    node = f"node{team.cluster.cluster.layout.numbers[0]}"
    run = team.idle_pod("robbed", {"dagster/run-id": "none"}, node)
    other = team.idle_pod("other-training", training_labels(TRAININGS["workers"]), node)
    team.isolate(TRAININGS["workers"])
    told = told_about(team, worker, run, other)
    stolen: list[list[str]] = []

    def is_refused() -> bool:  # a new pod is open until the rules know its address
        stolen.append(stolen_by(team, worker, told))
        return not stolen[-1]

    waited_for(is_refused, "each theft to be refused", 300, lambda: f"It got {stolen[-1]}")
    assert len(thief.attempts(told)) >= 20
    store = urlsplit(team.variables["ML_ASSETS_S3_ENDPOINT_URL"]).netloc
    assert team.reached_from(worker, [store]) == {store}
    team.cluster.kubectl("delete", "pod", "--wait=false", worker, run, other)


def test_the_same_attempts_succeed_where_nothing_prevents_them(team: TeamInPods) -> None:
    """Else the other test might pass because the thief is clumsy. Secrets and pods of a node stay closed without
    rights; the sockets of this test's nodes are not in their usual place.
    """
    team.cluster.cluster.kubectl("create", "namespace", FREE)
    try:
        container = {
            "name": CONTAINER,
            "image": team.variables["ML_ASSETS_KUBERNETES_IMAGE"],
            "command": ["sleep", "infinity"],
            "env": [{"name": "ML_ASSETS_LEDGER_URL", "value": "postgresql://ledger"}],
            "securityContext": {"privileged": True, "runAsUser": 0},
        }
        spec = {"hostPID": True, "terminationGracePeriodSeconds": 0, "containers": [container]}
        free: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": FREE}, "spec": spec}
        kubectl = team.cluster.cluster.kubectl
        kubectl(f"--namespace={FREE}", "create", "--filename=-", stdin=json.dumps(free))
        kubectl(f"--namespace={FREE}", "wait", "--for=condition=Ready", f"pod/{FREE}", "--timeout=300s")
        own = kubectl(f"--namespace={FREE}", "get", "pod", FREE, "--output=jsonpath={.status.podIP}")
        told = told_about(team, FREE, FREE, FREE, namespace=FREE) | {"places": {"its own pod": f"{own}:7000"}}
        said = kubectl(f"--namespace={FREE}", "exec", FREE, "--", "python", "-c", text(), json.dumps(told))
        closed = {"lists the Secrets", "lists the pods of its node", "finds the node's sockets"}
        assert set(json.loads(said)) == thief.attempts(told).keys() - closed
    finally:
        team.cluster.cluster.kubectl("delete", "namespace", FREE, "--wait=false")


def idle_worker(team: TeamInPods) -> str:
    """Start the pod that the launcher makes for a worker, whose program does nothing; return its name."""
    settings = KubernetesSettings(
        namespace=team.cluster.namespace,
        image=team.variables["ML_ASSETS_KUBERNETES_IMAGE"],
        s3_secret=team.variables["ML_ASSETS_KUBERNETES_S3_SECRET"],
        command=("sleep", "infinity"),
    )
    profile = ResourceProfile(
        cpu="100m", memory="256Mi", scratch="100Mi", shared_memory="1Mi", grace_seconds=1
    )
    job = job_manifest(
        TRAINING, 1, profile, settings, nodes=1, cause="", folder="", snapshot="", s3_endpoint_url=None
    )
    pod = job["spec"]["template"]
    pod["metadata"]["name"] = "worker"
    team.cluster.apply({"apiVersion": "v1", "kind": "Pod", **pod})
    team.cluster.wait_for_phase("worker", "Running")
    return "worker"


def told_about(team: TeamInPods, worker: str, run: str, other: str, namespace: str = "") -> dict[str, Any]:
    """Return what a thief in the pod `worker` would have to know; `run` is the pod of a run to rob, `other` that of a
    worker of another training.
    """
    layout = team.cluster.cluster.layout
    if namespace:
        node, places = layout.node(layout.numbers[0]).address, {}
    else:
        address = {
            part: team.cluster.pod(pod)["status"]["podIP"]
            for part, pod in [
                *((part, team.ready_pod(part)) for part in PARTS),
                ("run", run),
                ("other", other),
            ]
        }
        node = layout.node(team.cluster.node_of(worker)).address
        places = {
            "the code location by its name": "code-location:4000",
            "the code location by its address": f"{address['code-location']}:4000",
            "the pages": f"{address['webserver']}:3000",
            "the daemon": f"{address['daemon']}:3000",
            "a run": f"{address['run']}:3000",
            "a worker of another training": f"{address['other']}:{MASTER_PORT}",
            "the API server": urlsplit(layout.api).netloc,
            **{name: urlsplit(team.variables[variable]).netloc for name, variable in SERVERS.items()},
        }
        places = {name: place.rpartition("@")[2] for name, place in places.items()}
    api = urlsplit(layout.api).netloc
    return {
        "places": places,
        "kubelet": f"{node}:10250",
        "api": api,
        "namespace": namespace or team.cluster.namespace,
    }


def stolen_by(team: TeamInPods, pod: str, told: dict[str, Any]) -> list[str]:
    """Return what the program of `thief.py` got in a pod of the team."""
    return json.loads(team.cluster.kubectl("exec", pod, "--", "python", "-c", text(), json.dumps(told)))


def text() -> str:
    """Return the thief's program."""
    return Path(thief.__file__).read_text()
