"""The doctor's trial pod shows the clock of its node. A stand-in plays the node: no real one has its own clock here."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ml_assets_tests.resources.launcher.api_server import NAMESPACE, ApiServer, serving
from resources.job.errors import ClocksDiffer
from resources.launcher.kubernetes.cluster_checks import cluster_checks
from resources.settings import KubernetesSettings, Settings


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with serving() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        yield server


def trial(api: ApiServer, home: Path, ahead: timedelta) -> str:
    """Run the trial pod on a node whose clock is ahead of the API server's; return what the doctor says."""

    def end(request: str) -> None:
        verb, kind, *names = request.split()
        if (verb, kind) != ("POST", "pods"):
            return
        (name,) = names
        pod = api.objects["pods", name]
        at = f"{datetime.now(UTC) + ahead:%Y-%m-%dT%H:%M:%SZ}"
        ended = {"exitCode": 0, "reason": "Completed", "startedAt": at, "finishedAt": at}
        pod["spec"]["nodeName"] = "node1"
        pod["status"] = {
            "phase": "Succeeded",
            "containerStatuses": [{"name": "trainer", "state": {"terminated": ended}}],
        }

    api.on_done = end
    kubernetes = KubernetesSettings(namespace=NAMESPACE, image="trainer:1")
    return dict(cluster_checks(Settings(home=home, kubernetes=kubernetes)))["cluster pods"]()


def test_a_node_with_a_wrong_clock_is_named(api: ApiServer, tmp_path: Path) -> None:
    with pytest.raises(
        ClocksDiffer, match="the clock of node1 is 60 minutes ahead of that of the API server: set it"
    ):
        trial(api, tmp_path, timedelta(hours=1))
    with pytest.raises(ClocksDiffer, match="the clock of node1 is 3 hours behind"):
        trial(api, tmp_path, timedelta(hours=-3))
    assert api.names("pods") == []


def test_seconds_between_clocks_are_none_of_its_business(api: ApiServer, tmp_path: Path) -> None:
    assert "on node1" in trial(api, tmp_path, timedelta(seconds=20))
