"""The commands of `docs/how-to/kubernetes.md` that set up a team, typed as they stand on the page.

Only the file of values, the two files of variables and the images are those of a platform engineer here. Not here: what
else a team in pods does (`test_platform`), whose fixture takes the same steps for a namespace of its own.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from deployment.testbed.build import build
from deployment.testbed.cluster import cluster_record
from deployment.testbed.servers import Servers
from ml_assets_tests.browser.graphql import Dagster, NotAnswering
from ml_assets_tests.cluster.cluster_environment import REPOSITORY, S3_SECRET, ClusterEnvironment, waited_for
from ml_assets_tests.cluster.platform.conftest import LOCATION, publish_tables
from ml_assets_tests.cluster.platform.team_in_pods import CREDENTIALS, SECRETS, values_of, variables_of_team
from ml_assets_tests.cluster.platform.test_platform import CLICKED, STAGES
from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.tour.pages import DocsPage

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3000)]

NAMESPACE = "team-a"
MOST_COMMANDS = 10
"""From an empty cluster to the first trained model, images present. The aim for the time is 15 minutes."""
FILES = {"credentials.env": CREDENTIALS, "s3.env": S3_SECRET}


def typed() -> list[str]:
    """Return the commands of the section "A team", one a line; the last one goes on until it is ended."""
    (block,) = [
        one
        for one in DocsPage.of("how-to/kubernetes.md").blocks("On an existing cluster", "")
        if "helm " in one
    ]
    return block.replace("\\\n", " ").splitlines()


@contextmanager
def programs(cluster: ClusterEnvironment, folder: Path) -> Iterator[dict[str, str]]:
    """Yield the environment of a shell that finds kubectl, helm, the cluster and a checkout; remove the namespace."""
    held = cluster_record.load(cluster.cluster.state)
    found = folder / "bin"
    found.mkdir()
    (found / "kubectl").symlink_to(held.programs.kubernetes / "kubectl")
    (found / "helm").symlink_to(build("helm") / "helm")
    (folder / "deployment").symlink_to(REPOSITORY / "deployment")
    try:
        yield os.environ | {"PATH": f"{found}:{os.environ['PATH']}", "KUBECONFIG": str(cluster.kubeconfig)}
    finally:
        cluster.cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false", "--ignore-not-found")


def test_the_page_leads_from_an_empty_cluster_to_a_model(
    cluster: ClusterEnvironment, running_servers: Servers, images: dict[str, str], tmp_path: Path
) -> None:
    cluster.cluster.add_policies()
    own = ClusterEnvironment(cluster.cluster, NAMESPACE, cluster.s3_endpoint_url)
    servers = RunningServers(running_servers)
    variables = variables_of_team(own, servers, tmp_path, images["trainer"])
    for name, secret in FILES.items():
        (tmp_path / name).write_text("".join(f"{one}={variables[one]}\n" for one in SECRETS[secret]))
    values = values_of(
        own, variables, images["trainer"], images["platform"], [*servers.record.ports.values()]
    )
    (tmp_path / f"{NAMESPACE}.yaml").write_text(yaml.safe_dump(values))
    *commands, forward = typed()
    seconds: dict[str, float] = {}
    with programs(cluster, tmp_path) as environment:
        began = time.monotonic()
        for command in commands:
            at = time.monotonic()
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            seconds[command] = time.monotonic() - at
        process = subprocess.Popen(["bash", "-c", f"exec {forward}"], cwd=tmp_path, env=environment)
        try:
            _trained(Dagster("http://127.0.0.1:3000"))
        finally:
            process.terminate()
            process.wait(60)
        seconds["click to model"] = time.monotonic() - began - sum(seconds.values())
    minutes = (time.monotonic() - began) / 60
    print("\n".join(f"{taken:7.1f} s  {command}" for command, taken in seconds.items()))
    print(f"{minutes:.1f} minutes, {len(commands) + 1} commands")
    assert len(commands) + 1 <= MOST_COMMANDS


def _trained(dagster: Dagster) -> None:
    """Materialize the tables and the model, as on the webserver's pages, once all of them are loaded."""

    def is_ready() -> bool:
        try:
            return not dagster.why_not_ready()
        except NotAnswering:
            return False

    waited_for(is_ready, "the webserver behind the forwarded port", 300.0)
    publish_tables(dagster)
    assets = [f"store_demand/{stage}" for stage in STAGES]
    run = dagster.wait_for_run(dagster.launch(LOCATION, assets, {"dagster/partition": CLICKED}))
    assert run.status == "SUCCESS", dagster.messages(run.id)[-3000:]
