"""Requests to the API server as the administrator, without kubectl.

Here: reading, for waits and status. Everything else uses kubectl.
"""

import json
import ssl
import urllib.error
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

from deployment.testbed.cluster.cluster_layout import ClusterLayout
from deployment.testbed.processes import ServerFailed

SECONDS = 5.0


class ApiSilent(ServerFailed):
    """The API server does not answer, or answers with an error. The message quotes its answer."""


def get(layout: ClusterLayout, path: str) -> Any:
    """Return the API server's answer at `path`, parsed if it is JSON, else text. Raise `ApiSilent`."""
    try:
        context = _context(layout.pki)
        with urllib.request.urlopen(f"{layout.api}{path}", timeout=SECONDS, context=context) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, OSError) as error:
        raise ApiSilent(f"{layout.api}{path}: {error}") from error
    return json.loads(text) if text.startswith(("{", "[")) else text


def why_not_ready(layout: ClusterLayout) -> str:
    """Return the reason why the API server is not ready; empty if it is."""
    try:
        get(layout, "/readyz")
    except ApiSilent as error:
        return str(error)
    return ""


def why_node_not(layout: ClusterLayout, name: str, since: datetime) -> str:
    """Return the reason why the node is not Ready; empty if it has reported Ready since then.

    Its last report from before a kill stays on record until the controller notices.
    """
    try:
        node = get(layout, f"/api/v1/nodes/{name}")
    except ApiSilent as error:
        return str(error)
    for condition in node["status"].get("conditions", []):
        if condition["type"] == "Ready":
            # Kubernetes writes whole seconds.
            if datetime.fromisoformat(condition["lastHeartbeatTime"]) < since.replace(microsecond=0):
                break
            return "" if condition["status"] == "True" else f"{name} is not ready: {condition['message']}"
    return f"{name} has not reported yet"


def _context(pki: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
    return context
