"""Dagster as the chart configures it, on the cluster: a pod for each run, with the rights of its account.

Here: what a team's namespace holds, a launch, and the two parts of the daemon that look after lost runs, called by the
test with the rights of their accounts. Not here: the pipeline (`run_location`).
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.events import DagsterEventType
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster._core.storage.tags import PARTITION_NAME_TAG
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster._daemon.monitoring.run_monitoring import execute_run_monitoring_iteration

from deployment.testbed.cluster.commands import CommandFailed
from ml_assets.components.sensors.ended_runs import NOTHING_TO_PRUNE
from ml_assets.dagster_host.instance import HOME
from ml_assets_tests.cluster.cluster_environment import (
    ENVIRONMENT,
    MOUNTS,
    PYTHON,
    ClusterEnvironment,
)
from ml_assets_tests.cluster.launched_job import rightful_kubeconfig, settings_of
from ml_assets_tests.components.installation import key_of
from ml_assets_tests.deployment.chart_objects import settings_of_dagster
from ml_assets_tests.resources.launcher.sweep import sweep
from resources.launcher.kubernetes.attempt_objects import MANAGED
from resources.launcher.kubernetes.lease import has_run_out
from resources.platform import Platform

LOCATION = "ml_assets_tests.cluster.run_location"
ACCOUNTS = "accounts"
"""Folder of kubeconfigs, by account."""
LOST_NODE_SECONDS = 5
"""Seconds for which the pod of a run stays on a lost node, here. The manifests' 30 only make the test longer."""
_HIDDEN = ("_URL", "_KEY_ID", "_ACCESS_KEY")
"""Ends of the names of variables that go into the Secret."""


@dataclass
class DagsterOnCluster:
    """One team's Dagster."""

    cluster: ClusterEnvironment
    instance: dg.DagsterInstance
    pruner: Platform
    """Platform of the code location, where the sensor runs."""
    defs: dg.Definitions
    sweeps_after_expiry: int = field(default=0, init=False)
    """Sweeps that found an expired Lease, and removed nothing."""

    def launch(self, assets: list[str], partition: str, image: str = "") -> str:
        """Start a run in a pod, of another `image` than the cluster's; return its id."""
        repository = RepositoryPythonOrigin(
            executable_path=PYTHON,
            code_pointer=ModuleCodePointer(LOCATION, "defs"),
            container_image=image or self.cluster.image,
        )
        job = self.defs.resolve_implicit_global_asset_job_def()
        run = self.instance.create_run_for_job(
            job,
            asset_selection={key_of(name) for name in assets},
            tags={PARTITION_NAME_TAG: partition},
            job_code_origin=JobPythonOrigin(job_name=job.name, repository_origin=repository),
        )
        with self._workspace() as workspace:
            self.instance.launch_run(run.run_id, workspace.create_request_context())
        return run.run_id

    def until(self, done: Callable[[], object], what: str, seconds: float = 600.0) -> None:
        """Look after runs and trainings as the daemon does, until `done`. Raises AssertionError if a sweep removes
        anything.
        """
        began = time.monotonic()
        while not done():
            waited = time.monotonic() - began
            assert waited < seconds, f"waited {waited:.0f} s for {what}. {self.about()}"
            was_over = self.lease_is_over()
            self.monitor()
            assert sweep(self.pruner, self.instance) == NOTHING_TO_PRUNE, self.about()
            assert not self._has_failed(), self.about()
            self.sweeps_after_expiry += was_over and self.lease_is_over()
            time.sleep(0.5)

    def lease_is_over(self) -> bool:
        """True if a training's launcher has not renewed its Lease in time."""
        leases = self.cluster.objects("leases", f"--selector={MANAGED}")
        return any(has_run_out(lease, datetime.now(UTC)) for lease in leases)

    def run_pods(self, run_id: str) -> dict[str, str]:
        """Return node → phase of each pod that this run has or had."""
        pods = self.cluster.objects("pods", f"--selector=dagster/run-id={run_id}")
        return {one["spec"].get("nodeName", ""): one["status"]["phase"] for one in pods}

    def trainers(self) -> dict[str, tuple[str, str]]:
        """Return uid → (node, phase) of each pod of trainings."""
        pods = self.cluster.objects("pods", f"--selector={MANAGED}")
        return {
            one["metadata"]["uid"]: (one["spec"].get("nodeName", ""), one["status"]["phase"]) for one in pods
        }

    def run(self, run_id: str) -> dg.DagsterRun:
        """Return the run as Dagster's storage has it now."""
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return run

    def observations(self, run_id: str) -> int:
        """Return the number of steps that the run's page shows."""
        return len(self.instance.all_logs(run_id, of_type=DagsterEventType.ASSET_OBSERVATION))

    def messages(self, run_id: str) -> list[str]:
        """Return the run's log."""
        return [entry.user_message or entry.message for entry in self.instance.all_logs(run_id)]

    def about(self) -> str:
        """Return the end of the log of each run, and all pods."""
        logs = [line for run in self.instance.get_runs() for line in self.messages(run.run_id)[-15:]]
        try:
            said = self.cluster.kubectl("logs", "--selector=dagster/run-id", "--tail=20", "--prefix")
        except CommandFailed as error:  # the node is off
            said = str(error)
        return "\n".join([*logs, said, self.cluster.kubectl("get", "pods,jobs,leases", "--output=wide")])[
            -9000:
        ]

    def _has_failed(self) -> bool:
        """True if a run failed, or the first pod of one before the run began."""
        runs = self.instance.get_runs()
        starting = [run.run_id for run in runs if run.status == dg.DagsterRunStatus.STARTING]
        return any(run.status == dg.DagsterRunStatus.FAILURE for run in runs) or any(
            "Failed" in self.run_pods(run_id).values() for run_id in starting
        )

    def monitor(self) -> None:
        """Do what Dagster's daemon does every `run_monitoring.poll_interval_seconds`."""
        with self._workspace() as workspace:
            found = [*execute_run_monitoring_iteration(workspace, logging.getLogger(__name__))]
        assert not any(found), found

    def _workspace(self) -> WorkspaceProcessContext:
        return WorkspaceProcessContext(self.instance, EmptyWorkspaceTarget())


