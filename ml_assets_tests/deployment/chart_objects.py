"""Objects of the chart in `deployment/helm/everything.yaml`, for tests that have no Helm."""

from typing import Any

import yaml

from deployment.render import EVERYTHING, TEAM
from ml_assets.foundation.checkout import ROOT

Document = dict[str, Any]


def chart_objects(*kinds: str, namespace: str = TEAM) -> list[Document]:
    """Return the objects of these kinds, or of all kinds, as an installation in `namespace` has them."""
    text = (ROOT / EVERYTHING).read_text().replace(TEAM, namespace)
    return [one for one in yaml.safe_load_all(text) if one and (not kinds or one["kind"] in kinds)]


def chart_object(kind: str, name: str) -> Document:
    """Return one object."""
    (found,) = (one for one in chart_objects(kind) if one["metadata"]["name"] == name)
    return found


def pods_of_dagster() -> dict[str, Document]:
    """Return the pods of webserver, daemon and code location, by name. Ray, proxy, API and serving are options."""
    deployments = chart_objects("Deployment")
    pods = {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in deployments}
    return {
        name: pod for name, pod in pods.items() if not name.startswith(("ray-", "proxy", "api", "serving-"))
    }


def settings_of_dagster() -> Document:
    """Return the settings of Dagster in these pods."""
    return yaml.safe_load(chart_object("ConfigMap", "dagster-instance")["data"]["dagster.yaml"])
