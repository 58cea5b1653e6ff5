"""Watches of an attempt's objects: a change rings, and a watch that ends or breaks hides none."""

import time
from typing import Any

import pytest

from ml_assets_tests.resources.launcher.api_server import NAMESPACE, ApiServer
from ml_assets_tests.resources.launcher.launched_here import LaunchedHere, with_pod
from ml_assets_tests.resources.launcher.pod_documents import CREATED, pod
from resources.job.errors import ClusterRefused
from resources.launcher.kubernetes import cluster
from resources.launcher.kubernetes.changes import Changes
from resources.launcher.kubernetes.cluster import Cluster, Kind

POD = {"metadata": {"name": "p", "labels": {"of": "job"}}}
PODS: dict[Kind, tuple[str, str]] = {"pod": ("of=job", "")}
SECONDS = 10.0


def rings_after(changes: Changes) -> float:
    """Return the seconds until something has changed; 10 if nothing does."""
    began = time.monotonic()
    while not changes.taken() and time.monotonic() - began < SECONDS:
        time.sleep(0.02)
    return time.monotonic() - began


def test_the_first_look_and_each_change_ring(api: ApiServer) -> None:
    with Changes(Cluster(NAMESPACE, patience_seconds=1), PODS) as changes:
        assert changes.taken()
        assert rings_after(changes) < SECONDS  # the watch is open
        api.put("pods", POD)
        assert rings_after(changes) < SECONDS
    assert "pods" in api.watched
    assert api.requests == []


@pytest.mark.parametrize("status", [401, 500, 0], ids=["expired", "away", "cut"])
def test_a_broken_watch_rings_and_is_opened_again(api: ApiServer, status: int) -> None:
    api.trouble("GET", "watch=True", status, times=2)
    with Changes(Cluster(NAMESPACE, patience_seconds=1), PODS) as changes:
        assert changes.taken()
        for _ in range(3):
            assert rings_after(changes) < SECONDS
    assert api.troubles[0].times == 0
    assert len(api.watched) > 0


def test_a_watch_that_is_silent_for_too_long_rings(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was lost closes no connection; one that lives sends bookmarks."""
    monkeypatch.setattr(cluster, "SILENCE_SECONDS", 0.2)  # the server of this test is silent for a second
    with Changes(Cluster(NAMESPACE, patience_seconds=1), PODS) as changes:
        assert changes.taken()
        for _ in range(3):
            assert rings_after(changes) < SECONDS
    assert len(api.watched) > 1


def test_a_launcher_that_may_not_watch_names_its_role(api: ApiServer, launch: LaunchedHere) -> None:
    api.on_job = with_pod(pod(0, state={"running": {"startedAt": CREATED}}))
    api.trouble("GET", "watch=True", 403, times=999)
    with pytest.raises(ClusterRefused, match="bind the launcher's role"):
        launch.run()
    assert api.names("jobs") == []


def test_a_watch_that_ends_by_a_fault_does_not_end_in_silence(api: ApiServer) -> None:
    """A launcher without a watch would wait for a change for ever."""
    unknown: Any = {"balloon": ("", "")}
    with Changes(Cluster(NAMESPACE, patience_seconds=1), unknown) as changes, pytest.raises(KeyError):
        _ = [rings_after(changes) for _ in range(2)]
