"""The Helm chart as Helm, kubeconform and kube-score see it. Needs Go, which builds them once, and no cluster."""

import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster_k8s.job import UserDefinedDagsterK8sConfig

from deployment.render import CHART, EVERYTHING, EXAMPLE, OPTIONS, ROLE, TEAM, everything
from deployment.testbed.build import build
from ml_assets.foundation.checkout import ROOT
from ml_assets_tests.cluster.kubernetes_schemas import write_schemas
from ml_assets_tests.deployment.chart_objects import chart_objects

pytestmark = pytest.mark.timeout(1800)

Values = dict[str, Any]

DEFAULTS: Values = yaml.safe_load((ROOT / CHART / "values.yaml").read_text())
EXAMPLE_VALUES: Values = yaml.safe_load((ROOT / EXAMPLE).read_text())
EVERY_OPTION: Values = {
    **{name: {"enabled": True} for name in OPTIONS},
    "settings": {"ML_ASSETS_KUBERNETES_S3_ROLE": ROLE},
}
FREE = re.compile(r"settings|quota/resources|.*([aA]nnotations|requests|limits|[lL]abels|nodeSelector)")
"""Paths of values whose keys are a team's own."""
ACCEPTED = {
    ("container-image-pull-policy", "*"): "images by digest: another pull gets the same bits",
    ("pod-probes-identical", "webserver"): "the page tells both; liveness has patience of two minutes",
    ("pod-probes-identical", "proxy"): "as of the webserver",
    ("pod-probes-identical", "api"): "as of the webserver",
    ("networkpolicy-targets-pod", "workers"): "the launcher makes these pods",
    ("networkpolicy-targets-pod", "servers-of-workers"): "the launcher makes these pods",
    ("networkpolicy-targets-pod", "metrics"): "the launcher makes these pods",
    ("deployment-has-poddisruptionbudget", "ray-worker"): "a task of a lost worker runs again",
}
"""Critical findings of kube-score that stay, by check and object, with the reason."""


@pytest.fixture(scope="session")
def helm() -> Path:
    return build("helm") / "helm"


@pytest.fixture(scope="session")
def checks() -> Path:
    """Folder of kubeconform and kube-score."""
    return build("manifest-checks")


class Refused(Exception):
    """Helm's message."""


