"""Dagster's settings in git: rendered from one source, accepted by Dagster, the same on a cluster and in its chart."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster._config import process_config
from dagster._core.instance.config import dagster_instance_config
from dagster._serdes import class_from_code_pointer

from deployment.render import CODE_PORT, HELM, PAGES_PORT, helm_values, rendered
from ml_assets.context.home import dagster_settings, unknown_variables
from ml_assets.dagster_host.instance import (
    DAEMON_SILENCE_SECONDS,
    EVENT_BATCH,
    HOME,
    USER,
    on_a_cluster,
    on_this_machine,
)
from ml_assets.foundation.checkout import ROOT
from ml_assets_tests.components.installation import Installation
from resources.settings import Settings

Section = dict[str, Any]

EMBEDDED = Settings(home=Path("/home/of/a/test"), dagster_url=None, artifacts_url=None, s3_endpoint_url=None)
ON_SERVERS: Section = {"dagster_url": "postgresql+psycopg2://u:p@host/d", "artifacts_url": "s3://bucket/a/b"}
VARIABLES = (
    "ML_ASSETS_DAGSTER_URL",
    "STEP_LOGS_BUCKET",
    "ML_ASSETS_S3_ENDPOINT_URL",
    "ML_ASSETS_KUBERNETES_NAMESPACE",
)


def of_the_chart(values: Section) -> Section:
    """Return `dagster.yaml` as the chart's `configmap-instance.yaml` makes it from `values`, without its storage."""
    daemon = values["dagsterDaemon"]
    launcher = values["runLauncher"]["config"]["k8sRunLauncher"]
    instance = {
        "run_coordinator": {
            "module": "dagster._core.run_coordinator",
            "class": daemon["runCoordinator"]["type"],
            "config": _snake(daemon["runCoordinator"]["config"]["queuedRunCoordinator"]),
        },
        "run_monitoring": _snake(daemon["runMonitoring"]),
        "run_retries": _snake(daemon["runRetries"]),
        "schedules": _snake(daemon["schedules"]),
        "sensors": _snake(daemon["sensors"]),
        "telemetry": values["telemetry"],
        "compute_logs": {
            "module": "dagster_aws.s3.compute_log_manager",
            "class": values["computeLogManager"]["type"],
            "config": _snake(values["computeLogManager"]["config"]["s3ComputeLogManager"]),
        },
        "run_launcher": {
            "module": "dagster_k8s",
            "class": values["runLauncher"]["type"],
            "config": {
                "job_namespace": "release",
                "service_account_name": values["global"]["serviceAccountName"],
                "dagster_home": "/opt/dagster/dagster_home",
                "instance_config_map": "dagster-instance",
                "image_pull_policy": launcher["imagePullPolicy"],
                "env_config_maps": [one["name"] for one in launcher["envConfigMaps"]],
                "env_secrets": [one["name"] for one in launcher["envSecrets"]],
                "run_k8s_config": _snake(launcher["runK8sConfig"]),
            },
        },
    }
    assert not instance.keys() & values["additionalInstanceConfig"].keys()
    return instance | values["additionalInstanceConfig"]


def _snake(value: Any) -> Any:
    match value:
        case dict():
            return {re.sub("[A-Z]", lambda one: f"_{one[0].lower()}", k): _snake(v) for k, v in value.items()}
        case list():
            return [_snake(one) for one in value]
        case _:
            return value


@pytest.mark.parametrize("path", rendered(), ids=str)
def test_a_file_in_git_is_what_its_source_renders(path: Path) -> None:
    assert (ROOT / path).read_text() == rendered()[path], "run make render, and commit what it writes"


@pytest.mark.parametrize(
    "instance",
    [
        pytest.param(yaml.safe_load(dagster_settings(EMBEDDED)), id="embedded"),
        pytest.param(yaml.safe_load(dagster_settings(EMBEDDED.model_copy(update=ON_SERVERS))), id="servers"),
        pytest.param(on_a_cluster(), id="cluster"),
        pytest.param(of_the_chart(yaml.safe_load((ROOT / HELM).read_text())), id="chart"),
    ],
)
def test_dagster_accepts_each_setting(
    instance: Section, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values are those of Dagster's schema and of the classes that the settings name."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "value")
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(instance))
    known, _ = dagster_instance_config(str(tmp_path))
    assert known.keys() >= instance.keys()
    parts = [*instance.values(), instance.get("storage", {}).get("custom")]
    classes = [one for one in parts if isinstance(one, dict) and "class" in one]
    assert len(classes) >= 1
    for part in classes:
        kind = class_from_code_pointer(part["module"], part["class"])
        checked = process_config(kind.config_type(), part["config"])
        assert checked.success, checked.errors


