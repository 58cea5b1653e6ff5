"""`python -m deployment.render` (`make render`): writes the files that are kept in git and made from the code.

Belongs here: the files of a cluster and of Dagster's Helm chart, and the names of that chart. Not here: Dagster's
settings (`ml_assets.dagster_host.instance`), pages of the docs (`deployment.site.reference_pages`), and tables of
measured claims (`deployment.site.claims_page`). A test fails if a file in git differs from its rendering.
"""

import sys
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from deployment.site.claims_page import claims_tables
from deployment.site.reference_pages import reference
from ml_assets.dagster_host import instance as dagster_instance
from ml_assets.dagster_host.instance import DAEMON_SILENCE_SECONDS, on_a_cluster
from ml_assets.foundation.checkout import ROOT

PAGES_PORT, CODE_PORT = 3000, 4000
"""Ports of the webserver and of the code location. The chart's 80 is closed to a process that is not root."""

KUBERNETES = Path("deployment", "kubernetes")
CLUSTER = KUBERNETES / "base" / "dagster.yaml"
HELM = KUBERNETES / "helm-values.yaml"


def rendered() -> dict[Path, str]:
    """Return the text of each file, by its path below the root of the checkout."""
    return {
        CLUSTER: _text(
            "Dagster's instance on a cluster.\n"
            "Rendered by `make render` from ml_assets/dagster_host/instance.py, which says why: change it there.",
            on_a_cluster(),
        ),
        HELM: _text(
            "For Dagster's own Helm chart, in place of base/platform.yaml and base/dagster.yaml:\n"
            "  kubectl apply -k deployment/kubernetes/teams/YOURS   # namespace, accounts, limits, network\n"
            f"  helm install dagster dagster/dagster --version {version('dagster')} -n team-YOURS -f YOURS.yaml\n"
            "YOURS.yaml is a copy of this file with your address of PostgreSQL and the digest of your image.\n"
            "Rendered by `make render` from deployment/render.py and ml_assets/dagster_host/instance.py: they say why.",
            helm_values(),
        ),
    }


