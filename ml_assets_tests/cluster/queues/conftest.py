"""Kueue on the cluster these tests run against, and queues as the chart has them.

`make test-queues` runs them: they install Kueue and simulated nodes, which the tests beside do without.
"""

import copy
import json
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import yaml

from deployment.testbed.cluster import queues
from ml_assets_tests.cluster.cluster_environment import REPOSITORY, ClusterEnvironment, waited_for
from ml_assets_tests.cluster.launched_job import LaunchedJob, logged_steps
from ml_assets_tests.deployment.chart_objects import chart_objects
from resources.job.job import TrainingResult
from resources.launcher.resource_profile import ResourceProfile

MakeQueue = Callable[..., str]
Begin = Callable[[LaunchedJob, ResourceProfile], "Future[TrainingResult]"]


@pytest.fixture(scope="session")
def managed(cluster: ClusterEnvironment) -> ClusterEnvironment:
    """The cluster with Kueue, which is asked about Jobs of this session's namespace."""
    cluster.cluster.add_queues()
    cluster.cluster.kubectl("label", "namespace", cluster.namespace, f"{queues.MANAGED}=yes")
    return cluster


@pytest.fixture
def queue(managed: ClusterEnvironment, tidy: ClusterEnvironment) -> Iterator[MakeQueue]:
    """Makes a team's queue with a quota of `cpu`, borrowing from others of `cohort`; answers the queue's name. Gone
    afterwards."""
    flavor = yaml.safe_load((REPOSITORY / "deployment" / "helm" / "any-node.yaml").read_text())
    (team,), (local,) = chart_objects("ClusterQueue"), chart_objects("LocalQueue")
    made: list[dict[str, Any]] = []

    def make(name: str, cohort: str | None = None, **quota: str) -> str:
        own, gate = copy.deepcopy(team), copy.deepcopy(local)
        own["metadata"]["name"] = f"{managed.namespace}-{name}"
        own["spec"] |= {"cohortName": f"{managed.namespace}-{cohort or name}"}
        own["spec"]["namespaceSelector"]["matchLabels"] = {"kubernetes.io/metadata.name": managed.namespace}
        for one in own["spec"]["resourceGroups"][0]["flavors"][0]["resources"]:
            one["nominalQuota"] = quota.get(one["name"].rpartition("/")[2], one["nominalQuota"])
        gate["metadata"] = {"name": name, "namespace": managed.namespace}
        gate["spec"]["clusterQueue"] = own["metadata"]["name"]
        made[:0] = [gate, own]
        managed.apply(flavor, own, gate)
        return name

    yield make
    tidy.kubectl("delete", "jobs,pods", "--all", "--wait=true", "--grace-period=1")
    if made:
        items = {"apiVersion": "v1", "kind": "List", "items": made}
        managed.kubectl("delete", "--filename=-", "--ignore-not-found", stdin=json.dumps(items))


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Launches in a thread of its own."""
    with ThreadPoolExecutor() as pool:
        yield lambda launch, profile: pool.submit(launch.run, profile)


def said(launch: LaunchedJob, words: str, seconds: float = 600.0) -> str:
    """The first line of the log with these words, once it is there."""

    def found() -> list[str]:
        return [line for line in launch.log if words in line]

    waited_for(lambda: bool(found()), f"{words!r} in the log", seconds, lambda: "\n".join(launch.log))
    return found()[0]


def stepped(launch: LaunchedJob, steps: int) -> None:
    """Wait until so many steps were told."""
    waited_for(
        lambda: len(logged_steps(launch.events)) >= steps,
        f"{steps} steps",
        600.0,
        lambda: "\n".join(launch.log),
    )


@pytest.fixture
def urgent(managed: ClusterEnvironment) -> Iterator[str]:
    """A priority class above that of others."""
    name = f"urgent-{secrets.token_hex(3)}"
    managed.apply({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
                   "value": 1000})  # fmt: skip
    yield name
    managed.kubectl("delete", "priorityclass", name)