def test_the_chart_is_told_every_setting_of_a_cluster() -> None:
    """Except those that the chart itself decides: storage, namespace, account and home of Dagster."""
    cluster, chart = on_a_cluster(), of_the_chart(helm_values())
    del cluster["storage"]
    coordinator = chart.pop("run_coordinator")["config"]
    assert coordinator == cluster.pop("run_queue") | cluster.pop("concurrency")["runs"]
    mine, theirs = cluster.pop("run_launcher")["config"], chart.pop("run_launcher")["config"]
    pod = theirs["run_k8s_config"]["pod_spec_config"]
    assert pod.pop("service_account_name") == mine["service_account_name"]
    for name in ("env_config_maps", "env_secrets", "run_k8s_config"):
        assert theirs[name] == mine[name]
    assert chart == cluster


def test_places_differ_only_in_what_has_a_reason() -> None:
    """Reasons are beside the values, in `ml_assets/dagster_host/instance.py`."""
    here, cluster = on_this_machine(EMBEDDED.model_copy(update=ON_SERVERS)), on_a_cluster()
    differ = {name for name in here.keys() | cluster.keys() if here.get(name) != cluster.get(name)}
    assert differ == {
        "concurrency", "run_monitoring", "compute_logs", "local_artifact_storage", "run_launcher",
    }  # fmt: skip
    assert here["run_monitoring"].items() >= {"enabled": True, "poll_interval_seconds": 10}.items()
    for name in ("skip_empty_files", "upload_interval"):
        assert here["compute_logs"]["config"][name] == cluster["compute_logs"]["config"][name]


def test_no_pool_is_limited_or_joined(tmp_path: Path) -> None:
    """A limit of a pool without a step limits nothing, and a step in a pool without a limit never waits."""
    for instance in (on_this_machine(EMBEDDED), on_a_cluster()):
        assert instance["concurrency"].keys() == {"runs"}
    assets = Installation(tmp_path).defs.resolve_asset_graph().assets_defs
    ops = [op for one in assets if one.is_executable for op in one.node_def.iterate_op_defs()]
    pools = {op.pool for op in ops}
    assert pools == {None}


def test_image_and_manifests_have_the_numbers_of_the_settings() -> None:
    """Files that are written by hand: users, home, ports, the batch of events, the silence of the daemon."""
    folder = ROOT / "deployment"
    image = (folder / "images" / "Dockerfile").read_text()
    assert f"DAGSTER_EVENT_BATCH_SIZE={EVENT_BATCH}\n" in image
    assert set(re.findall(r"^USER (\d+:\d+)$", image, re.MULTILINE)) - {"0:0"} == {f"{USER}:{USER}"}
    assert f"ML_ASSETS_HOME={HOME} " in image
    assert f"EXPOSE {PAGES_PORT}\n" in image
    platform = (folder / "kubernetes" / "base" / "platform.yaml").read_text()
    silence = f'{{name: DAGSTER_DAEMON_HEARTBEAT_TOLERANCE, value: "{DAEMON_SILENCE_SECONDS}"}}'
    assert silence in platform
    assert platform.count(f"mountPath: {HOME},") == 3
    compose = (folder / "compose" / "compose.yaml").read_text()
    assert f'user: "{USER}:{USER}"' in compose
    assert f"platform:{HOME}]" in compose
    services = [one for one in yaml.safe_load_all(platform) if one["kind"] == "Service"]
    ports = {one["metadata"]["name"]: one["spec"]["ports"][0]["port"] for one in services}
    assert ports == {"webserver": PAGES_PORT, "code-location": CODE_PORT}
    named = re.findall(r"(?:[pP]ort:|-p,) \"?(\d{4})\b", platform)
    assert {int(port) for port in named} == {PAGES_PORT, CODE_PORT}


def test_pods_written_by_hand_have_the_security_of_the_settings() -> None:
    """`platform.yaml` repeats it for each pod, so that it can be read and applied without the project."""
    platform = (ROOT / "deployment" / "kubernetes" / "base" / "platform.yaml").read_text()
    deployments = [one for one in yaml.safe_load_all(platform) if one["kind"] == "Deployment"]
    assert len(deployments) == 3
    chart = helm_values()["dagsterDaemon"]
    for pod in (one["spec"]["template"]["spec"] for one in deployments):
        assert pod["securityContext"] == chart["podSecurityContext"]
        assert pod["tolerations"] == chart["tolerations"]
        (container,) = pod["containers"]
        assert container["securityContext"] == {**chart["securityContext"], "readOnlyRootFilesystem": True}


def test_manifests_have_what_the_settings_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounts, ConfigMap, Secret and environment variables: a missing one shows only when a pod starts."""
    folder = ROOT / "deployment" / "kubernetes"
    base = {path.stem: path.read_text() for path in (folder / "base").glob("*.yaml")}
    documents = [one for text in base.values() for one in yaml.safe_load_all(text)]
    pods = {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]
        for one in documents
        if one.get("kind") == "Deployment"
    }
    accounts = {one["metadata"]["name"] for one in documents if one.get("kind") == "ServiceAccount"}
    chart, launcher = helm_values(), on_a_cluster()["run_launcher"]["config"]
    assert {launcher["service_account_name"], chart["serviceAccount"]["name"]} < accounts
    assert chart["global"]["serviceAccountName"] == pods["webserver"]["serviceAccountName"]
    assert chart["global"]["serviceAccountName"] == pods["daemon"]["serviceAccountName"]
    bindings = {one["metadata"]["name"]: one for one in documents if one.get("kind") == "RoleBinding"}
    code_locations = {pods["code-location"]["serviceAccountName"], chart["global"]["serviceAccountName"]}
    assert {one["name"] for one in bindings["pruner"]["subjects"]} == code_locations

    (instance,) = yaml.safe_load(base["kustomization"])["configMapGenerator"]
    assert instance["name"] == launcher["instance_config_map"]
    team = (folder / "teams" / "example" / "kustomization.yaml").read_text()
    (settings,) = yaml.safe_load(team)["configMapGenerator"]
    assert [settings["name"]] == launcher["env_config_maps"]
    (secret,) = launcher["env_secrets"]
    assert f"#   {secret} " in team
    named = set(re.findall(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b", team))
    assert set(_variables(on_a_cluster())) == set(VARIABLES) <= named
    for name in named:
        monkeypatch.setenv(name, "value")
    assert unknown_variables() == []


def _variables(value: Any) -> list[str]:
    """Return the environment variables that Dagster fills in."""
    match value:
        case {"env": str(name)}:
            return [name]
        case dict():
            return [name for inner in value.values() for name in _variables(inner)]
        case _:
            return []


def test_network_policies_find_the_pods_of_the_chart() -> None:
    """Policies select webserver, daemon and code location by a label, which the chart does not set by itself."""
    network = (ROOT / "deployment" / "kubernetes" / "base" / "network.yaml").read_text()
    selected = re.findall(r"podSelector: \{matchLabels: \{app: ([\w-]+)\}\}", network)
    chosen = re.findall(r"\{key: app, operator: In, values: \[([\w, -]+)\]\}", network)
    values = helm_values()
    (code_location,) = values["dagster-user-deployments"]["deployments"]
    labelled = [
        values["dagsterWebserver"]["labels"],
        values["dagsterDaemon"]["labels"],
        code_location["labels"],
    ]
    assert {*selected, *", ".join(chosen).split(", ")} == {labels["app"] for labels in labelled}


def test_pods_of_ray_fit_to_each_other_and_to_the_settings() -> None:
    """Ports and names are repeated in commands, Service, policies and the settings that a team adds."""
    folder = ROOT / "deployment" / "kubernetes"
    documents = list(yaml.safe_load_all((folder / "ray" / "ray.yaml").read_text()))
    platform = list(yaml.safe_load_all((folder / "base" / "platform.yaml").read_text()))
    daemon = next(one for one in platform if one["metadata"]["name"] == "daemon")["spec"]["template"]["spec"]
    pods = {
        one["metadata"]["name"]: one["spec"]["template"] for one in documents if one["kind"] == "Deployment"
    }
    assert set(pods) == {"ray-head", "ray-worker"}
    commands: dict[str, dict[str, str]] = {}
    for name, pod in pods.items():
        (container,), (of_daemon,) = pod["spec"]["containers"], daemon["containers"]
        assert pod["spec"]["securityContext"] == daemon["securityContext"]
        assert pod["spec"]["tolerations"] == daemon["tolerations"]
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert container["securityContext"] == of_daemon["securityContext"]
        assert container["envFrom"] == of_daemon["envFrom"]
        assert container["image"] == of_daemon["image"], "a worker has the code of the runs"
        assert {one["mountPath"] for one in container["volumeMounts"]} == {"/dev/shm", "/tmp", HOME}
        commands[name] = dict(one.lstrip("-").partition("=")[::2] for one in container["command"])

    (service,) = (one for one in documents if one["kind"] == "Service")
    ports = {one["name"]: str(one["port"]) for one in service["spec"]["ports"]}
    head = commands["ray-head"]
    assert ports == {"cluster": head["port"], "client": head["ray-client-server-port"]}
    assert commands["ray-worker"]["address"] == f"{service['metadata']['name']}:{ports['cluster']}"
    told = (folder / "ray" / "kustomization.yaml").read_text()
    named = dict(re.findall(r"^#   ML_ASSETS_(\w+)=(\S+)$", told, re.MULTILINE))
    settings = Settings.model_validate({name.lower(): value for name, value in named.items()})
    assert settings.pool == "ray"
    assert settings.ray_address is not None
    assert settings.ray_address.server == f"{service['metadata']['name']}:{ports['client']}"
    policies = [one["spec"] for one in documents if one["kind"] == "NetworkPolicy"]
    let_in = [rule["ports"] for one in policies for rule in one.get("ingress", []) if "ports" in rule]
    assert let_in == [[{"protocol": "TCP", "port": int(ports["client"])}]]
    (selected,) = (one["podSelector"]["matchLabels"] for one in policies if "Ingress" in one["policyTypes"])
    assert all(selected.items() <= pod["metadata"]["labels"].items() for pod in pods.values())
    assert service["spec"]["selector"].items() <= pods["ray-head"]["metadata"]["labels"].items()
