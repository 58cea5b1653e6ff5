"""The cluster and the servers these tests run against; `make test-cluster` starts both before.

A cluster that is not there is a failure: `CLUSTER_STATE` names the folder of one that is up (`make cluster-up`).
Servers are those of `SERVERS_STATE`, or new ones, as for the tests on servers.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deployment.local.cluster import command as cluster_command
from deployment.local.cluster.cluster import Cluster
from deployment.local.processes import ServerFailed
from deployment.local.servers import Servers
from deployment.local.servers.record import storage_variables
from ml_assets_tests.cluster.environment import REPOSITORY, ClusterEnvironment, session
from ml_assets_tests.cluster.launching import Launching, job_of, settings_of, worker_variables
from ml_assets_tests.servers.conftest import _all_are_up, servers  # noqa: F401
from ml_assets_tests.servers.running import RunningServers

CLUSTER_STATE = Path(os.environ.get("CLUSTER_STATE") or REPOSITORY / cluster_command.DEFAULT)


def pytest_report_header() -> str:
    """What runs there, as the API server and the nodes themselves say."""
    try:
        running = Cluster(CLUSTER_STATE)
        nodes = running.objects("nodes")
    except ServerFailed as error:
        return f"cluster: {error}"
    about = [
        f"{node['metadata']['name']} kubelet {node['status']['nodeInfo']['kubeletVersion']} on "
        f"{node['status']['nodeInfo']['containerRuntimeVersion']}"
        for node in nodes
    ]
    return f"cluster: Kubernetes {running.server_version()}; {'; '.join(about)}"


@pytest.fixture(scope="session")
def running_servers(servers: RunningServers) -> Servers:  # noqa: F811
    """S3, PostgreSQL, lakeFS and MLflow of this machine; all are up."""
    return Servers(servers.record.path)


@pytest.fixture(scope="session")
def cluster(running_servers: Servers) -> Iterator[ClusterEnvironment]:
    """The cluster, all nodes Ready, with a namespace of this session that holds the S3 credentials."""
    with session(Cluster(CLUSTER_STATE), running_servers.record) as environment:
        yield environment


@pytest.fixture
def tidy(cluster: ClusterEnvironment) -> Iterator[ClusterEnvironment]:
    """The cluster; afterwards all nodes run and are connected, and the namespace has no pod, Job or Service."""
    yield cluster
    for number in cluster.cluster.layout.numbers:
        cluster.cluster.start_node(number)
        cluster.cluster.mend_node(number)
    cluster.kubectl("delete", "jobs,services,pods", "--all", "--wait=true", "--grace-period=1")
    left = [item["metadata"]["name"] for item in cluster.objects("jobs,services,pods")]
    assert not left, json.dumps(left)


@pytest.fixture
def launching(
    tidy: ClusterEnvironment,
    running_servers: Servers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Callable[..., Launching]:
    """A job of this test's own, with a home and a prefix among the artifacts of its own."""
    record = running_servers.record
    for name, value in storage_variables(record).items():
        monkeypatch.setenv(name, value)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "snapshot.json").write_text("{}")
    variables = {
        **worker_variables(tidy),
        **storage_variables(record),
        "ML_ASSETS_HOME": str(tmp_path / "home"),
        "ML_ASSETS_ARTIFACTS_URL": f"s3://artifacts/{tidy.namespace}-{time.time_ns()}",
        "ML_ASSETS_S3_ENDPOINT_URL": record.url("s3"),
    }
    monkeypatch.setenv("KUBECONFIG", variables["KUBECONFIG"])

    def make(lease_seconds: int = 8, **facts: Any) -> Launching:
        job = job_of(request.node.name, snapshot=snapshot, **facts)
        own = {**variables, "ML_ASSETS_KUBERNETES_LEASE_SECONDS": str(lease_seconds)}
        return Launching(tidy, settings_of(own), own, job)

    return make
