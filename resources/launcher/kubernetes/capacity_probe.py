"""Probe for room for more pods of an elastic training. Only the scheduler knows, so placeholder pods ask it.

A placeholder is a pod like the others of its attempt, but it only prints its program's version. A placeholder that has
started shows that there is room for one more pod and that the node has the image. Then a larger attempt can replace the
current one. Not here: ending the current attempt (attempt), the size of the next one (attempt_plan).
"""

import copy
import time
from contextlib import suppress

from resources.job.errors import ClusterRefused
from resources.launcher.kubernetes.attempt_objects import ATTEMPT, CONTAINER, TRAINING
from resources.launcher.kubernetes.cluster import AlreadyThere, Cluster, Document
from resources.launcher.kubernetes.pod_state import Pod

_ROLE = "ml-assets/role"
_OF_JOB = (
    "job-name",
    "controller-uid",
    "batch.kubernetes.io/job-name",
    "batch.kubernetes.io/controller-uid",
)
"""Labels by which a Job selects its pods. A placeholder must not have them."""
_GATHER_SECONDS = 3.0
"""Seconds for the other placeholders after the first has started. Room often appears for several pods at once."""
_AGAIN_SECONDS = 15.0
"""Seconds until the next try after a quota refused a placeholder or the cluster evicted one."""


class CapacityProbe:
    """Search for room for up to `most` more pods next to those of the Job `job`, which owns the placeholders."""

    def __init__(self, cluster: Cluster, job: Document, most: int) -> None:
        self._cluster = cluster
        self._bodies = [_placeholder(job, number) for number in range(most)]
        labels = job["metadata"]["labels"]
        self._selector = f"{_ROLE}=placeholder,{TRAINING}={labels[TRAINING]},{ATTEMPT}={labels[ATTEMPT]}"
        self._since: float | None = None
        self._not_before = 0.0

    def found(self) -> int:
        """Return the number of pods for which there is room; 0 if there is none, or while the number is not known."""
        pods = [Pod.of(document) for document in self._cluster.list("pod", self._selector)]
        started = sum(pod.has_started for pod in pods)
        if started:
            self._since = self._since or time.monotonic()
            waited = time.monotonic() - self._since
            return started if started == len(self._bodies) or waited > _GATHER_SECONDS else 0
        lost = [pod for pod in pods if pod.has_ended]  # evicted before they began
        for pod in lost:
            self._cluster.delete("pod", pod.name, grace_seconds=0)
            self._not_before = time.monotonic() + _AGAIN_SECONDS
        if time.monotonic() >= self._not_before:
            self._make_missing({pod.name for pod in pods})
        return 0

    def give_up(self) -> None:
        """Delete the placeholders. One that waits would still get a node, for nothing."""
        for document in self._cluster.list("pod", self._selector):
            self._cluster.delete("pod", document["metadata"]["name"], grace_seconds=0)

    def _make_missing(self, there: set[str]) -> None:
        for body in self._bodies:
            if body["metadata"]["name"] in there:
                continue
            try:
                with suppress(AlreadyThere):
                    self._cluster.create("pod", body)
            except ClusterRefused:  # the quota is used up: no room
                self._not_before = time.monotonic() + _AGAIN_SECONDS
                return


def _placeholder(job: Document, number: int) -> Document:
    meta, template = job["metadata"], job["spec"]["template"]
    spec: Document = copy.deepcopy(template["spec"])
    (container,) = (one for one in spec["containers"] if one["name"] == CONTAINER)
    container["command"] = [container["command"][0], "--version"]
    labels = {name: value for name, value in template["metadata"]["labels"].items() if name not in _OF_JOB}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{meta['name']}-room-{number}",
            "labels": {**labels, _ROLE: "placeholder"},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
            ],
        },
        "spec": spec,
    }
