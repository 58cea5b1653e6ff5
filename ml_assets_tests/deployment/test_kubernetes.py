"""Pods of the chart in `deployment/helm`: all that runs for long has probes, and a run survives the loss of its pod."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster._daemon.cli import create_dagster_daemon_cli
from dagster._daemon.monitoring.run_monitoring import execute_run_monitoring_iteration
from kubernetes.utils.quantity import parse_quantity

from deployment.render import CHART
from ml_assets.components.sensors.ended_runs import reason_of
from ml_assets.foundation.checkout import ROOT
from ml_assets_tests.deployment.chart_objects import chart_objects, pods_of_dagster, settings_of_dagster
from ml_assets_tests.resources.launcher.api_server import NAMESPACE, ApiServer, Document, serving
from resources.launcher.resource_profile import ResourceProfile

NAMES = {"webserver", "daemon", "code-location"}
LOST_NODE = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]
WORKER = "dagster-run-"


def containers() -> list[Any]:
    """Return parameters: the container of each pod of Dagster."""
    return [
        pytest.param(one, id=name) for name, pod in pods_of_dagster().items() for one in pod["containers"]
    ]


def test_three_parts_are_deployed() -> None:
    assert pods_of_dagster().keys() == NAMES


@pytest.mark.parametrize("container", containers())
def test_services_are_restarted_when_they_hang_and_not_while_they_start(
    container: Document,
) -> None:
    live, start = container["livenessProbe"], container["startupProbe"]
    (how,) = {"exec", "httpGet", "grpc"} & live.keys()
    assert start[how] == live[how]
    assert live["periodSeconds"] * live["failureThreshold"] >= 120, "a busy node is no reason to restart"
    assert start["periodSeconds"] * start["failureThreshold"] >= 300
    # A command starts Python: 30 s killed a healthy daemon on a busy node.
    assert live["timeoutSeconds"] >= (300 if how == "exec" else 10)
    match live:
        case {"exec": {"command": ["dagster-daemon", name]}}:
            assert name in create_dagster_daemon_cli().commands
        case {"grpc": {"port": 4000, "service": name}}:
            assert name == "DagsterApi"
        case _:
            assert live["httpGet"]["path"] == "/server_info"


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_part_whose_node_is_lost_starts_on_another_soon(name: str) -> None:
    tolerations = pods_of_dagster()[name]["tolerations"]
    assert [(one["key"], one["tolerationSeconds"]) for one in tolerations] == [(key, 30) for key in LOST_NODE]


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with serving() as server:
        monkeypatch.setenv("ML_ASSETS_KUBERNETES_NAMESPACE", NAMESPACE)
        server.kubeconfig(tmp_path)
        yield server


@pytest.fixture
def instance(api: ApiServer, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """Dagster as the manifests configure it, with its storage in a folder and its cluster here."""
    settings = settings_of_dagster()
    del settings["storage"], settings["compute_logs"]
    settings["local_artifact_storage"]["config"]["base_dir"] = str(tmp_path)
    settings["run_launcher"]["config"] |= {
        "load_incluster_config": False,
        "kubeconfig_file": str(tmp_path / "kubeconfig"),
    }
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(settings))
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        yield instance


@dg.job
def training() -> None:
    """Stands for a run with a training."""


def _run_whose_pod_failed(api: ApiServer, instance: dg.DagsterInstance) -> dg.DagsterRun:
    """Start a run, and put its worker's Job as a 1.34 cluster describes it when the pod failed."""
    repository = RepositoryPythonOrigin(
        executable_path=sys.executable,
        code_pointer=ModuleCodePointer("ml_assets.definitions", "defs"),
        container_image="platform:1",
    )
    origin = JobPythonOrigin(job_name="training", repository_origin=repository)
    run = instance.create_run_for_job(
        training,
        status=dg.DagsterRunStatus.STARTED,
        job_code_origin=origin,
        tags={"dagster/partition": "2024-01-01"},
    )
    lost = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
    container = {"name": "dagster", "image": "platform:1"}
    spec = {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    status = {"failed": 1, "conditions": [{**lost, "lastTransitionTime": "2026-11-22T12:01:20Z"}]}
    api.put("jobs", {"metadata": {"name": f"{WORKER}{run.run_id}"}, "spec": spec, "status": status})
    return run


def _monitor(instance: dg.DagsterInstance) -> None:
    with WorkspaceProcessContext(instance, EmptyWorkspaceTarget()) as context:
        errors = [one for one in execute_run_monitoring_iteration(context, logging.getLogger("test")) if one]
    assert errors == []


def test_a_run_whose_pod_died_with_its_node_is_resumed_elsewhere(
    api: ApiServer, instance: dg.DagsterInstance
) -> None:
    """The daemon finds the run worker's Job without its pod, which was taken from a lost node."""
    run = _run_whose_pod_failed(api, instance)
    _monitor(instance)
    known = instance.get_run_by_id(run.run_id)
    assert known is not None
    assert known.status == dg.DagsterRunStatus.STARTED
    worker = api.objects["jobs", f"{WORKER}{run.run_id}-1"]["spec"]["template"]["spec"]
    assert "resume_run" in worker["containers"][0]["args"]
    assert [(one["key"], one["tolerationSeconds"]) for one in worker["tolerations"]] == [
        (key, 30) for key in LOST_NODE
    ]
    assert worker["securityContext"]["fsGroup"] == ResourceProfile().run_as_user
    assert {one["mountPath"] for one in worker["containers"][0]["volumeMounts"]} >= {
        "/var/lib/ml-assets",
        "/tmp",
    }


def test_a_run_whose_pod_ran_out_of_memory_fails_and_is_not_resumed(
    api: ApiServer, instance: dg.DagsterInstance
) -> None:
    """Resumed, it would die at the same row three times."""
    run = _run_whose_pod_failed(api, instance)
    limits = {"limits": {"memory": "8Gi"}}
    end = {"exitCode": 137, "reason": "OOMKilled", "startedAt": None, "finishedAt": None}
    state = {"name": "dagster", "image": "platform:1", "imageID": "", "ready": False, "restartCount": 0}
    api.put(
        "pods",
        {
            "metadata": {"name": "run-1", "labels": {"job-name": f"{WORKER}{run.run_id}"}},
            "spec": {"containers": [{"name": "dagster", "image": "platform:1", "resources": limits}]},
            "status": {
                "phase": "Failed",
                "containerStatuses": [{**state, "state": {"terminated": end}}],
            },
        },
    )
    _monitor(instance)
    known = instance.get_run_by_id(run.run_id)
    assert known is not None
    assert known.status == dg.DagsterRunStatus.FAILURE
    assert api.names("jobs") == [f"{WORKER}{run.run_id}"]
    why, _ = reason_of(instance, run.run_id)
    assert why.startswith(
        "OutOfMemory: the run of 2024-01-01 ran out of memory: the kernel killed dagster in pod"
    )
    assert "whose limit is 8Gi. On Kubernetes, raise `limits.memory` of `run_k8s_config`" in why


def test_pods_of_runs_and_of_trainings_share_a_group() -> None:
    run = settings_of_dagster()["run_launcher"]["config"]["run_k8s_config"]["pod_spec_config"]
    for pod in (run, *pods_of_dagster().values()):
        security = pod["securityContext"]
        groups = {security["runAsUser"], security["runAsGroup"], security["fsGroup"]}
        assert groups == {ResourceProfile().run_as_user}


@pytest.mark.parametrize("resource", ["cpu", "memory", "ephemeral-storage"])
def test_the_platforms_quota_has_room_for_all_its_pods(resource: str) -> None:
    """Also with Ray and as many runs as Dagster starts at once; else it would use the trainings' quota."""
    values = yaml.safe_load((ROOT / CHART / "values.yaml").read_text())
    share = values["quota"]["resources"][resource]
    run = settings_of_dagster()["run_launcher"]["config"]["run_k8s_config"]["container_config"]
    containers = [run] * values["runs"]["mostAtOnce"]
    for one in chart_objects("Deployment"):
        containers += one["spec"]["template"]["spec"]["containers"] * one["spec"]["replicas"]
    needed = sum(parse_quantity(one["resources"]["requests"][resource]) for one in containers)
    assert needed <= parse_quantity(f"{share['platform']}{share.get('unit', '')}")


def test_values_between_steps_lie_where_a_pod_may_write() -> None:
    """Root file systems are read-only, and Dagster's home holds the mounted settings."""
    settings = settings_of_dagster()
    place = Path(settings["local_artifact_storage"]["config"]["base_dir"])
    run = settings["run_launcher"]["config"]["run_k8s_config"]["container_config"]
    containers = [run, *(one for pod in pods_of_dagster().values() for one in pod["containers"])]
    for container in containers:
        mounts = container["volumeMounts"]
        written = [Path(one["mountPath"]) for one in mounts if not one.get("readOnly")]
        assert any(place.is_relative_to(one) for one in written)
