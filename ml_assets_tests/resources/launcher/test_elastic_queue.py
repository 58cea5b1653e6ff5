"""Elastic trainings whose queue chooses the number of pods, at moments that a real queue seldom hits."""

import json
import time
from typing import Any

import pytest

from ml_assets_tests.resources.launcher import pod_documents
from ml_assets_tests.resources.launcher.api_server import ApiServer, Document
from ml_assets_tests.resources.launcher.launched_here import LaunchedHere, now
from resources.artifacts import ArtifactsUnavailable
from resources.job.events import NODES, training_folder_name
from resources.launcher.kubernetes import attempt
from resources.launcher.resource_profile import ResourceProfile

PROFILE = ResourceProfile.model_validate({"nodes": {"min": 1, "max": 2}, "queue": "team-a"})
WHY = "Preempted to accommodate a workload (UID: 1, JobUID: 2) due to prioritization in the ClusterQueue"


def admit(api: ApiServer, job: Document, nodes: int) -> Document:
    """Start a Job with so many pods, as a queue does."""
    spec = {**job["spec"], "suspend": False, "completions": nodes, "parallelism": nodes}
    return api.put("jobs", {**job, "spec": spec, "status": {"startTime": now()}})


def put_pod(api: ApiServer, job: Document, pod: Document, uid: str) -> None:
    """Store a pod of this Job."""
    meta = job["metadata"]
    labels = {**meta["labels"], "batch.kubernetes.io/controller-uid": meta["uid"]}
    named = {"name": f"{meta['name']}-{uid}", "uid": uid, "labels": labels, "creationTimestamp": now()}
    api.put("pods", {**pod, "metadata": {**pod["metadata"], **named}})


def running(index: int, **facts: Any) -> Document:
    """Return a pod whose trainer runs."""
    return pod_documents.pod(index, state={"running": {"startedAt": pod_documents.CREATED}}, **facts)


def test_a_job_that_its_queue_admits_again_smaller_is_a_new_attempt(
    api: ApiServer, launch: LaunchedHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue evicts the Job and has room for one pod: it admits the same Job again while the pods save. The new pod
    does not delay the next attempt, which asks for all pods again and takes one.
    """
    monkeypatch.setattr(attempt, "SETTLE_SECONDS", 600.0)
    asked: list[Document] = []
    state = {"is": "new"}

    def play(api: ApiServer, job: Document) -> None:
        asked.append(job)
        if len(asked) == 1:
            admitted = admit(api, job, 2)
            for index in range(2):
                put_pod(api, admitted, running(index), f"old-{index}")
        else:
            put_pod(api, admit(api, job, 1), pod_documents.ended(0, 0), "last")

    def hear(line: str) -> None:
        if "2 pods run on" in line:
            state["is"] = "evicted"
            for index in range(2):
                put_pod(api, asked[0], running(index, deleted=now()), f"old-{index}")
        if "admitted 1 of 2" in line:
            launch.finish()

    def readmit(request: str) -> None:
        """Once the launcher has seen that the pods save."""
        if state["is"] == "evicted" and request == "GET pods":
            state["is"] = "admitted again"
            job = admit(api, api.objects["jobs", f"{launch.name}-1"], 1)
            for index in range(2):
                put_pod(api, job, pod_documents.ended(index, 75, deleted=now()), f"old-{index}")
            put_pod(api, job, running(0), "new")
            evicted = {"type": "Evicted", "status": "False", "message": f"Previously: {WHY}"}
            label = {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}
            meta = {"name": "record", "labels": label}
            api.put("workloads", {"metadata": meta, "spec": {}, "status": {"conditions": [evicted]}})

    api.on_job, api.on_done = play, readmit
    began = time.monotonic()
    launch.run(hear, PROFILE)
    assert time.monotonic() - began < attempt.SETTLE_SECONDS / 2
    assert [job["spec"]["completions"] for job in asked] == [2, 2]
    assert any(f"queue team-a evicted the training: {WHY}; 0 of" in line for line in launch.log), launch.log
    stored = launch.store.objects[f"p/{training_folder_name(launch.job)}/{NODES}"]
    assert json.loads(stored) == {"pods": ["last"]}


def test_a_queued_training_keeps_its_least_after_an_eviction_without_pods(
    api: ApiServer, launch: LaunchedHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Admitted with one of two pods and evicted before that exists, it may still be admitted with one: a quota of one
    is no reason to give it up.
    """
    monkeypatch.setattr(attempt, "HOPELESS_SECONDS", 0.0)
    monkeypatch.setattr(attempt, "_QUEUE_SECONDS", 0.1)
    state = {"is": "new", "looks": 0}

    def play(api: ApiServer, job: Document) -> None:
        admit(api, job, 1)

    def evict(line: str) -> None:
        if "admitted 1 of 2" not in line or state["is"] != "new":
            return
        state["is"] = "evicted"
        job = api.objects["jobs", f"{launch.name}-1"]
        spec = {**job["spec"], "suspend": True, "completions": 2, "parallelism": 2}
        api.put("jobs", {**job, "spec": spec, "status": {}})
        said = (
            "previously considered podsets requests (0) + current podset request (2) > maximum capacity (1)"
        )
        waits = {"type": "QuotaReserved", "status": "False", "message": said, "lastTransitionTime": now()}
        label = {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}
        meta = {"name": "record", "labels": label, "creationTimestamp": now()}
        api.put("workloads", {"metadata": meta, "spec": {}, "status": {"conditions": [waits]}})

    def admit_again(request: str) -> None:
        if state["is"] == "evicted" and request == "GET workloads":
            state["looks"] += 1
            if state["looks"] == 3:
                launch.finish()
                put_pod(
                    api,
                    admit(api, api.objects["jobs", f"{launch.name}-1"], 1),
                    pod_documents.ended(0, 0),
                    "p",
                )

    api.on_job, api.on_done = play, admit_again
    assert launch.run(evict, PROFILE).best_step == 1
    assert any("waits in queue team-a for at least 1 of 2 pods" in line for line in launch.log)


def test_after_a_takeover_the_next_attempt_asks_for_all_pods(api: ApiServer, launch: LaunchedHere) -> None:
    asked: list[Document] = []

    def play(api: ApiServer, job: Document) -> None:
        asked.append(job)
        put_pod(api, admit(api, job, 1), running(0), f"pod-{len(asked)}")
        if len(asked) == 2:
            launch.finish()
            put_pod(api, api.objects["jobs", f"{launch.name}-2"], pod_documents.ended(0, 0), "pod-2")

    def leave(line: str) -> None:
        if "1 pods run on" in line:
            raise ArtifactsUnavailable("S3 did not answer")

    def fail(line: str) -> None:
        if line.startswith("attached to "):
            put_pod(api, api.objects["jobs", f"{launch.name}-1"], pod_documents.ended(0, 3), "pod-1")

    api.on_job = play
    with pytest.raises(ArtifactsUnavailable):
        launch.run(leave, PROFILE)
    assert launch.run(fail, PROFILE).best_step == 1
    assert [job["spec"]["completions"] for job in asked] == [2, 2]
