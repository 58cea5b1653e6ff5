"""Watches of an attempt's objects: a change rings, and a watch that ends or breaks hides none."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pytest

from ml_assets_tests.resources.launcher.api_server import NAMESPACE, ApiServer
from ml_assets_tests.resources.launcher.launched_here import LaunchedHere, now, with_pod
from ml_assets_tests.resources.launcher.pod_documents import CREATED, ended, pod
from resources.job.errors import Diverged
from resources.job.training_settings import TrainingSettings
from resources.launcher.kubernetes import cluster
from resources.launcher.kubernetes.changes import Changes
from resources.launcher.kubernetes.cluster import Cluster, Kind
from resources.launcher.resource_profile import ResourceProfile

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
    with Changes(Cluster(NAMESPACE, patience_seconds=1), PODS, print) as changes:
        assert changes.taken()
        assert rings_after(changes) < SECONDS  # the watch is open
        api.put("pods", POD)
        assert rings_after(changes) < SECONDS
    assert "pods" in api.watched
    assert api.requests == []


@pytest.mark.parametrize("status", [401, 500, 0], ids=["expired", "away", "cut"])
def test_a_broken_watch_rings_and_is_opened_again(api: ApiServer, status: int) -> None:
    api.trouble("GET", "watch=True", status, times=2)
    with Changes(Cluster(NAMESPACE, patience_seconds=1), PODS, print) as changes:
        assert changes.taken()
        for _ in range(3):
            assert rings_after(changes) < SECONDS
    assert api.troubles[0].times == 0
    assert len(api.watched) > 0


def test_a_watch_that_is_silent_for_too_long_rings(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was lost closes no connection; one that lives sends bookmarks."""
    monkeypatch.setattr(cluster, "SILENCE_SECONDS", 0.2)  # the server of this test is silent for a second
    with Changes(Cluster(NAMESPACE, patience_seconds=1), PODS, print) as changes:
        assert changes.taken()
        for _ in range(3):
            assert rings_after(changes) < SECONDS
    assert len(api.watched) > 1


def test_a_launcher_that_may_not_watch_polls_and_names_the_right(
    api: ApiServer, launch: LaunchedHere
) -> None:
    """As after an upgrade of the image before that of the chart. Until 2026-11-30, it removed a training that was
    well."""
    reads: list[str] = []

    def end_at_the_third_read(request: str) -> None:
        reads.append(request)
        if request == f"GET jobs {launch.name}-1" and reads.count(request) == 3:
            launch.finish()
            with_pod(ended(0, 0), "Complete")(api, api.objects["jobs", f"{launch.name}-1"])

    api.on_job = with_pod(pod(0, state={"running": {"startedAt": CREATED}}))
    api.on_done = end_at_the_third_read
    api.trouble("GET", "watch=True", 403, times=999)
    assert launch.run().best_step == 1
    refused = [line for line in launch.log if "may not be watched" in line]
    assert len(refused) == 2
    assert all("bind the launcher's role" in line for line in refused)
    assert api.watched == []


def test_a_right_to_watch_that_is_granted_meanwhile_is_used(api: ApiServer) -> None:
    api.trouble("GET", "watch=True", 403, times=1)
    said: list[str] = []
    with Changes(Cluster(NAMESPACE, patience_seconds=1), PODS, said.append) as changes:
        assert changes.taken()
        for _ in range(3):
            assert rings_after(changes) < SECONDS
    assert len(said) == 1
    assert api.watched != []


EVICTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "EvictionByEvictionAPI",
    "message": "evicting",
}


def between_two_reads(
    api: ApiServer, launch: LaunchedHere, last: dict[str, Any], *, has_job: bool = True
) -> Callable[[str], None]:
    """Once the launcher has said that the pod runs, and before it reads again: end the pod as `last`, fail its Job, and
    remove the pod, and the Job unless `has_job`.

    Of 200 launchers on two cores, some read 27 s late. By then an evicted pod is gone.
    """
    first = f"{launch.name}-1"

    def play(line: str) -> None:
        if "pods run on" not in line or api.names("jobs") != [first]:
            return
        watches = api.watched.count("pods")
        while api.watched.count("pods") == watches:
            time.sleep(0.01)
        with api.lock:
            with_pod(last, "Failed")(api, api.objects["jobs", first])
            api.remove("pods", f"{first}-0-x")
            if not has_job:
                api.remove("jobs", first)

    return play


