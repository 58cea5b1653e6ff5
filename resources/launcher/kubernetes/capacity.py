"""Capacity of a cluster for an elastic training: the pods it holds, its next attempt, a probe for more room.

An attempt has a fixed number of pods. If fewer of them find nodes, a smaller attempt follows. If there is room for
more, a larger attempt follows. Otherwise the next attempt has the same size.

Only the scheduler knows if there is room, so placeholder pods ask it. A placeholder is a pod like the others of its
attempt, but it only prints its program's version. A placeholder that has started shows that there is room for one more
pod and that the node has the image. Then a larger attempt can replace the current one. Not here: ending an attempt
(attempt), the reason of its end (classify), hours and cost of the pods (`ml_assets.model.steps.usage`).
"""

import copy
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from resources.job.errors import ClusterRefused
from resources.job.events import TrainingEvent
from resources.job.reserved import Reserved
from resources.launcher.kubernetes.attempt_objects import ATTEMPT, CONTAINER, TRAINING, reference_to
from resources.launcher.kubernetes.classify import AttemptEnd
from resources.launcher.kubernetes.cluster import AlreadyThere, Cluster, Document
from resources.launcher.kubernetes.pod_state import Pod
from resources.launcher.resource_profile import ResourceProfile, bytes_of, cores_of


class Reservation:
    """Pods of one Job that hold resources: also while they load their image, but not while they wait for a node."""

    def __init__(self, job: str, profile: ResourceProfile) -> None:
        """`job`: uid of the Job. `profile`: resources of each pod."""
        self._job = job
        self._profile = profile
        self._since: dict[str, datetime] = {}
        self._until: dict[str, datetime] = {}
        self._told: tuple[int, int] | None = None

    def changed(self, pods: Iterable[Pod], now: datetime) -> TrainingEvent | None:
        """Take the pods of the Job as they are at `now` (UTC); return a reading if pods got a node or ended since.

        If the launcher dies, the reader adds the time up to the workers' last sign of life.
        """
        present: set[str] = set()
        for pod in pods:
            present.add(pod.uid)
            if not pod.is_scheduled:
                continue
            since = self._since.setdefault(pod.uid, pod.placed or pod.created)
            if pod.has_ended:
                self._until.setdefault(pod.uid, max(since, pod.trainer.ended or now))
        for uid in self._since.keys() - present:
            self._until.setdefault(uid, now)
        state = (len(self._since), len(self._until))
        if not self._since or state == self._told:
            return None
        self._told = state
        return self._reading(now).event()

    def _reading(self, now: datetime) -> Reserved:
        seconds = sum(
            (self._until.get(uid, now) - since).total_seconds() for uid, since in self._since.items()
        )
        return Reserved(
            job=self._job,
            at=now.timestamp(),
            began=min(self._since.values()).timestamp(),
            places=len(self._since) - len(self._until),
            place_seconds=max(0.0, seconds),
            cores=cores_of(self._profile.cpu),
            memory_bytes=bytes_of(self._profile.memory),
            gpus=self._profile.gpus,
        )


GROW_SECONDS, LONGEST_GROW_SECONDS = 10.0, 1800.0
"""Seconds until a training searches for room again: the first time, and at most."""


@dataclass(frozen=True, kw_only=True)
class AttemptPlan:
    """Plan of one attempt, and the counts of the attempts before it."""

    number: int
    """Number of the attempt, from 1; 0 before the first."""
    nodes: int
    """Number of its pods."""
    failures: int = 0
    """Earlier attempts that failed and so used budget."""
    fruitless: int = 0
    """Consecutive attempts directly before it that were preempted before they trained a step."""
    cause: str = ""
    """Cause that interrupted the last attempt that trained, if its own agents may have been unable to report it."""
    grow_after: float = GROW_SECONDS
    """Seconds from the start of its pods to the search for room for more. Doubles each time that pods did not fit."""

    def then(self) -> "AttemptPlan":
        """Return the plan of the next attempt, with the next number."""
        return replace(self, number=self.number + 1)

    def ended(self, end: AttemptEnd, *, has_trained: bool) -> "AttemptPlan":
        """Return this plan with the size and the counts that follow from the end of the attempt."""
        if end.nodes is not None and end.nodes < self.nodes:  # it never trained: the older cause stays
            longer = min(2 * self.grow_after, LONGEST_GROW_SECONDS)
            return replace(self, nodes=end.nodes, grow_after=longer)
        is_failure = end.kind == "failed"
        return replace(
            self,
            nodes=end.nodes or self.nodes,
            failures=self.failures + is_failure,
            fruitless=self.fruitless + 1 if end.kind == "preempted" and not has_trained else 0,
            cause="" if is_failure else end.said,
        )


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
            "ownerReferences": [reference_to("job", job)],
        },
        "spec": spec,
    }
