"""Kueue on a running cluster: queues with quotas, through which trainings get nodes.

The queues are in the chart of `deployment/helm`, or in a test.
"""

from typing import Any

import yaml

from deployment.testbed.cluster.cluster_record import ClusterRecord
from deployment.testbed.cluster.controllers import Controller, with_image

_GROUP = "kueue.x-k8s.io"
_HANDLED = {"batch", "jobset.x-k8s.io", "trainer.kubeflow.org"}
"""API groups of the objects that it queues."""
MANAGED = "ml-assets/queues"
"""Label of the namespaces whose Jobs, JobSets and TrainJobs Kueue handles. Those of other namespaces do not need a
working Kueue."""
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
    # Until the kind of a framework exists in the cluster, Kueue waits for it beside its work.
    "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset", "trainer.kubeflow.org/trainjob"]},
    # The presence of this key switches fair sharing on.
    "fairSharing": {"preemptionStrategies": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]},
}


def install(held: ClusterRecord) -> None:
    """Install Kueue, or its missing parts; return when it accepts Jobs. Raise `BuildFailed`, `CommandFailed` or
    `ServerFailed`.
    """
    trial = {"apiVersion": f"{_GROUP}/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "trial"}}
    Controller(module="kueue", title="Kueue", trial=trial, changed=_changed, source=__file__).install(held)


def _changed(one: dict[str, Any], image: str) -> dict[str, Any] | None:
    kind = one["kind"]
    if kind == "APIService":  # of an API that nothing here uses
        return None
    if kind == "Deployment":
        with_image(one, image)
    if kind == "ConfigMap" and "controller_manager_config.yaml" in one.get("data", {}):
        one["data"]["controller_manager_config.yaml"] = yaml.safe_dump(_SETTINGS)
    if kind.endswith("WebhookConfiguration"):
        one["webhooks"] = [hook for hook in one["webhooks"] if _groups(hook) <= {_GROUP, *_HANDLED}]
        for hook in one["webhooks"]:
            if _groups(hook) != {_GROUP}:
                hook["namespaceSelector"] = {"matchLabels": {MANAGED: "yes"}}
    return one


def _groups(hook: dict[str, Any]) -> set[str]:
    """Return the API groups of the objects that its webhooks handle."""
    return {group for rule in hook["rules"] for group in rule["apiGroups"]}