def dagster_on_cluster(
    cluster: ClusterEnvironment,
    variables: Mapping[str, str],
    defs: dg.Definitions,
    folder: Path,
    *,
    first_node: int,
    limits: Mapping[str, str] | None = None,
) -> DagsterOnCluster:
    """Fill the namespace as the chart does, and open Dagster's storage. The pods of runs prefer node
    `first_node`. `variables`: environment of this process and of the pods. `limits`: more limits of these pods.
    """
    accounts = folder / ACCOUNTS
    accounts.mkdir()
    kubeconfigs = {
        name: rightful_kubeconfig(cluster, name, accounts) for name in ("dagster", "pruner", "run")
    }
    for path in (accounts, kubeconfigs["dagster"]):
        path.chmod(0o755)  # pods of runs open it
    settings = _settings(kubeconfigs["dagster"], first_node, limits or {})
    of_runs = {name: value for name, value in variables.items() if name not in _OF_THIS_MACHINE}
    of_runs["ML_ASSETS_HOME"] = HOME
    secret = {name: value for name, value in of_runs.items() if name.endswith(_HIDDEN)}
    plain = {name: value for name, value in of_runs.items() if name not in secret}
    cluster.apply(
        _config_map("ml-assets", plain),
        _config_map("dagster-instance", {"dagster.yaml": settings}),
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "ml-assets-credentials"},
            "stringData": secret,
        },
    )
    (folder / "dagster.yaml").write_text(settings)
    instance = dg.DagsterInstance.from_config(str(folder))
    pruner = settings_of(
        {**variables, "KUBECONFIG": str(kubeconfigs["pruner"]), "ML_ASSETS_KUBERNETES_CONTEXT": "pruner"}
    )
    return DagsterOnCluster(cluster, instance, Platform(pruner), defs)


_OF_THIS_MACHINE = ("KUBECONFIG", "ML_ASSETS_KUBERNETES_CONTEXT", "ML_ASSETS_HOME")


def _config_map(name: str, data: Mapping[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": dict(data)}


def _settings(kubeconfig: Path, first_node: int, limits: Mapping[str, str]) -> str:
    """Return the chart's `dagster.yaml` for a daemon on this machine, and for pods that mount this environment."""
    settings = settings_of_dagster()
    launcher = settings["run_launcher"]["config"]
    launcher |= {"load_incluster_config": False, "kubeconfig_file": str(kubeconfig)}
    pod = launcher["run_k8s_config"]["pod_spec_config"]
    pod["tolerations"] = [one | {"tolerationSeconds": LOST_NODE_SECONDS} for one in pod["tolerations"]]
    there = {"key": "kubernetes.io/hostname", "operator": "In", "values": [f"node{first_node}"]}
    preferred = [{"weight": 100, "preference": {"matchExpressions": [there]}}]
    pod["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    container = launcher["run_k8s_config"]["container_config"]
    container["resources"] = {"requests": container["resources"]["requests"] | limits,
                              "limits": container["resources"]["limits"] | limits}  # fmt: skip
    container["env"] = [{"name": name, "value": value} for name, value in ENVIRONMENT.items()]
    # A pod makes the launcher of its run's instance, too, although it launches nothing.
    for inside, host in {**MOUNTS, str(kubeconfig.parent): str(kubeconfig.parent)}.items():
        name = inside.rpartition("/")[2]
        pod["volumes"].append({"name": name, "hostPath": {"path": host}})
        container["volumeMounts"].append({"name": name, "mountPath": inside, "readOnly": True})
    return yaml.safe_dump(settings)
