"""The cluster and the servers these tests run against; `make test-cluster` starts both before.

What is not there is a failure: `CLUSTER_STATE` names the folder of a cluster that is up (`make cluster-up`),
`SERVERS_STATE` that of the servers (`make servers-up`). Several test processes share both (`-n 2`), each in a namespace
of its own; a test marked `alone` has the cluster to itself.
"""

import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from deployment.testbed.cluster import command as cluster_command
from deployment.testbed.cluster.local_cluster import LocalCluster
from deployment.testbed.processes import ServerFailed
from deployment.testbed.servers import Servers
from deployment.testbed.servers.servers_record import storage_variables
from ml_assets_tests.browser.conftest import browser, screenshots  # noqa: F401 - fixtures
from ml_assets_tests.browser.dagster_pages import Pages, open_pages
from ml_assets_tests.browser.graphql import Dagster
from ml_assets_tests.browser.ui_process import running_ui
from ml_assets_tests.cluster.cluster_environment import REPOSITORY, ClusterEnvironment, session
from ml_assets_tests.cluster.cluster_installation import ClusterInstallation, install
from ml_assets_tests.cluster.launched_job import KINDS_OF, LaunchedJob, job_of, settings_of, worker_variables
from ml_assets_tests.cluster.trained_job import trained_job, variables_of
from ml_assets_tests.cluster.unhurried_model import MOUNT
from ml_assets_tests.scheduling import Grouped
from ml_assets_tests.servers.running_servers import STATE_VARIABLE, RunningServers, named_folder
from ml_assets_tests.training.small_jobs import small_snapshot

Restarted = Callable[[LaunchedJob, str], LaunchedJob]
CLUSTER_STATE = Path(os.environ.get("CLUSTER_STATE") or REPOSITORY / cluster_command.DEFAULT)


def pytest_report_header() -> str:
    """Return what runs there, as the API server and the nodes themselves say."""
    try:
        running = LocalCluster(CLUSTER_STATE)
        nodes = running.objects("nodes")
    except ServerFailed as error:
        return f"cluster: {error}"
    about = [
        f"{node['metadata']['name']} kubelet {node['status']['nodeInfo']['kubeletVersion']} on "
        f"{node['status']['nodeInfo']['containerRuntimeVersion']}"
        for node in nodes
    ]
    return f"cluster: Kubernetes {running.server_version()}; {'; '.join(about)}"


_TOGETHER = ("test_images", "test_one_click", "test_manifests", "test_leaves_nothing")
"""Modules whose tests share what takes long to make."""


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Grouped:
    """Schedule tests on several processes: keep those modules whole, and spread the tests of the others."""

    def group_of(nodeid: str) -> str:
        module = Path(nodeid.partition("::")[0]).stem
        return module if module in _TOGETHER else nodeid

    return Grouped(config, log, group_of)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the longest tests to the front, and tests that need the cluster alone to the end: no process waits."""

    def place(item: pytest.Item) -> int:
        if _is_alone(item):
            return len(_TOGETHER) + 1
        return _TOGETHER.index(item.path.stem) if item.path.stem in _TOGETHER else len(_TOGETHER)

    items.sort(key=place)


def _is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Exclude the wait for the cluster from a test's time."""
    if not CLUSTER_STATE.is_dir():
        return (yield)
    with hold_cluster(CLUSTER_STATE, alone=_is_alone(item)):
        return (yield)


@pytest.fixture(scope="session")
def running_servers() -> Servers:
    """S3, PostgreSQL, lakeFS and MLflow of this machine; all are up."""
    folder = named_folder()
    assert folder is not None, f"{STATE_VARIABLE} names no servers: make test-cluster starts some"
    servers = Servers(folder)
    assert not any(servers.why_not().values()), servers.why_not()
    return servers


@pytest.fixture(autouse=True)
def _storage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the S3 clients of this process to the test's server."""
    if "running_servers" in request.fixturenames:
        servers: Servers = request.getfixturevalue("running_servers")
        for name, value in storage_variables(servers.record).items():
            monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def cluster(running_servers: Servers) -> Iterator[ClusterEnvironment]:
    """The cluster, all nodes Ready, with a namespace of this session that holds the S3 credentials."""
    with session(LocalCluster(CLUSTER_STATE), running_servers.record) as environment:
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
) -> Callable[..., LaunchedJob]:
    """A job of this test's own, with a home and a prefix among the artifacts of its own."""
    record = running_servers.record
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

    def make(lease_seconds: int = 8, **facts: Any) -> LaunchedJob:
        job = job_of(request.node.name, snapshot=snapshot, **facts)
        own = {**variables, "ML_ASSETS_KUBERNETES_LEASE_SECONDS": str(lease_seconds)}
        return LaunchedJob(tidy, settings_of(own), own, job)

    return make


