"""A team whose whole platform runs in pods of the real images, and its tables.

`make test-platform` runs these tests: the images take minutes to build, and every part of Dagster starts in a pod.
"""

import json
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path

import pytest
import yaml

from deployment.testbed.servers import Servers
from ml_assets_tests.browser.graphql import Dagster
from ml_assets_tests.cluster.cluster_environment import REPOSITORY, ClusterEnvironment
from ml_assets_tests.cluster.image_builder import image_builder
from ml_assets_tests.cluster.platform import newest_week
from ml_assets_tests.cluster.platform.newer_version import newer_files
from ml_assets_tests.cluster.platform.team_in_pods import TeamInPods, team_in_pods
from ml_assets_tests.servers.running_servers import RunningServers

LOCATION = "ml_assets"
PIPELINE = "ml_assets/defs/store_demand"
FIRST_WEEK, LAST_WEEK = "2023-01-02", "2024-01-22"
PERIOD = timedelta(minutes=5)
"""Time between two ticks of the schedule: longer than Dagster takes to come back from a lost node."""
FIRST_FEATURES = "2023-01-30"
"""First week with four weeks before it."""
BEFORE_ALL = date(2022, 12, 31)
"""Day before the first partition: ticks skip until a test brings data."""
CLIENTS = "clients-of-team"
"""Namespace of an ingress."""
BROKEN = """
type: ml_assets.components.FeatureTable

attributes:
  name: broken
  function: ml_assets.defs.broken.features.nowhere
  inputs: [{table: datasets/sales, lookback: 1}]
  partitions: {cadence: weekly, start: 2023-01-30, end: 2024-06-30}
  contract:
    primary_key: [store]
    columns: [{name: store, dtype: string}]
"""
"""A `defs.yaml` whose function cannot be imported."""


@pytest.fixture(scope="session")
def images(cluster: ClusterEnvironment) -> Iterator[dict[str, str]]:
    """Build the images, the platform's with a scheduled pipeline of the team; the nodes have them. Target → name.
    `broken` is a platform whose definitions do not load, `newer` one of a newer version.
    """
    base = cluster.image
    built: dict[str, str] = {}
    with image_builder(base, cluster.cluster.archive(base)) as images:
        for target in ("trainer", "platform"):
            image = images.build(target)
            if target == "platform":
                image = images.add(image, scheduled_pipeline(), f"/opt/ml-assets/{PIPELINE}")
            packed = images.pack(target, image)
            cluster.cluster.import_image(image, packed.archive, below=packed.below)
            built[target] = image
        others = {"broken": {"ml_assets/defs/broken/defs.yaml": BROKEN}, "newer": newer_files(PIPELINE)}
        for name, files in others.items():
            image = images.add(built["platform"], files, "/opt/ml-assets")
            packed = images.pack("platform", image)
            cluster.cluster.import_image(image, packed.archive, below=packed.below)
            built[name] = image
        yield built
    for image in built.values():
        cluster.cluster.remove_image(image)


def scheduled_pipeline() -> dict[str, str]:
    """Return the files of `store_demand` with a schedule, and without approval and canary. All its tables have the
    model's partitions, because a tick materializes them, too.
    """
    documents = list(yaml.safe_load_all((REPOSITORY / PIPELINE / "defs.yaml").read_text()))
    for one in documents:
        one["attributes"]["partitions"]["start"] = FIRST_WEEK
    source = Path(newest_week.__file__)
    latest = f"{PIPELINE.replace('/', '.')}.{source.stem}.newest"
    cron = f"*/{PERIOD.seconds // 60} * * * *"
    del documents[-1]["attributes"]["release"]
    documents[-1]["attributes"]["schedule"] = {"cron": cron, "latest": latest, "enabled": True}
    return {"defs.yaml": yaml.safe_dump_all(documents, sort_keys=False), source.name: source.read_text()}


@pytest.fixture(scope="session")
def team(
    cluster: ClusterEnvironment,
    running_servers: Servers,
    images: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TeamInPods]:
    """The team, with an empty lake, on a cluster that enforces network policies."""
    cluster.cluster.add_policies()
    folder = tmp_path_factory.mktemp("team")
    both = {target: images[target] for target in ("trainer", "platform")}
    with team_in_pods(cluster, RunningServers(running_servers), folder, **both) as team:
        team.new_data(BEFORE_ALL)
        yield team


@pytest.fixture
def dagster(team: TeamInPods) -> Iterator[Dagster]:
    """Open GraphQL of the webserver's pod."""
    with team.webserver() as dagster:
        yield dagster


@pytest.fixture
def client(team: TeamInPods) -> Iterator[str]:
    """A pod of a namespace whose pods may connect to proxy, API and serving."""
    kubectl = team.cluster.cluster.kubectl
    kubectl("create", "namespace", CLIENTS)
    kubectl("label", "namespace", CLIENTS, "ml-assets/ingress=true")
    container = {
        "name": "main",
        "image": team.variables["ML_ASSETS_KUBERNETES_IMAGE"],
        "command": ["sleep", "infinity"],
    }
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"}, "spec": spec}
    kubectl(f"--namespace={CLIENTS}", "create", "--filename=-", stdin=json.dumps(pod))
    kubectl(f"--namespace={CLIENTS}", "wait", "--for=condition=Ready", "pod/client", "--timeout=300s")
    yield "client"
    kubectl("delete", "namespace", CLIENTS, "--wait=false")


@pytest.fixture(scope="session")
def tables(team: TeamInPods) -> None:
    """Sales and their features, each published by a run in its own pod."""
    with team.webserver() as dagster:
        publish_tables(dagster, team.about)


def publish_tables(dagster: Dagster, about: Callable[[], str] = str) -> None:
    """Materialize sales, then their features."""
    ranges = {"datasets/sales": FIRST_WEEK, "features/sales_features": FIRST_FEATURES}
    for table, first in ranges.items():
        tags = {
            "dagster/asset_partition_range_start": first,
            "dagster/asset_partition_range_end": LAST_WEEK,
        }
        run = dagster.wait_for_run(dagster.launch(LOCATION, [table], tags))
        assert run.status == "SUCCESS", f"{dagster.messages(run.id)[-3000:]} {about()}"
