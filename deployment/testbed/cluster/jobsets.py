"""JobSet on a running cluster: it restarts the Jobs of a training without a launcher."""

from typing import Any

import yaml

from deployment.testbed.cluster.cluster_record import ClusterRecord
from deployment.testbed.cluster.controllers import Controller, with_image

_SETTINGS = {
    "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
    "kind": "Configuration",
    "leaderElection": {"leaderElect": False},
    "internalCertManagement": {"enable": True},
}


def install(held: ClusterRecord) -> None:
    """Install JobSet, or its missing parts; return when it accepts JobSets. Raise `BuildFailed`, `CommandFailed` or
    `ServerFailed`.
    """
    trial = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "trial", "namespace": "default"},
        "spec": {},
    }
    Controller(module="jobset", title="JobSet", trial=trial, changed=_changed, source=__file__).install(held)


def _changed(one: dict[str, Any], image: str) -> dict[str, Any]:
    if one["kind"] == "Deployment":
        with_image(one, image)
    if one["kind"] == "ConfigMap":
        one["data"]["controller_manager_config.yaml"] = yaml.safe_dump(_SETTINGS)
    return one
