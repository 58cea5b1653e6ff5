"""A team whose whole platform runs in pods: the Helm chart with `team-example.yaml`, copied and filled in by its page.

Here: the steps of `docs/how-to/kubernetes.md`, as a platform engineer follows them, and what a test asks of the pods.
Addresses, digests, Secrets and the open ports of the servers are the only changes. Not here: the images.
"""

import json
import subprocess
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import boto3
import yaml

from deployment.render import EXAMPLE
from deployment.testbed.cluster import cluster_record
from deployment.testbed.cluster.cluster_layout import API_PORT
from deployment.testbed.cluster.commands import CommandFailed
from deployment.testbed.cluster.control import kubectl
from deployment.testbed.processes import free_port
from ml_assets_tests.browser.graphql import Dagster, NotAnswering
from ml_assets_tests.cluster.cluster_environment import (
    REPOSITORY,
    S3_SECRET,
    SECURITY,
    ClusterEnvironment,
    waited_for,
)
from ml_assets_tests.cluster.helm import install, make_namespace
from ml_assets_tests.cluster.platform.newest_week import KEY
from ml_assets_tests.servers.running_servers import RunningServers
from resources.job.job import TrainingJob
from resources.launcher.kubernetes.attempt_objects import MANAGED, policy_manifest

PARTS = ("webserver", "daemon", "code-location")
CREDENTIALS = "ml-assets-credentials"
SECRETS = {
    CREDENTIALS: (
        "ML_ASSETS_LEDGER_URL",
        "ML_ASSETS_DAGSTER_URL",
        "ML_ASSETS_LAKE_ACCESS_KEY_ID",
        "ML_ASSETS_LAKE_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
    ),
    S3_SECRET: ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
}
"""The two Secrets that the head of the example's file names."""
READY_SECONDS = 900.0
_CONNECT = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def is_open(place):
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 10).close()
    except ConnectionRefusedError:
        return True  # by the pod itself: a policy lets no packet through
    except OSError:
        return False
    return True
with ThreadPoolExecutor(len(sys.argv)) as pool:
    print(json.dumps([place for place, found in zip(sys.argv[1:], pool.map(is_open, sys.argv[1:])) if found]))