@pytest.fixture
def make_trained_job(
    tidy: ClusterEnvironment, running_servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., LaunchedJob]:
    """A small job with a home and a prefix among the artifacts of its own, trained by the real workers."""
    variables = variables_of(tidy, running_servers.record, tmp_path / "home")
    for name in ("KUBECONFIG", *storage_variables(running_servers.record)):
        monkeypatch.setenv(name, variables[name])
    snapshot = small_snapshot(tmp_path / "snapshots")
    return lambda pace, **changes: trained_job(tidy, variables, snapshot, pace, **changes)


@pytest.fixture
def restarted(cluster: ClusterEnvironment, tidy: ClusterEnvironment) -> Iterator[Restarted]:
    """Installs JobSet or Kubeflow Trainer, and gives a launch that back end. Nothing of them is left afterwards."""
    kinds: set[str] = set()

    def with_back_end(launch: LaunchedJob, back_end: str) -> LaunchedJob:
        if back_end == "jobset":
            cluster.cluster.add_jobsets()
        if back_end == "trainjob":
            cluster.cluster.add_trainjobs()
        kinds.update(KINDS_OF[back_end])
        variables = launch.variables | {"ML_ASSETS_KUBERNETES_BACKEND": back_end}
        return dataclasses.replace(launch, variables=variables, settings=settings_of(variables))

    yield with_back_end
    for kind in sorted(kinds, reverse=True):  # TrainJobs before their JobSets
        left = [one["metadata"]["name"] for one in tidy.objects(kind)]
        tidy.kubectl("delete", kind, "--all", "--wait=true")
        assert not left, left


@pytest.fixture
def hurry(tmp_path: Path) -> Path:
    """Folder of the nodes in which the pods of an `unhurried_model` look for a file."""
    folder = tmp_path / "hurry"
    folder.mkdir()
    folder.chmod(0o755)
    return folder


@pytest.fixture
def reachable(
    tidy: ClusterEnvironment,
    running_servers: Servers,
    tmp_path: Path,
    hurry: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, str]:
    """Environment of a new installation on the servers, by addresses that this machine and pods reach; `hurry` is
    mounted into its trainings."""
    servers = RunningServers(running_servers)
    own = {**servers.variables(servers.settings(tmp_path / "home")), **tidy.settings()}
    mounts = [*tidy.mounts, {"host_path": str(hurry), "mount_path": MOUNT}]
    own["ML_ASSETS_KUBERNETES_MOUNTS"] = json.dumps(mounts)
    own = tidy.for_pods(own, servers.record)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    return own


@pytest.fixture(scope="module")
def installation(
    tmp_path_factory: pytest.TempPathFactory, running_servers: Servers, cluster: ClusterEnvironment
) -> ClusterInstallation:
    """Return a new, empty installation."""
    return install(tmp_path_factory.mktemp("platform"), RunningServers(running_servers), cluster)


@pytest.fixture(scope="module")
def dagster(installation: ClusterInstallation) -> Iterator[Dagster]:
    """Start the UI of the installation."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in installation.variables.items():
            patch.setenv(name, value)
        with running_ui(installation.home) as dagster:
            yield dagster


@pytest.fixture
def pages(browser: Browser, dagster: Dagster, screenshots: Path) -> Iterator[Pages]:  # noqa: F811
    """Open a browser tab."""
    with open_pages(browser, dagster.url, screenshots) as pages:
        yield pages


@contextmanager
def hold_cluster(folder: Path, *, alone: bool) -> Iterator[None]:
    """Lock the cluster whose state is in `folder` while the block runs: shared, or `alone`.

    Test processes agree by two file locks. Whoever wants the cluster alone keeps the first while it waits for the
    second, so that it waits for those that run, and not for those that would come after.
    """
    with (folder / "tests.next").open("w") as door, (folder / "tests.now").open("w") as cluster:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(cluster, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield
