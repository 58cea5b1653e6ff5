"""Files in git that are made from others: each is what its source renders, and Dagster accepts its settings."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster._config import process_config
from dagster._core.instance.config import dagster_instance_config
from dagster._serdes import class_from_code_pointer

from deployment.render import CHART, EVERYTHING, EXAMPLE, is_current, rendered
from ml_assets.context.home import dagster_settings, unknown_variables
from ml_assets.dagster_host.instance import (
    DAEMON_SILENCE_SECONDS,
    EVENT_BATCH,
    HOME,
    USER,
    on_this_machine,
)
from ml_assets.foundation.checkout import ROOT
from ml_assets_tests.components.installation import Installation
from ml_assets_tests.deployment.chart_objects import (
    chart_object,
    chart_objects,
    pods_of_dagster,
    settings_of_dagster,
)
from resources.settings import Settings

Section = dict[str, Any]

EMBEDDED = Settings(home=Path("/home/of/a/test"), dagster_url=None, artifacts_url=None, s3_endpoint_url=None)
ON_SERVERS: Section = {"dagster_url": "postgresql+psycopg2://u:p@host/d", "artifacts_url": "s3://bucket/a/b"}
PAGES_PORT, CODE_PORT = 3000, 4000
VARIABLES = (
    "ML_ASSETS_DAGSTER_URL",
    "STEP_LOGS_BUCKET",
    "ML_ASSETS_S3_ENDPOINT_URL",
    "ML_ASSETS_KUBERNETES_NAMESPACE",
)


@pytest.mark.parametrize("path", rendered(), ids=str)
def test_a_file_in_git_is_what_its_source_renders(path: Path) -> None:
    assert (ROOT / path).read_text() == rendered()[path], "run make render, and commit what it writes"


def test_the_rendered_chart_has_the_hash_of_its_sources() -> None:
    """Without Helm, this notices a change; `cluster/test_chart.py` renders it."""
    assert is_current(), f"run make render ARGS=--chart, which builds Helm once, and commit {EVERYTHING}"


@pytest.mark.parametrize(
    "instance",
    [
        pytest.param(yaml.safe_load(dagster_settings(EMBEDDED)), id="embedded"),
        pytest.param(yaml.safe_load(dagster_settings(EMBEDDED.model_copy(update=ON_SERVERS))), id="servers"),
        pytest.param(settings_of_dagster(), id="cluster"),
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


def test_places_differ_only_in_what_has_a_reason() -> None:
    """Reasons are beside the values, in `ml_assets/dagster_host/instance.py`."""
    here, cluster = on_this_machine(EMBEDDED.model_copy(update=ON_SERVERS)), settings_of_dagster()
    differ = {name for name in here.keys() | cluster.keys() if here.get(name) != cluster.get(name)}
    assert differ == {
        "concurrency", "run_monitoring", "compute_logs", "local_artifact_storage", "run_launcher",
    }  # fmt: skip
    assert here["run_monitoring"].items() >= {"enabled": True, "poll_interval_seconds": 10}.items()
    for name in ("skip_empty_files", "upload_interval"):
        assert here["compute_logs"]["config"][name] == cluster["compute_logs"]["config"][name]


def test_no_pool_is_limited_or_joined(tmp_path: Path) -> None:
    """A limit of a pool without a step limits nothing, and a step in a pool without a limit never waits."""
    for instance in (on_this_machine(EMBEDDED), settings_of_dagster()):
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
    compose = (folder / "compose" / "compose.yaml").read_text()
    assert f'user: "{USER}:{USER}"' in compose
    assert f"platform:{HOME}]" in compose
    for name, port in {"webserver": PAGES_PORT, "code-location": CODE_PORT}.items():
        (service,) = chart_object("Service", name)["spec"]["ports"]
        (container,) = pods_of_dagster()[name]["containers"]
        words = [service, container["command"], container["ports"], container["livenessProbe"]]
        assert set(re.findall(r"\b\d{4}\b", str(words))) == {str(port)}
    (daemon,) = pods_of_dagster()["daemon"]["containers"]
    silence = {"name": "DAGSTER_DAEMON_HEARTBEAT_TOLERANCE", "value": str(DAEMON_SILENCE_SECONDS)}
    assert silence in daemon["env"]


def test_pods_have_what_the_settings_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounts, ConfigMap, Secret and environment variables: a missing one shows only when a pod starts."""
    accounts = {one["metadata"]["name"] for one in chart_objects("ServiceAccount")}
    launcher = settings_of_dagster()["run_launcher"]["config"]
    named = {pod["serviceAccountName"] for pod in pods_of_dagster().values()}
    assert {launcher["service_account_name"], *named} < accounts
    assert chart_object("ConfigMap", launcher["instance_config_map"])
    (settings,) = launcher["env_config_maps"]
    (secret,) = launcher["env_secrets"]
    for pod in pods_of_dagster().values():
        (container,) = pod["containers"]
        assert container["envFrom"] == [
            {"configMapRef": {"name": settings}},
            {"secretRef": {"name": secret}},
        ]
    example = (ROOT / EXAMPLE).read_text()
    assert f"#   {secret} " in example
    given = set(chart_object("ConfigMap", settings)["data"])
    given |= set(re.findall(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b", example))
    assert set(_variables(settings_of_dagster())) == set(VARIABLES) <= given
    for name in given:
        monkeypatch.setenv(name, "value")
    assert unknown_variables() == []


@pytest.mark.parametrize("section", ["values.yaml", "values.schema.json"])
def test_values_and_their_schema_have_the_same_keys(section: str) -> None:
    """A key of the schema alone would be without default and comment, a key of the values alone refused."""
    values = _keys_of_values(yaml.safe_load((ROOT / CHART / "values.yaml").read_text()))
    schema = _keys_of_schema(yaml.safe_load((ROOT / CHART / "values.schema.json").read_text()))
    only = values - schema if section == "values.yaml" else schema - values - {"global"}
    assert not only


def _keys_of_values(value: Any, path: str = "") -> set[str]:
    """Return the path of each key; keys of a resource, label or variable are a team's own."""
    free = re.compile(
        r"settings|quota\.resources|.*[aA]nnotations|.*(requests|limits|[lL]abels|nodeSelector)"
    )
    if not isinstance(value, dict) or free.fullmatch(path):
        return {path}
    return {
        one for name, inner in value.items() for one in _keys_of_values(inner, f"{path}.{name}".strip("."))
    }


def _keys_of_schema(schema: Section, path: str = "") -> set[str]:
    properties = schema.get("properties", {})
    if not properties:
        return {path}
    return {
        one
        for name, inner in properties.items()
        for one in _keys_of_schema(inner, f"{path}.{name}".strip("."))
    }


def _variables(value: Any) -> list[str]:
    """Return the environment variables that Dagster fills in."""
    match value:
        case {"env": str(name)}:
            return [name]
        case dict():
            return [name for inner in value.values() for name in _variables(inner)]
        case _:
            return []


def test_network_policies_find_the_pods() -> None:
    """Policies select webserver, daemon and code location by a label."""
    policies = str(chart_objects("NetworkPolicy"))
    selected = re.findall(r"'app': '([\w-]+)'", policies)
    chosen = re.findall(r"'key': 'app', 'operator': 'In', 'values': \[([^]]+)\]", policies)
    labels = {one["spec"]["template"]["metadata"]["labels"]["app"] for one in chart_objects("Deployment")}
    assert {*selected, *re.findall(r"[\w-]+", " ".join(chosen))} == labels - {"ray-worker"}


def test_pods_of_ray_fit_to_each_other_and_to_the_settings() -> None:
    """Ports and names are repeated in commands, Service, policies and the settings that a team adds."""
    daemon = pods_of_dagster()["daemon"]
    pods = {name: chart_object("Deployment", name)["spec"]["template"] for name in ("ray-head", "ray-worker")}
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

    service = chart_object("Service", "ray-head")
    ports = {one["name"]: str(one["port"]) for one in service["spec"]["ports"]}
    head = commands["ray-head"]
    assert ports == {"cluster": head["port"], "client": head["ray-client-server-port"]}
    assert commands["ray-worker"]["address"] == f"{service['metadata']['name']}:{ports['cluster']}"
    variables = chart_object("ConfigMap", "ml-assets")["data"]
    named = {name: variables[f"ML_ASSETS_{name.upper()}"] for name in ("pool", "ray_address")}
    settings = Settings.model_validate(named)
    assert settings.pool == "ray"
    assert settings.ray_address is not None
    assert settings.ray_address.server == f"{service['metadata']['name']}:{ports['client']}"
    policies = [chart_object("NetworkPolicy", name)["spec"] for name in ("ray", "runs-to-ray")]
    let_in = [rule["ports"] for one in policies for rule in one.get("ingress", []) if "ports" in rule]
    assert let_in == [[{"protocol": "TCP", "port": int(ports["client"])}]]
    (selected,) = (one["podSelector"]["matchLabels"] for one in policies if "Ingress" in one["policyTypes"])
    assert all(selected.items() <= pod["metadata"]["labels"].items() for pod in pods.values())
    assert service["spec"]["selector"].items() <= pods["ray-head"]["metadata"]["labels"].items()