"""


@dataclass(frozen=True)
class TeamInPods:
    """One team: webserver, daemon and code location in pods, on the servers of this machine."""

    cluster: ClusterEnvironment
    """The cluster, with the team's namespace."""
    variables: Mapping[str, str]
    """Contents of ConfigMap and Secrets, by addresses that pods reach."""
    values: Path
    """Values of the chart."""

    def change(self, values: Mapping[str, Any]) -> None:
        """Install the chart again with these values among the others, and wait until all parts have them."""
        before = yaml.safe_load(self.values.read_text())
        merged = {key: {**before.get(key, {}), **one} for key, one in values.items()}
        self.values.write_text(yaml.safe_dump(before | merged))
        install(self.cluster, f"--values={self.values}")
        for deployment in self.cluster.objects("deployments"):
            name = f"deployment/{deployment['metadata']['name']}"
            self.cluster.kubectl("rollout", "status", name, "--timeout=15m", seconds=920)

    @contextmanager
    def webserver(self, *, away_from: str = "") -> Iterator[Dagster]:
        """Open the webserver's GraphQL once all definitions are loaded and the daemon is healthy. `away_from`: node
        that is lost.
        """
        with self.pages("webserver", away_from=away_from) as dagster:
            yield dagster

    @contextmanager
    def pages(self, part: str, *, token: str = "", away_from: str = "") -> Iterator[Dagster]:
        """Forward a port of this machine to the pod of the webserver or the proxy, as `kubectl port-forward` does for a
        person; yield its GraphQL once all definitions are loaded and the daemon is healthy.
        """
        pod = self.ready_pod(part, away_from=away_from)
        port = free_port()
        held = cluster_record.load(self.cluster.cluster.state)
        words = [f"--namespace={self.cluster.namespace}", "port-forward", f"pod/{pod}", f"{port}:3000"]
        process = subprocess.Popen(
            kubectl(held.layout, held.programs, words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        try:
            dagster = Dagster(f"http://127.0.0.1:{port}", token)
            why = ["nothing was asked yet"]

            def is_ready() -> bool:
                assert process.poll() is None, f"kubectl port-forward ended: {self.about()}"
                try:
                    why.append(dagster.why_not_ready())
                except NotAnswering as error:
                    why.append(str(error))
                return not why[-1]

            waited_for(is_ready, "the webserver", READY_SECONDS, lambda: f"{why[-1]} {self.about()}")
            yield dagster
        finally:
            process.kill()
            process.wait()

    def ready_pod(self, part: str, *, away_from: str = "") -> str:
        """Return the name of the pod of one of `PARTS`, as soon as one is Ready and stays, on another node than
        `away_from`.
        """
        found: list[str] = []

        def is_ready() -> bool:
            pods = [one for one in self.pods(f"app={part}") if one["spec"].get("nodeName") != away_from]
            found[:] = [one["metadata"]["name"] for one in pods if _is_ready(one)]
            return bool(found)

        waited_for(is_ready, f"a pod of the {part}", READY_SECONDS, self.about)
        return found[0]

    def move(self, part: str, node: str) -> None:
        """Move one of `PARTS` to this node: all others take no pods meanwhile."""
        pod = self.ready_pod(part)
        if self.cluster.pod(pod)["spec"]["nodeName"] == node:
            return
        others = [f"node{one}" for one in self.cluster.cluster.layout.numbers if f"node{one}" != node]
        self.cluster.kubectl("cordon", *others)
        try:
            self.cluster.kubectl("delete", "pod", pod)
            self.ready_pod(part)
        finally:
            self.cluster.kubectl("uncordon", *others)

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """Return the pods with these labels."""
        return self.cluster.objects("pods", f"--selector={selector}")

    def run_pods(self, run_id: str) -> list[dict[str, Any]]:
        """Return the pods of a run itself."""
        return self.pods(f"dagster/run-id={run_id}")

    def trainer_nodes(self) -> set[str]:
        """Return the nodes on which pods of trainings run now."""
        return {one["spec"]["nodeName"] for one in self.pods(MANAGED) if one["status"]["phase"] == "Running"}

    def left(self) -> list[str]:
        """Return everything of trainings that is on the cluster."""
        kept = self.cluster.objects("jobs,pods,services,leases", f"--selector={MANAGED}")
        return [f"{one['kind']} {one['metadata']['name']}" for one in kept]

    def command(self, *words: str, token: str = "") -> str:
        """Run `ml-assets …` in the pod of the code location as the person with this token; return its output."""
        person = ["env", f"ML_ASSETS_TOKEN={token}"] if token else []
        return self.cluster.kubectl("exec", "deployment/code-location", "--", *person, "ml-assets", *words)

    def python(self, program: str, *arguments: str) -> str:
        """Run a program in the pod of the code location; return its output."""
        return self.cluster.kubectl(
            "exec", "deployment/code-location", "--", "python", "-c", program, *arguments
        )

    def idle_pod(self, name: str, labels: Mapping[str, str], node: str) -> str:
        """Start a pod with these labels that does nothing, in the image of the trainers, on this node; return its
        name.
        """
        container = {
            "name": "main",
            "image": self.variables["ML_ASSETS_KUBERNETES_IMAGE"],
            "command": ["sleep", "infinity"],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        spec = {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {**SECURITY, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        }
        metadata = {"name": name, "labels": dict(labels)}
        self.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        self.cluster.wait_for_phase(name, "Running")
        return name

    def isolate(self, job: TrainingJob) -> None:
        """Make the policy of a training, as the launcher does, without an owner: its Job does not exist."""
        policy = policy_manifest(job, "job", {"metadata": {"name": job.fingerprint[:12], "uid": "none"}})
        del policy["metadata"]["ownerReferences"]
        self.cluster.apply(policy)

    def reached_from(self, pod: str, places: Sequence[str]) -> set[str]:
        """Return those of `places`, each `HOST:PORT`, to which a pod can open a connection."""
        return set(json.loads(self.cluster.kubectl("exec", pod, "--", "python", "-c", _CONNECT, *places)))

    def new_data(self, day: date) -> None:
        """Make `day` the newest day that the source system has."""
        bucket, prefix = self.artifacts
        self.s3.put_object(Bucket=bucket, Key=f"{prefix}/{KEY}", Body=day.isoformat().encode())

    @property
    def artifacts(self) -> tuple[str, str]:
        """Return bucket and prefix of the team's artifacts."""
        place = urllib.parse.urlsplit(self.variables["ML_ASSETS_ARTIFACTS_URL"])
        return place.netloc, place.path.strip("/")

    @property
    def s3(self) -> Any:
        """Return a client of the team's S3 server with the team's keys."""
        return boto3.client(
            "s3",
            endpoint_url=self.variables["ML_ASSETS_S3_ENDPOINT_URL"],
            aws_access_key_id=self.variables["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.variables["AWS_SECRET_ACCESS_KEY"],
            region_name=self.variables["AWS_DEFAULT_REGION"],
        )

    def about(self) -> str:
        """Return the pods, the newest events, and the end of each part's log."""
        said = [self.cluster.kubectl("get", "pods,jobs", "--output=wide")]
        said.append(self.cluster.kubectl("get", "events", "--sort-by=.lastTimestamp")[-3000:])
        for one in self.pods("app"):
            name = one["metadata"]["name"]
            if _is_ready(one) or one["status"]["phase"] == "Running":
                said.append(f"{name}: {self.cluster.kubectl('logs', name, '--tail=25')}")
        return "\n".join(said)[-12000:]


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", ())
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


@contextmanager
def team_in_pods(
    cluster: ClusterEnvironment, servers: RunningServers, folder: Path, *, trainer: str, platform: str
) -> Iterator[TeamInPods]:
    """Set up a team for the block, with these two images; all its pods are Ready and its lake exists. The namespace and
    everything in it end with the block.
    """
    name = cluster.namespace.replace("tests", "team")
    own = ClusterEnvironment(cluster.cluster, name, cluster.s3_endpoint_url)
    variables = variables_of_team(own, servers, folder, trainer)
    values = folder / "team.yaml"
    team = TeamInPods(own, variables, values)
    ports = [*servers.record.ports.values()]
    values.write_text(yaml.safe_dump(values_of(own, variables, trainer, platform, ports)))
    make_namespace(own)
    try:
        for secret, names in SECRETS.items():
            literals = [f"--from-literal={one}={variables[one]}" for one in names]
            own.kubectl("create", "secret", "generic", secret, *literals)
        try:
            install(own, f"--values={values}")
            own.kubectl(
                "wait", "--for=condition=Available", "deployment", "--all", "--timeout=15m", seconds=920
            )
        except CommandFailed as error:
            raise AssertionError(team.about()) from error
        yield team
    finally:
        cluster.cluster.kubectl("delete", "namespace", name, "--wait=false")


def variables_of_team(
    cluster: ClusterEnvironment, servers: RunningServers, folder: Path, trainer: str
) -> dict[str, str]:
    """Return the values of ConfigMap and Secrets by the name of their variable. Pods reach the servers by them."""
    own = cluster.for_pods(servers.variables(servers.settings(folder / "home")), servers.record)
    bucket = urllib.parse.urlsplit(own["ML_ASSETS_ARTIFACTS_URL"]).netloc
    return own | {
        "ML_ASSETS_AUTHOR": cluster.namespace,
        "ML_ASSETS_UI_URL": "http://webserver:3000",
        "ML_ASSETS_LAUNCHER": "kubernetes",
        "ML_ASSETS_KUBERNETES_NAMESPACE": cluster.namespace,
        "ML_ASSETS_KUBERNETES_IMAGE": trainer,
        "ML_ASSETS_KUBERNETES_S3_SECRET": S3_SECRET,
        "STEP_LOGS_BUCKET": bucket,
    }


def values_of(
    cluster: ClusterEnvironment, variables: Mapping[str, str], trainer: str, platform: str, ports: list[int]
) -> dict[str, Any]:
    """Return the example's values, filled in. `ports`: the servers' own, on this machine."""
    values = yaml.safe_load((REPOSITORY / EXAMPLE).read_text())
    values["images"] = {"platform": platform, "trainer": trainer}
    values["settings"] = {name: variables[name] for name in values["settings"]}
    # The servers, the name service and the API server are processes of this machine, behind ports of one address.
    machine = [f"{cluster.cluster.layout.address}/32"]
    reached = [int(cluster.cluster.address_for_pods(port).rpartition(":")[2]) for port in ports]
    values["network"] = {
        "servers": {"addresses": machine, "ports": [API_PORT, *sorted(reached)]},
        "workers": {"addresses": machine, "ports": [urllib.parse.urlsplit(cluster.s3_endpoint_url).port]},
        "dns": {"namespaces": [], "addresses": machine},
    }
    # A node has two cores: on one that holds all parts and a run, there is still one for a trainer.
    small = {"resources": {"requests": {"cpu": "100m"}}}
    return values | dict.fromkeys(("webserver", "daemon", "codeLocation", "runs"), small)
