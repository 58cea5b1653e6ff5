"""Kubeflow Trainer on a running cluster: it makes a JobSet of each TrainJob. JobSet is installed before."""

from typing import Any

from deployment.testbed.cluster.cluster_record import ClusterRecord
from deployment.testbed.cluster.controllers import Controller, with_image

_SECRET = "kubeflow-trainer-webhook-cert"


def install(held: ClusterRecord) -> None:
    """Install Trainer, or its missing parts; return when it accepts TrainingRuntimes. Raise `BuildFailed`,
    `CommandFailed` or `ServerFailed`.
    """
    trial = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": "trial", "namespace": "default"},
        "spec": {"template": {"spec": {}}},
    }
    Controller(
        module="trainer",
        title="Kubeflow Trainer",
        trial=trial,
        changed=_changed,
        source=__file__,
        # Its overlay `manager`, without JobSet, which that fetches from the network.
        manifests=(
            "manifests/overlays/manager/namespace.yaml",
            *(f"manifests/base/{one}" for one in ("crds", "manager", "rbac", "webhook")),
        ),
        kustomized={
            "namespace": "kubeflow-system",
            "secretGenerator": [{"name": _SECRET, "options": {"disableNameSuffixHash": True}}],
        },
    ).install(held)


def _changed(one: dict[str, Any], image: str) -> dict[str, Any]:
    if one["kind"] == "Deployment":
        with_image(one, image)
    return one
