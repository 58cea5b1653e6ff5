"""Ray of the chart: the pod of a run gets the objects of one process, also if a worker is deleted."""

import json
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deployment.testbed.servers import Servers
from deployment.testbed.servers.servers_record import storage_variables
from ml_assets.dagster_host.instance import HOME
from ml_assets_tests.cluster.cluster_environment import (
    ENVIRONMENT,
    MOUNTS,
    PYTHON,
    ClusterEnvironment,
    pod,
    waited_for,
)
from ml_assets_tests.deployment.chart_objects import chart_objects
from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.tables.deadly_features import HELD, made
from resources.platform import Platform
from resources.pool.exchange import IN_STORE

pytestmark = [pytest.mark.timeout(3600), pytest.mark.nightly]

HOLD = "/opt/held"
"""Folder of the nodes, in the workers' pods."""
DAYS = (2, 5, 1)
"""First day, days, and days of a task, of `made`."""
FROM = [{"configMapRef": {"name": "ml-assets"}}, {"secretRef": {"name": "ml-assets-credentials"}}]
RUN = f"""
import json
from ml_assets_tests.tables.deadly_features import made
from resources.platform import Platform
from resources.settings import Settings
settings = Settings()
Platform(settings).make_lake_ready()
named = {{name: getattr(settings, name) for name in settings.model_fields_set - {{"home"}}}}
print(json.dumps(made(settings.home, *{DAYS}, **named)))
"""


@pytest.fixture(scope="module")
def hold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of `deadly_features.HELD`, which pods write."""
    folder = tmp_path_factory.mktemp("held")
    folder.chmod(0o777)
    return folder


@pytest.fixture(scope="module")
def ray(cluster: ClusterEnvironment, running_servers: Servers, hold: Path) -> Iterator[ClusterEnvironment]:
    """A team's namespace in which head and workers run."""
    own = f"ray-{cluster.namespace}"
    cluster.cluster.kubectl("create", "namespace", own)
    team = ClusterEnvironment(cluster.cluster, own, cluster.s3_endpoint_url)
    try:
        team.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "ml-assets"},
                "data": {
                    "ML_ASSETS_POOL": "ray",
                    "ML_ASSETS_RAY_ADDRESS": "ray://ray-head:10001",
                    "ML_ASSETS_POOL_AFTER_SECONDS": "0",
                    "RAY_AUTH_MODE": "token",
                },
            },
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "ml-assets-credentials"},
                "stringData": storage_variables(running_servers.record)
                | {"RAY_AUTH_TOKEN": secrets.token_hex(32)},
            },
        )
        team.apply(*manifests(team, hold))
        for name in ("ray-head", "ray-worker"):
            team.kubectl("rollout", "status", f"deployment/{name}", "--timeout=1800s", seconds=1900)
        yield team
    finally:
        cluster.cluster.kubectl("delete", "namespace", own, "--wait=false")


def manifests(team: ClusterEnvironment, hold: Path) -> list[dict[str, Any]]:
    """Return the chart's objects with this environment in place of the platform's image, for nodes of two cores."""
    found = [
        one
        for one in chart_objects("Service", "Deployment", "NetworkPolicy")
        if one["metadata"]["name"] in ("ray-head", "ray-worker", "ray", "runs-to-ray")
    ]
    for one in found:
        if one["kind"] == "Deployment":
            spec = one["spec"]["template"]["spec"]
            (container,) = spec["containers"]
            assert container["command"][0] == "ray"
            words = [word.replace("--num-cpus=4", "--num-cpus=1") for word in container["command"][1:]]
            container["command"] = [PYTHON, "-m", "ray.scripts.scripts", *words]
            container["resources"]["requests"]["cpu"] = "100m"
            add_environment(spec, team, {HELD: HOLD}, {**MOUNTS, HOLD: str(hold)}, writable=[HOLD])
    return found


def add_environment(
    spec: dict[str, Any],
    team: ClusterEnvironment,
    variables: dict[str, str],
    mounts: dict[str, str],
    writable: list[str],
) -> None:
    """Give the container of a pod this environment: image, variables, folders of the node."""
    (container,) = spec["containers"]
    container |= {"image": team.image, "imagePullPolicy": "Never"}
    container["env"] += [
        {"name": name, "value": value} for name, value in {**ENVIRONMENT, **variables}.items()
    ]
    for inside, host in mounts.items():
        name = inside.rpartition("/")[2]
        spec["volumes"].append({"name": name, "hostPath": {"path": host}})
        container["volumeMounts"].append(
            {"name": name, "mountPath": inside, "readOnly": inside not in writable}
        )