def test_an_eviction_is_named_though_the_pod_was_gone_at_the_next_read(
    api: ApiServer, launch: LaunchedHere
) -> None:
    def second_attempt_is_done(api: ApiServer, job: dict[str, Any]) -> None:
        if job["metadata"]["name"].endswith("-1"):
            with_pod(pod(0, state={"running": {"startedAt": CREATED}}))(api, job)
        else:
            with_pod(ended(0, 0), "Complete")(api, job)
            launch.finish()

    api.on_job = second_attempt_is_done
    evicted = ended(0, 75, deleted=now(), conditions=(EVICTED,))
    assert launch.run(between_two_reads(api, launch, evicted)).best_step == 1
    assert any(
        "attempt 1 ended: pod 0 on node1 was removed by the cluster (Evict" in line for line in launch.log
    )


@pytest.mark.parametrize("has_job", [True, False], ids=["job", "removed job"])
def test_a_final_end_counts_though_the_pod_was_gone_at_the_next_read(
    api: ApiServer, launch: LaunchedHere, has_job: bool
) -> None:
    """A JobSet removes the Job, and with it the pods, as soon as they have failed."""
    api.on_job = with_pod(pod(0, state={"running": {"startedAt": CREATED}}))
    diverged = ended(0, 65, message="the loss was nan at step 7")
    with pytest.raises(Diverged, match="nan at step 7"):
        launch.run(between_two_reads(api, launch, diverged, has_job=has_job))


def test_a_watch_that_broke_does_not_tell_an_earlier_state(api: ApiServer, launch: LaunchedHere) -> None:
    """The launcher reads that a pod diverged. Then pod and Job are removed, and the watch knows only that it ran."""
    name = f"{launch.name}-1"
    first, second = (pod(index, state={"running": {"startedAt": CREATED}}) for index in (0, 1))
    state = {"is": "new"}

    def put(document: dict[str, Any], uid: str) -> None:
        meta = api.objects["jobs", name]["metadata"]
        labels = {**meta["labels"], "batch.kubernetes.io/controller-uid": meta["uid"]}
        named = {"name": uid, "uid": uid, "labels": labels, "creationTimestamp": now()}
        api.put("pods", {**document, "metadata": {**document["metadata"], **named}})

    def begin(api: ApiServer, job: dict[str, Any]) -> None:
        api.put("jobs", {**job, "status": {"startTime": now()}})
        put(first, "first")
        put(second, "second")

    def diverge(line: str) -> None:
        if "pods run on" not in line:
            return
        watches = api.watched.count("pods")
        while api.watched.count("pods") == watches:
            time.sleep(0.01)
        put(first, "first")  # the watch tells that it runs
        api.trouble("GET", "pods.*watch=True", 500, times=999)
        watches = api.watched.count("jobs")
        while api.watched.count("jobs") < watches + 2:  # by now that of the pods has ended
            time.sleep(0.01)
        put(ended(0, 65, message="the loss was nan at step 7"), "first")
        state["is"] = "diverged"

    def remove(request: str) -> None:
        if request == "GET pods" and state["is"] == "diverged":
            state["is"] = "read"
            api.remove("pods", "first")
        elif request == "GET pods" and state["is"] == "read":
            state["is"] = "removed"
            api.remove("pods", "second")
            api.remove("jobs", name)

    api.on_job, api.on_done = begin, remove
    launch.job = dataclasses.replace(launch.job, settings=TrainingSettings(workers=2, max_attempts=1))
    with pytest.raises(Diverged, match="nan at step 7"):
        launch.run(diverge, ResourceProfile(nodes=2))


def test_a_watch_that_ends_by_a_fault_does_not_end_in_silence(api: ApiServer) -> None:
    """A launcher without a watch would wait for a change for ever."""
    unknown: Any = {"balloon": ("", "")}
    with Changes(Cluster(NAMESPACE, patience_seconds=1), unknown, print) as changes, pytest.raises(KeyError):
        _ = [rings_after(changes) for _ in range(2)]
