"""The platform as people run it here: its commands as processes, pointed at the servers and the cluster."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ml_assets_tests.browser.dagster_pages import Pages
from ml_assets_tests.browser.graphql import Dagster
from ml_assets_tests.cluster.cluster_environment import REPOSITORY, ClusterEnvironment
from ml_assets_tests.cluster.launched_job import settings_of
from ml_assets_tests.servers.running_servers import RunningServers
from resources.settings import Settings

LEFT_OF_TRAININGS = "jobs,pods,services"


@dataclass(frozen=True)
class ClusterInstallation:
    """A home with an empty lake, ledger and tracker of its own on the servers, training on the cluster."""

    home: Path
    variables: dict[str, str]
    """Environment of its commands."""
    cluster: ClusterEnvironment

    @property
    def settings(self) -> Settings:
        return settings_of(self.variables)

    def run(self, *words: str, seconds: float = 300) -> str:
        """`ml-assets …`: what it prints. Raises AssertionError with its complaint where it fails."""
        done = subprocess.run(
            [Path(sys.executable).with_name("ml-assets"), *words],
            cwd=REPOSITORY,
            env=os.environ | self.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, (
            f"ml-assets {' '.join(words)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
        return done.stdout

    def left(self) -> list[str]:
        """Everything of trainings that is on the cluster."""
        return [f"{one['kind']} {one['metadata']['name']}" for one in self.cluster.objects(LEFT_OF_TRAININGS)]

    def nodes(self) -> list[str]:
        """Return the nodes on which pods of trainings run now."""
        pods = self.cluster.objects("pods")
        return [one["spec"]["nodeName"] for one in pods if one["status"]["phase"] == "Running"]


def install(home: Path, servers: RunningServers, cluster: ClusterEnvironment) -> ClusterInstallation:
    """Make the databases and the lake's repository."""
    variables = {**servers.variables(servers.settings(home)), **cluster.settings()}
    installation = ClusterInstallation(home, variables, cluster)
    installation.run("lake", "init")
    return installation


def click(pages: Pages, dagster: Dagster, model: str, partition: str, picture: str) -> str:
    """Materialize only the registered model; the id of its run."""
    pages.open_asset(f"{model}/registered_model")
    launch = pages.materialize(partition, picture)
    (run_id,) = [run.id for run in dagster.runs() if run.id.startswith(launch.run)]
    return run_id