class RunInPod:
    """A run in a pod of its own, with a lake and artifacts of its own on the servers."""

    def __init__(self, team: ClusterEnvironment, servers: Servers, home: Path) -> None:
        self.name, self._team = f"run-{secrets.token_hex(3)}", team
        running = RunningServers(servers)
        self.settings = running.settings(home)
        variables = team.for_pods(running.variables(self.settings), servers.record) | {"ML_ASSETS_HOME": HOME}
        del variables["ML_ASSETS_POOL"]  # that of the ConfigMap
        made_of = pod(self.name, team.image, RUN)
        (container,) = made_of["spec"]["containers"]
        container["envFrom"] = FROM
        container["env"] += [{"name": name, "value": value} for name, value in variables.items()]
        for name, inside in (("tmp", "/tmp"), ("home", HOME)):
            made_of["spec"]["volumes"].append({"name": name, "emptyDir": {}})
            container["volumeMounts"].append({"name": name, "mountPath": inside})
        team.apply(made_of)

    def objects(self) -> dict[str, str]:
        """Wait for the end; return path → SHA-256 of the files that it published."""
        phase = self._team.wait_for_phase(self.name, "Succeeded", "Failed", seconds=3000)
        assert phase == "Succeeded", self.said()
        return json.loads(self.said().splitlines()[-1])

    def phase(self) -> str:
        """Return the phase of the pod."""
        return self._team.kubectl("get", "pod", self.name, "-o", "jsonpath={.status.phase}").strip()

    def said(self) -> str:
        """Return what its pod printed."""
        return self._team.kubectl("logs", self.name)

    def left(self) -> dict[str, Any]:
        """Return what S3 keeps of the files of its workers."""
        return Platform(self.settings).artifacts.files(IN_STORE)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The objects of one process."""
    return made(tmp_path_factory.mktemp("alone"), *DAYS, pool="in-process")


@pytest.fixture
def run(ray: ClusterEnvironment, running_servers: Servers, hold: Path, tmp_path: Path) -> Iterator[RunInPod]:
    """A started run, whose tasks wait for the end of `held`."""
    for one in hold.iterdir():
        one.unlink()
    (hold / "held").touch()
    yield RunInPod(ray, running_servers, tmp_path / "home")
    (hold / "held").unlink(missing_ok=True)


def wait_for_tasks(run: RunInPod, have_begun: Callable[[], bool]) -> None:
    """Wait until tasks have begun in pods, which a run does not outlive while they are held."""

    def is_over() -> bool:
        return run.phase() in {"Succeeded", "Failed"}

    waited_for(lambda: have_begun() or is_over(), "tasks in pods", 1800, run.said)
    assert not is_over(), run.said()


def ended_as(alone: dict[str, str], run: RunInPod, hold: Path) -> float:
    """Let the tasks go on; return the seconds to the end of the run, whose objects are `alone`. S3 keeps nothing."""
    (hold / "held").unlink()
    began = time.monotonic()
    assert run.objects() == alone
    assert run.left() == {}
    return time.monotonic() - began


def begun(hold: Path) -> dict[str, str]:
    """Return day → pod of each call, the newest pod of a day."""
    calls = sorted(hold.glob("*@*"), key=lambda one: one.stat().st_mtime_ns)
    return dict(one.name.split("@") for one in calls)


def test_a_run_gets_the_objects_of_one_process(
    run: RunInPod,
    ray: ClusterEnvironment,
    hold: Path,
    alone: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two workers in two pods take part. S3 keeps nothing of theirs."""
    wait_for_tasks(run, lambda: len(set(begun(hold).values())) == 2)
    seconds = ended_as(alone, run, hold)
    with capsys.disabled():
        print(f"\n{len(begun(hold))} tasks in pods {sorted(set(begun(hold).values()))}: {len(alone)} equal objects, "
              f"{seconds:.1f} s later")  # fmt: skip


def test_a_worker_pod_deleted_in_the_middle_changes_no_object(
    run: RunInPod,
    ray: ClusterEnvironment,
    hold: Path,
    alone: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    wait_for_tasks(run, lambda: bool(begun(hold)))
    day, deleted = next(iter(begun(hold).items()))
    ray.kubectl("delete", "pod", deleted, "--grace-period=1", "--wait=true")
    seconds = ended_as(alone, run, hold)
    assert begun(hold)[day] != deleted
    with capsys.disabled():
        print(f"\npod {deleted} was deleted in its task of {day}, which {begun(hold)[day]} ran again: {len(alone)} "
              f"equal objects, {seconds:.1f} s later")  # fmt: skip
