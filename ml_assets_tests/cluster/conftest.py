"""The cluster and the servers these tests run against; `make test-cluster` starts both before.

A cluster that is not there is a failure: `CLUSTER_STATE` names the folder of one that is up (`make cluster-up`).
Servers are those of `SERVERS_STATE`, or new ones, as for the tests on servers.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployment.local.cluster import command as cluster_command
from deployment.local.cluster.cluster import Cluster
from deployment.local.processes import ServerFailed
from deployment.local.servers import Servers
from ml_assets_tests.cluster.environment import REPOSITORY, ClusterEnvironment, session
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
def _nodes_back(cluster: ClusterEnvironment) -> Iterator[None]:
    """Whatever a test did to nodes, the next one finds them running and connected."""
    yield
    for number in cluster.cluster.layout.numbers:
        cluster.cluster.start_node(number)
        cluster.cluster.mend_node(number)


@pytest.fixture
def tidy(cluster: ClusterEnvironment) -> Iterator[ClusterEnvironment]:
    """The cluster; pods, Jobs and Services a test leaves in the namespace are removed after it."""
    yield cluster
    cluster.kubectl("delete", "jobs,services,pods", "--all", "--wait=true", "--grace-period=1")
    left = [item["metadata"]["name"] for item in cluster.objects("jobs,services,pods")]
    assert not left, json.dumps(left)