def helm_values() -> dict[str, Any]:
    """Return the chart's values: the settings of a cluster in the chart's words, and its pods as in `platform.yaml`.

    The chart writes PostgreSQL's storage itself and accepts no other. So events are stored in batches, but without kept
    connections. Settings for which the chart has no word go into `additionalInstanceConfig`.
    """
    instance = on_a_cluster()
    del instance["storage"]
    launcher = instance.pop("run_launcher")["config"]
    queue = {
        **instance.pop("run_queue"),
        "max_concurrent_runs": instance.pop("concurrency")["runs"]["max_concurrent_runs"],
    }
    every_pod = {  # the same objects, so that YAML writes them once, and a reader changes the digest once
        "image": {
            # The chart joins repository and tag by a colon; that is how a digest gets in.
            "repository": "registry.example.com/ml-assets-platform@sha256",
            "tag": "0" * 64,
            "pullPolicy": "IfNotPresent",
        },
        "envConfigMaps": [{"name": name} for name in launcher["env_config_maps"]],
        "envSecrets": [{"name": name} for name in launcher["env_secrets"]],
        "podSecurityContext": _camel(dagster_instance.pod_security()),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "tolerations": _camel(dagster_instance.lost_node_tolerations()),
    }
    pages = {"httpGet": {"path": "/server_info", "port": PAGES_PORT}}
    return {
        "global": {
            "postgresqlSecretName": "dagster-postgresql",  # `postgresql-password`, made by hand as the other Secrets
            "serviceAccountName": "dagster",
        },
        "rbacEnabled": False,  # the chart's role may do more than ours
        "serviceAccount": {"create": False, "name": "dagster"},
        "generatePostgresqlPasswordSecret": False,
        "telemetry": instance.pop("telemetry"),
        "postgresql": {
            "enabled": False,
            "postgresqlHost": "postgresql.example.com",
            "postgresqlUsername": "platform",
            "postgresqlDatabase": "dagster",
        },
        "rabbitmq": {"enabled": False},
        "redis": {"enabled": False},
        "flower": {"enabled": False},
        "dagsterWebserver": {
            "labels": {"app": "webserver"},  # by which network.yaml knows it
            **every_pod,
            "service": {"port": PAGES_PORT},
            "readinessProbe": {**deepcopy(pages), "periodSeconds": 5},
            **_probes(
                pages,
                {"periodSeconds": 5, "failureThreshold": 60},
                {"timeoutSeconds": 10, "periodSeconds": 20, "failureThreshold": 6},
            ),
        },
        "dagsterDaemon": {
            "labels": {"app": "daemon"},
            **every_pod,
            "runCoordinator": {
                "enabled": True,
                "type": "QueuedRunCoordinator",
                "config": {"queuedRunCoordinator": _camel(queue)},
            },
            "runMonitoring": _camel(instance.pop("run_monitoring")),
            "runRetries": _camel(instance.pop("run_retries")),
            "schedules": _camel(instance.pop("schedules")),
            "sensors": _camel(instance.pop("sensors")),
            "heartbeatTolerance": DAEMON_SILENCE_SECONDS,
            **_command_probes("dagster-daemon", "liveness-check"),
        },
        "dagster-user-deployments": {
            "enabled": True,
            "deployments": [
                {
                    "name": "code-location",
                    "labels": {"app": "code-location"},
                    **every_pod,
                    "dagsterApiGrpcArgs": ["-m", "ml_assets.definitions", "--location-name", "ml_assets"],
                    "port": CODE_PORT,
                    "includeConfigInLaunchedRuns": {"enabled": False},  # runs have an account of their own
                    **_command_probes("dagster", "api", "grpc-health-check", "-p", str(CODE_PORT)),
                }
            ],
        },
        "computeLogManager": {
            "type": "S3ComputeLogManager",
            "config": {"s3ComputeLogManager": _camel(instance.pop("compute_logs")["config"])},
        },
        "runLauncher": {
            "type": "K8sRunLauncher",
            "config": {
                "k8sRunLauncher": {
                    "imagePullPolicy": "IfNotPresent",
                    "envConfigMaps": every_pod["envConfigMaps"],
                    "envSecrets": every_pod["envSecrets"],
                    "runK8sConfig": _run_pod(launcher),
                }
            },
        },
        "additionalInstanceConfig": instance,
    }


def _run_pod(launcher: dict[str, Any]) -> dict[str, Any]:
    """Return the pod of a run. The chart gives it Dagster's account, so the pod names the one for runs itself."""
    pod = _camel(launcher["run_k8s_config"])
    pod["podSpecConfig"]["serviceAccountName"] = launcher["service_account_name"]
    return pod


def _command_probes(*command: str) -> dict[str, Any]:
    """Return the probes of a pod that a command asks. It starts Python each time, so it runs seldom, and has minutes:
    on a busy node it took longer than 30 s three times, and a healthy daemon was killed.
    """
    return _probes(
        {"exec": {"command": list(command)}},
        {"timeoutSeconds": 300, "periodSeconds": 15, "failureThreshold": 40},
        {"timeoutSeconds": 300, "periodSeconds": 60, "failureThreshold": 3},
    )


def _probes(how: dict[str, Any], start: dict[str, int], live: dict[str, int]) -> dict[str, Any]:
    """Return both probes, with copies of `how`. The chart leaves a startup probe out that does not say `enabled`."""
    return {
        "startupProbe": {"enabled": True, **deepcopy(how), **start},
        "livenessProbe": {**deepcopy(how), **live},
    }


def _camel(value: Any) -> Any:
    """Return `value` with keys as Kubernetes and the chart write them: `run_as_user` becomes `runAsUser`."""
    match value:
        case dict():
            return {_camel_name(name): _camel(inner) for name, inner in value.items()}
        case list():
            return [_camel(inner) for inner in value]
        case _:
            return value


def _camel_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _text(header: str, content: dict[str, Any]) -> str:
    lines = "".join(f"# {line}\n" for line in header.splitlines())
    return lines + yaml.safe_dump(content, sort_keys=False, width=120)


def main() -> None:
    """Write each file that differs from its rendering, and name it."""
    for path, text in {**rendered(), **reference(), **claims_tables(ROOT)}.items():
        if not (ROOT / path).exists() or (ROOT / path).read_text() != text:
            (ROOT / path).write_text(text)
            sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
