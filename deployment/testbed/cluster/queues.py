"""Kueue on a running cluster: queues with quotas, through which trainings get nodes.

Here: its image, its own manifests with the few changes for a machine without a registry, and its readiness check. The
queues are in the chart of `deployment/helm`, or in a test.
"""

import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

import yaml

from deployment.testbed.build import MODULES, build, kept, read_module, recipe_of
from deployment.testbed.cluster import cluster_parts, images
from deployment.testbed.cluster.cluster_record import ClusterRecord
from deployment.testbed.cluster.commands import CommandFailed, run
from deployment.testbed.processes import ServerFailed

_GROUP = "kueue.x-k8s.io"
MANAGED = "ml-assets/queues"
"""Label of the namespaces whose Jobs Kueue handles. Jobs of other namespaces do not need a working Kueue."""
READY_SECONDS = 90.0
_POLL_SECONDS = 0.5
_SETTINGS = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "health": {"healthProbeBindAddress": ":8081"},
    "metrics": {"bindAddress": ":8443"},
    "webhook": {"port": 9443},
    "leaderElection": {"leaderElect": False},
    "clientConnection": {"qps": 300, "burst": 600},
    "internalCertManagement": {"enable": True},
    "manageJobsWithoutQueueName": False,
    "integrations": {"frameworks": ["batch/job"]},
    # The presence of this key switches fair sharing on.
    "fairSharing": {"preemptionStrategies": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]},
}


def install(held: ClusterRecord) -> None:
    """Install Kueue, or its missing parts; return when it accepts Jobs. Raise `BuildFailed`, `CommandFailed` or
    `ServerFailed`.
    """
    image, archive, manifests = _made(held)
    cluster_parts.import_images(held, {image: archive}, held.layout.numbers)
    cluster_parts.kubectl(
        held, "apply", "--server-side", "--force-conflicts", "--filename", manifests, seconds=120
    )
    began = time.monotonic()
    while reason := _why_not(held):
        if time.monotonic() - began > READY_SECONDS:
            raise ServerFailed(f"Kueue does not answer after {READY_SECONDS:.0f} s: {reason}")
        time.sleep(_POLL_SECONDS)


def _why_not(held: ClusterRecord) -> str:
    """Return the reason why its webhooks do not answer; empty once they do. No Job can be created without them."""
    trial = {"apiVersion": f"{_GROUP}/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "trial"}}
    try:
        cluster_parts.kubectl(
            held, "apply", "--server-side", "--dry-run=server", "--filename=-", stdin=json.dumps(trial)
        )
    except CommandFailed as error:
        return str(error)
    return ""


def _made(held: ClusterRecord) -> tuple[str, Path, Path]:
    """Return name and archive of the image, and the file with all objects. They are made once per version."""
    module = read_module("kueue")
    program = build("kueue") / "kueue"
    image = f"localhost/ml-assets/kueue:{module.version}"
    recipe = hashlib.sha256(recipe_of(Path(__file__)).encode()).hexdigest()[:12]

    def fill(scratch: Path, folder: Path) -> None:
        images.make_program(scratch / "root", image, program, folder / "image.tar")
        (folder / "objects.yaml").write_text(_objects(held, image))

    folder = kept("kueue-installed", f"{module.key}-{recipe}", fill)
    return image, folder / "image.tar", folder / "objects.yaml"


def _objects(held: ClusterRecord, image: str) -> str:
    """Return Kueue's objects from the pinned module, without an API that nothing here uses."""
    go = shutil.which("go") or "go"
    path = "sigs.k8s.io/kueue"
    told = run([go, "-C", MODULES / "kueue", "mod", "download", "-json", path], seconds=300)
    recipe = Path(json.loads(told)["Dir"]) / "config" / "default"
    said = cluster_parts.kubectl(held, "kustomize", recipe, seconds=120)
    kept = [one for one in yaml.safe_load_all(said) if one and one["kind"] != "APIService"]
    return yaml.safe_dump_all([_changed(one, image) for one in kept])


def _changed(one: dict[str, Any], image: str) -> dict[str, Any]:
    kind = one["kind"]
    if kind == "Deployment":
        spec = one["spec"]["template"]["spec"]
        spec["containers"] = [container for container in spec["containers"] if container["name"] == "manager"]
        (manager,) = spec["containers"]
        # Small requests: the nodes are small, and tests count their free resources.
        manager |= {"image": image, "imagePullPolicy": "Never", "resources": {"requests": {"cpu": "50m"}}}
        del manager["command"]  # the image has a command
        one["spec"]["replicas"] = 1
    if kind == "ConfigMap" and "controller_manager_config.yaml" in one.get("data", {}):
        one["data"]["controller_manager_config.yaml"] = yaml.safe_dump(_SETTINGS)
    if kind.endswith("WebhookConfiguration"):
        one["webhooks"] = [hook for hook in one["webhooks"] if _groups(hook) <= {_GROUP, "batch"}]
        for hook in one["webhooks"]:
            if _groups(hook) != {_GROUP}:
                hook["namespaceSelector"] = {"matchLabels": {MANAGED: "yes"}}
    return one


def _groups(hook: dict[str, Any]) -> set[str]:
    """Return the API groups of the objects that its webhooks handle."""
    return {group for rule in hook["rules"] for group in rule["apiGroups"]}