def objects(helm: Path, values: Values | None = None) -> list[dict[str, Any]]:
    """Return what the chart makes of the example team's values and these. Raise `Refused`."""
    words = [helm, "template", "ml-assets", CHART, f"--namespace={TEAM}", "--values=-"]
    given = json.dumps(merged(EXAMPLE_VALUES, values or {}))
    done = subprocess.run(words, cwd=ROOT, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(done.stderr)
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def merged(first: Values, second: Values) -> Values:
    """Return both, as Helm merges files of values: None removes a key of `first`."""
    both = {**first, **second}
    for name in first.keys() & second.keys():
        if second[name] is None:
            del both[name]
        elif isinstance(first[name], dict) and isinstance(second[name], dict):
            both[name] = merged(first[name], second[name])
    return both


def one_of(found: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (one,) = (one for one in found if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return one


def test_the_chart_in_git_is_rendered_by_helm(helm: Path) -> None:
    assert (ROOT / EVERYTHING).read_text() == everything(helm), "run make render ARGS=--chart, and commit"


def test_helm_finds_nothing_to_complain_about(helm: Path) -> None:
    words = [helm, "lint", "--strict", CHART, f"--values={EXAMPLE}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert set(re.findall(r"\[(\w+)\]", done.stdout)) <= {"INFO"}, done.stdout


def test_options_are_off_until_a_team_asks_for_them(helm: Path) -> None:
    plain, every = (
        {(one["kind"], one["metadata"]["name"]) for one in objects(helm, values)}
        for values in ({}, EVERY_OPTION)
    )
    assert plain < every
    assert {kind for kind, _ in every - plain} == {
        "ClusterQueue", "LocalQueue", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "PodMonitor",
        "Deployment", "Service", "NetworkPolicy", "PrometheusRule", "ConfigMap", "PodDisruptionBudget",
    }  # fmt: skip


def test_kubernetes_knows_each_field(checks: Path, tmp_path: Path) -> None:
    """By the schemas of the pinned Kubernetes, Kueue and Prometheus Operator, without fields that they do not have."""
    write_schemas(tmp_path)
    found = conform(checks, tmp_path, (ROOT / EVERYTHING).read_text())
    assert {"PodMonitor", "PrometheusRule"} <= {one["kind"] for one in all_of_git()}
    assert found["summary"] == {"valid": len(all_of_git()), "invalid": 0, "errors": 0, "skipped": 0}, found


def test_a_field_that_kubernetes_does_not_know_is_found(checks: Path, tmp_path: Path) -> None:
    write_schemas(tmp_path)
    text = (ROOT / EVERYTHING).read_text()
    for right, wrong in {
        "failureThreshold": "failureTreshold",
        "borrowingLimit": "borrowinLimit",
        "failurePolicy": "failPolicy",
        "podMetricsEndpoints": "podMetricEndpoints",
        "alert: ": "alarm: ",
    }.items():
        assert conform(checks, tmp_path, text.replace(right, wrong))["summary"]["invalid"] > 0


def conform(checks: Path, schemas: Path, text: str) -> dict[str, Any]:
    """Return kubeconform's report."""
    place = schemas / "{{ .ResourceKind }}_{{ .Group }}_{{ .ResourceAPIVersion }}.json"
    words = [checks / "kubeconform", "-strict", "-summary", "-output=json", f"-schema-location={place}"]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    return json.loads(done.stdout)


@cache
def all_of_git() -> list[dict[str, Any]]:
    """Return the objects of the example with every option, as another test sees Helm render them."""
    return chart_objects()


def test_kube_score_has_no_critical_finding_without_a_reason(checks: Path) -> None:
    """Limits of CPU are not asked for: they slow a pod on an idle node down."""
    words = [checks / "kube-score", "score", EVERYTHING, "--output-format=json", "--kubernetes-version=v1.34"]
    words += ["--ignore-container-cpu-limit"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    critical = {
        (check["check"]["id"], one["object_name"].rpartition("/")[2])
        for one in json.loads(done.stdout)
        for check in one["checks"]
        if check["grade"] == 1 and not check["skipped"]
    }
    assert {one for one in critical if (one[0], "*") not in ACCEPTED and one not in ACCEPTED} == set()
    assert {(check, name) for check, name in ACCEPTED if name != "*"} <= critical, (
        "an exception is not needed"
    )


def sections(values: Values, path: str = "") -> Iterator[tuple[str, Values]]:
    """Yield the path of each section whose keys the chart defines."""
    if not FREE.fullmatch(path):
        yield path, values
        for name, value in values.items():
            if isinstance(value, dict):
                yield from sections(value, f"{path}/{name}".strip("/"))


def leaves(values: Values, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path of each value that is no section."""
    for name, value in values.items():
        below = f"{path}|{name}".strip("|")
        if isinstance(value, dict) and value:
            yield from leaves(value, below)
        else:
            yield below, value


def nested(path: list[str], value: Any) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value


@pytest.mark.parametrize(
    ("path", "section"), [pytest.param(*one, id=one[0] or "top") for one in sections(DEFAULTS)]
)
def test_a_misspelt_key_is_refused_by_its_name(helm: Path, path: str, section: Values) -> None:
    for name, value in section.items():
        values = nested(path.split("/") if path else [], {f"{name}x": value})
        with pytest.raises(Refused, match=rf"'{name}x'"):
            objects(helm, values)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"settings": {"ML_ASSETS_LAKE_ULR": "https://lakefs"}}, "ML_ASSETS_LAKE_ULR"),
        ({"settings": {"ML_ASSETS_LEDGER_URL": "postgresql://u:p@h/d"}}, "ML_ASSETS_LEDGER_URL"),
        ({"settings": {"ML_ASSETS_TOKEN": "secret"}}, "ML_ASSETS_TOKEN"),
        ({"settings": {"AWS_SECRET_ACCESS_KEY": "secret"}}, "AWS_SECRET_ACCESS_KEY"),
        ({"settings": {"STEP_LOGS_BUCKET": "other"}}, "STEP_LOGS_BUCKET"),
        ({"settings": {"ML_ASSETS_LAKE_URL": None}}, "ML_ASSETS_LAKE_URL"),
        ({"settings": {"ML_ASSETS_CHUNK_MIB": 512}}, "ML_ASSETS_CHUNK_MIB"),
        ({"images": {"platform": "registry.example.com/platform"}}, "platform"),
        ({"quota": {"resources": {"cpus": {"trainings": 1, "borrowed": 0, "platform": 1}}}}, "cpus"),
        ({"quota": {"resources": {"cpu": {"nominal": 1}}}}, "nominal"),
        ({"webserver": {"resources": {"limits": {"memori": "1Gi"}}}}, "memori"),
        ({"webserver": {"resources": {"limits": {"memory": "1 GB"}}}}, "memory"),
        ({"network": {"servers": {"ports": []}}}, "ports"),
        ({"metrics": {"readers": [{}]}}, "readers"),
        ({"serving": {"models": ["Flight Delay"]}}, "models"),
        ({"settings": {"ML_ASSETS_KUBERNETES_ISOLATED": "false"}}, "ML_ASSETS_KUBERNETES_ISOLATED"),
        ({"serving": {"enabled": True, "models": []}}, "serving.models"),
    ],
)  # fmt: skip
def test_an_impossible_value_is_refused_by_its_key(helm: Path, values: Values, named: str) -> None:
    with pytest.raises(Refused, match=named):
        objects(helm, values)


def another(path: str, value: Any) -> Any:
    """Return another legal value."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            is_image = path.startswith("images") or path.endswith("|image")
            return f"example.com/other@sha256:{'1' * 64}" if is_image else f"1{value}"
        case list():
            form = {
                "tolerations": {"key": "other"},
                "ports": 9092,
                "ingress": {"a": "b"},
                "readers": {"a": "b"},
            }
            return [
                *value,
                form.get(path.rpartition("|")[2], "10.0.0.0/8" if "addresses" in path else "other"),
            ]
        case _:
            return {"OTHER" if path == "settings" else "other": "value"}


def test_git_has_the_chart_with_every_option(helm: Path) -> None:
    assert all_of_git() == objects(helm, EVERY_OPTION)


@pytest.mark.parametrize(
    ("path", "value"), [pytest.param(*one, id=one[0]) for one in leaves(merged(DEFAULTS, EVERY_OPTION))]
)
def test_each_value_changes_an_object(helm: Path, path: str, value: Any) -> None:
    """A key that changes nothing would promise what nobody keeps."""
    change = nested(path.split("|"), another(path, value))
    others = EVERY_OPTION
    if path == "jobset|enabled":  # trainjob counts before it
        others = merged(EVERY_OPTION, {"trainjob": {"enabled": False}})
    assert objects(helm, others) != objects(helm, merged(others, change))


def test_only_proxy_and_api_reach_the_webserver(helm: Path) -> None:
    def entries(values: Values, app: str) -> list[Any]:
        """Return the peers and ports of each rule that lets somebody in to the pods of `app`."""
        policies = [one["spec"] for one in objects(helm, values) if one["kind"] == "NetworkPolicy"]
        return [
            (rule["from"], rule["ports"][0]["port"])
            for one in policies
            if one["podSelector"] == {"matchLabels": {"app": app}}
            for rule in one.get("ingress") or ()
        ]

    ingress = [{"namespaceSelector": {"matchLabels": {"ml-assets/ingress": "true"}}}]
    own = [{"podSelector": {"matchLabels": {"app": "proxy"}}}]
    both = {"proxy": {"enabled": True}, "oauth2Proxy": {"enabled": True}}
    assert entries({}, "webserver") == [(ingress, 3000)]
    assert entries({"proxy": both["proxy"]}, "webserver") == entries(both, "webserver") == [(own, 3000)]
    with_api = {"proxy": both["proxy"], "api": {"enabled": True}}
    of_api = [{"podSelector": {"matchLabels": {"app": "api"}}}]
    assert entries(with_api, "webserver") == [(own, 3000), (of_api, 3000)]
    assert entries({"api": {"enabled": True}}, "webserver") == [(of_api, 3000), (ingress, 3000)]
    assert entries(with_api, "api") == [(ingress, 3002)]
    assert entries({"proxy": both["proxy"]}, "proxy") == [(ingress, 3000)]
    assert entries(both, "proxy") == [(ingress, 4180)]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"proxy": {"enabled": True}, "settings": {"ML_ASSETS_UI_URL": None}}, "ML_ASSETS_UI_URL"),
        ({"oauth2Proxy": {"enabled": True, "image": ""}}, "oauth2Proxy.image"),
        ({"oauth2Proxy": {"enabled": True, "issuer": ""}}, "oauth2Proxy.issuer"),
    ],
)
def test_a_proxy_without_what_it_needs_is_refused(helm: Path, values: Values, named: str) -> None:
    with pytest.raises(Refused, match=named):
        objects(helm, merged({"proxy": {"enabled": True}}, values))


def test_the_api_has_an_account_without_rights_and_without_a_token(helm: Path) -> None:
    found = objects(helm, {"api": {"enabled": True}})
    pod = one_of(found, "Deployment", "api")["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("api", False)
    bound = [one["subjects"] for one in found if one["kind"] == "RoleBinding"]
    assert "api" not in {subject["name"] for subjects in bound for subject in subjects}
    (container,) = pod["containers"]
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("readiness", "startup", "liveness")]
    assert probes == [{"path": "/health", "port": 3002}] * 3


def test_each_served_model_has_pods_of_its_own_that_wait_to_be_ready(helm: Path) -> None:
    serving = {"enabled": True, "models": ["flight_delay", "churn"], "options": ["--online"]}
    found = objects(helm, {"serving": serving})
    for model, name in (("flight_delay", "serving-flight-delay"), ("churn", "serving-churn")):
        deployment = one_of(found, "Deployment", name)["spec"]
        pod = deployment["template"]["spec"]
        (container,) = pod["containers"]
        command = ["ml-assets", "serve", model, "--host", "0.0.0.0", "--port", "8080", "--online"]
        assert container["command"] == command
        assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("serving", False)
        paths = {probe: container[f"{probe}Probe"]["httpGet"]["path"] for probe in ("readiness", "liveness")}
        assert paths == {"readiness": "/ready", "liveness": "/health"}
        labels = deployment["template"]["metadata"]["labels"]
        of_service = one_of(found, "Service", name)["spec"]["selector"]
        of_budget = one_of(found, "PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"]
        assert of_service == of_budget == deployment["selector"]["matchLabels"]
        assert of_service.items() <= labels.items()
        assert of_service["ml-assets/serves"] == model


def test_secrets_of_the_oidc_client_are_only_references(helm: Path) -> None:
    both = {"proxy": {"enabled": True}, "oauth2Proxy": {"enabled": True, "secret": "client"}}
    containers = one_of(objects(helm, both), "Deployment", "proxy")["spec"]["template"]["spec"]["containers"]
    front = next(one for one in containers if one["name"] == "oauth2-proxy")
    assert front["envFrom"] == [{"secretRef": {"name": "client"}}]
    assert "env" not in front
    assert not any("secret" in one or "client" in one for one in front["args"])


def test_an_empty_list_of_the_network_closes_it(helm: Path) -> None:
    """For Kubernetes a rule without peers is open to everybody."""
    nowhere = {"addresses": [], "namespaces": []}
    closed = {"servers": nowhere, "workers": nowhere, "dns": {"namespaces": []}, "ingress": []}
    policies = [one["spec"] for one in objects(helm, {"network": closed}) if one["kind"] == "NetworkPolicy"]
    rules = [rule for one in policies for way in ("ingress", "egress") for rule in one.get(way) or ()]
    assert rules
    assert all(rule.get("from") or rule.get("to") for rule in rules)


def test_quota_of_the_queue_and_of_the_namespace_agree(helm: Path) -> None:
    """A borrowed GPU passes both, and no number is in two places."""
    shares = {"trainings": 3, "borrowed": 2, "platform": 7}
    resources = {
        "cpu": shares,
        "memory": {**shares, "unit": "Gi"},
        "nvidia.com/gpu": None,
        "example.com/mig": shares,
    }
    for queue, sums in ({"enabled": True}, "12"), ({"enabled": False}, "10"):
        found = objects(helm, {"quota": {"resources": resources}, "queue": queue})
        hard = one_of(found, "ResourceQuota", "team")["spec"]["hard"]
        assert hard["requests.memory"] == f"{sums}Gi"
        assert hard["requests.cpu"] == hard["requests.example.com/mig"] == sums
        assert "requests.nvidia.com/gpu" not in hard
    found = objects(helm, {"quota": {"resources": resources}, "queue": {"enabled": True}})
    (group,) = one_of(found, "ClusterQueue", TEAM)["spec"]["resourceGroups"]
    assert set(group["coveredResources"]) == {"cpu", "memory", "ephemeral-storage", "example.com/mig"}
    quotas = {
        one["name"]: (one["nominalQuota"], one["borrowingLimit"]) for one in group["flavors"][0]["resources"]
    }
    assert quotas["memory"] == ("3Gi", "2Gi")
    assert quotas["cpu"] == quotas["example.com/mig"] == ("3", "2")


def test_pods_of_runs_get_their_place_from_values(helm: Path) -> None:
    """Dagster itself reads the words of Kubernetes."""
    toleration = {"key": "dedicated", "operator": "Exists"}
    runs = {
        "nodeSelector": {"pool": "runs"},
        "tolerations": [toleration],
        "priorityClassName": "high",
        "podAnnotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
        "podLabels": {"azure.workload.identity/use": "true"},
    }
    found = objects(helm, {"runs": runs, "images": {"pullSecrets": ["registry"]}})
    text = one_of(found, "ConfigMap", "dagster-instance")["data"]["dagster.yaml"]
    config = yaml.safe_load(text)["run_launcher"]["config"]["run_k8s_config"]
    read = UserDefinedDagsterK8sConfig.from_dict(config)
    assert read.pod_spec_config["node_selector"] == runs["nodeSelector"]
    assert read.pod_spec_config["priority_class_name"] == "high"
    assert read.pod_spec_config["image_pull_secrets"] == [{"name": "registry"}]
    assert read.pod_spec_config["tolerations"][-1] == toleration
    assert len(read.pod_spec_config["tolerations"]) == 3
    assert read.pod_template_spec_metadata == {
        "annotations": runs["podAnnotations"],
        "labels": runs["podLabels"],
    }


def test_step_logs_go_to_amazon_without_an_endpoint(helm: Path) -> None:
    found = objects(helm, {"settings": {"ML_ASSETS_S3_ENDPOINT_URL": None}})
    text = one_of(found, "ConfigMap", "dagster-instance")["data"]["dagster.yaml"]
    assert "endpoint_url" not in yaml.safe_load(text)["compute_logs"]["config"]


def test_lake_and_database_are_prepared_before_the_rest(helm: Path) -> None:
    """The Job reads only what its own hook makes before it: the rest does not exist at an installation."""
    hooks = [one for one in objects(helm) if "helm.sh/hook" in one["metadata"].get("annotations", {})]
    order = {
        one["metadata"]["name"]: one["metadata"]["annotations"].get("helm.sh/hook-weight", "0")
        for one in hooks
    }
    assert order == {"prepare": "0", "prepare-dagster": "-1"}
    job = one_of(hooks, "Job", "prepare")["spec"]["template"]["spec"]
    maps = {one["metadata"]["name"] for one in hooks if one["kind"] == "ConfigMap"}
    (container,) = job["containers"]
    used = [one["configMap"]["name"] for one in job["volumes"] if "configMap" in one]
    used += [one["configMapRef"]["name"] for one in container["envFrom"] if "configMapRef" in one]
    assert set(used) == maps
    assert "serviceAccountName" not in job
