"""Facts of the cluster that a test runs against, and the make of its pods.

Most pods run this very environment: the base image has only Debian, and Python, the installed packages and the
repository are mounted read-only. Below /opt, since no folder above them needs to be open to others there.
"""

import json
import secrets
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployment.testbed.cluster.local_cluster import LocalCluster
from deployment.testbed.servers.servers_record import ServersRecord

REPOSITORY = Path(__file__).parents[2]
STATE_VARIABLE = "CLUSTER_STATE"
PYTHON = f"/opt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
MOUNTS = {
    "/opt/python": sys.base_prefix,
    "/opt/site-packages": sysconfig.get_path("purelib"),
    "/opt/repo": str(REPOSITORY),
}
ENVIRONMENT = {
    # For a Python built with a shared library.
    "LD_LIBRARY_PATH": "/opt/python/lib",
    "PYTHONPATH": "/opt/site-packages:/opt/repo",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}
SECURITY = {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532}
S3_SECRET = "ml-assets-s3"


@dataclass(frozen=True)
class ClusterEnvironment:
    """The cluster, a namespace of this session on it, and S3 as its pods see it."""

    cluster: LocalCluster
    namespace: str
    s3_endpoint_url: str

    @property
    def kubeconfig(self) -> Path:
        return self.cluster.kubeconfig

    @property
    def context(self) -> str:
        return self.cluster.context

    @property
    def image(self) -> str:
        """Debian without the platform: pods mount `mounts`."""
        return self.cluster.image

    @property
    def mounts(self) -> list[dict[str, str]]:
        """Folders of the nodes, as ML_ASSETS_KUBERNETES_MOUNTS has them."""
        return [{"host_path": host, "mount_path": inside} for inside, host in MOUNTS.items()]

    def settings(self) -> dict[str, str]:
        """The variables that make the platform train on this cluster, with this environment in its pods."""
        values = {
            "CONTEXT": self.context,
            "NAMESPACE": self.namespace,
            "IMAGE": self.image,
            "COMMAND": json.dumps([PYTHON, "-m", "ml_assets.model.training.node.pod"]),
            "ENV": json.dumps(ENVIRONMENT),
            "MOUNTS": json.dumps(self.mounts),
            "S3_SECRET": S3_SECRET,
            "S3_ENDPOINT_URL": self.s3_endpoint_url,
        }
        prefixed = {f"ML_ASSETS_KUBERNETES_{name}": value for name, value in values.items()}
        return {"KUBECONFIG": str(self.kubeconfig), "ML_ASSETS_LAUNCHER": "kubernetes", **prefixed}

    def for_pods(self, variables: Mapping[str, str], servers: ServersRecord) -> dict[str, str]:
        """Return `variables` with the addresses of the servers as pods reach them, and this machine does, too."""
        found = dict(variables)
        for port in servers.ports.values():
            here, there = f"127.0.0.1:{port}", self.cluster.address_for_pods(port)
            found = {name: value.replace(here, there) for name, value in found.items()}
        return found

    def kubectl(self, *words: str, stdin: str = "", seconds: float = 600.0) -> str:
        """Return kubectl's output in this session's namespace. Raises CommandFailed."""
        return self.cluster.kubectl(f"--namespace={self.namespace}", *words, stdin=stdin, seconds=seconds)

    def apply(self, *objects: dict[str, Any]) -> None:
        """Make or change objects in this session's namespace."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--filename=-", stdin=json.dumps(items))

    def objects(self, kind: str, *words: str) -> list[dict[str, Any]]:
        """All objects of a kind in this session's namespace."""
        return json.loads(self.kubectl("get", kind, "--output=json", *words))["items"]

    def pod(self, name: str) -> dict[str, Any]:
        return json.loads(self.kubectl("get", "pod", name, "--output=json"))

    def node_of(self, pod: str) -> int:
        """The number of the node a pod is on."""
        return int(self.pod(pod)["spec"]["nodeName"].removeprefix("node"))

    def wait_for_phase(self, pod: str, *phases: str, seconds: float = 600.0) -> str:
        """Wait until a pod is in one of the phases; which. Raises AssertionError with what it says instead."""
        waited_for(
            lambda: self.pod(pod)["status"]["phase"] in phases,
            f"pod {pod} to be {' or '.join(phases)}",
            seconds,
            lambda: json.dumps(self.pod(pod)["status"], indent=1),
        )
        return self.pod(pod)["status"]["phase"]


@contextmanager
def session(cluster: LocalCluster, servers: ServersRecord) -> Iterator[ClusterEnvironment]:
    """A namespace of its own for the block, with the S3 credentials in it."""
    namespace = f"tests-{secrets.token_hex(3)}"
    cluster.kubectl("create", "namespace", namespace)
    environment = ClusterEnvironment(
        cluster, namespace, f"http://{cluster.address_for_pods(servers.ports['s3'])}"
    )
    credentials = {
        "AWS_ACCESS_KEY_ID": servers.s3_key,
        "AWS_SECRET_ACCESS_KEY": servers.s3_secret,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    environment.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": S3_SECRET}, "stringData": credentials}
    )
    try:
        yield environment
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def waited_for(
    done: Callable[[], bool], what: str, seconds: float, otherwise: Callable[[], str] = str
) -> float:
    """Poll until `done`; the seconds it took. Raises AssertionError naming `what`, with what `otherwise` says."""
    began = time.monotonic()
    while not done():
        waited = time.monotonic() - began
        assert waited < seconds, f"waited {waited:.0f} s for {what}. {otherwise()}"
        time.sleep(0.2)
    return time.monotonic() - began


def pod(
    name: str, image: str, code: str, *, node: int | None = None, labels: dict[str, str] | None = None
) -> Any:
    """A pod that runs a Python program of ours once, as its unprivileged user."""
    spec = pod_spec(image, code)
    if node is not None:
        spec["nodeName"] = f"node{node}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name, **(labels or {})}},
        "spec": spec,
    }


def pod_spec(image: str, code: str) -> dict[str, Any]:
    """Return the spec of a pod or of a pod template."""
    names = {inside: inside.rpartition("/")[2] for inside in MOUNTS}
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": [PYTHON, "-c", code],
        "env": [{"name": name, "value": value} for name, value in ENVIRONMENT.items()],
        "securityContext": {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False},
        "volumeMounts": [{"name": names[inside], "mountPath": inside, "readOnly": True} for inside in MOUNTS],
    }
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": SECURITY,
        "containers": [container],
        "volumes": [{"name": names[inside], "hostPath": {"path": host}} for inside, host in MOUNTS.items()],
    }
