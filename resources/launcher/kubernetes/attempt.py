"""One attempt of a training on the cluster: start it or attach to it, watch it to its end.

Here: the requests to the API and their times. Not here: the meaning of the answers (classify), the number of
attempts (launcher), the removal of objects (prune).
"""

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from resources.job.errors import TrainingFailed
from resources.launcher.kubernetes.attempt_objects import (
    HOPELESS_SECONDS,
    JOB_UID,
    QueuePosition,
    may_be_smaller,
    why_not_admitted,
)
from resources.launcher.kubernetes.capacity import CapacityProbe, Reservation
from resources.launcher.kubernetes.changes import Changes
from resources.launcher.kubernetes.classify import (
    AttemptEnd,
    StartTimeouts,
    are_done,
    began,
    condition,
    end_of,
    fitting,
    read_pod_events,
    why_no_pods,
    why_not_started,
)
from resources.launcher.kubernetes.cluster import AlreadyThere, Cluster, Document, Kind
from resources.launcher.kubernetes.lease import LeaseLost
from resources.launcher.kubernetes.output import LogTail, PodsOutput, RestartEstimate
from resources.launcher.kubernetes.pod_state import Pod
from resources.launcher.kubernetes.queue_priority import REFRESH_SECONDS, QueuePriority, level_of
from resources.launcher.resource_profile import ResourceProfile
from resources.settings import KubernetesSettings
from resources.words import name_some

POLL_SECONDS = 0.5
"""Least seconds between two reads of an attempt's objects, which are read only after a change (changes)."""
POLL_SECONDS_A_POD = 0.003
"""Seconds between two reads, per pod. The list of hundreds of pods has megabytes."""
SETTLE_SECONDS = 12.0
"""Seconds for the other pods to notice a failed pod and to end."""
LOST_SECONDS = 3.0
"""Seconds instead of `SETTLE_SECONDS` if a node is lost. The other pods hang in a collective and report nothing."""
ROOM_SECONDS = 5.0
"""Seconds that an elastic training waits for nodes for all its pods. Then it begins with the pods that have one."""
_OVERDUE_SECONDS = 3.0
_LOG_SECONDS = 5.0
_EVENTS_SECONDS = 2.0
"""Seconds before the first request for events, and between two requests."""
_QUEUE_SECONDS = 10.0
"""Seconds between two requests for the position in the queue, while the training waits."""
_ROOM_LOOK_SECONDS = 2.0
"""Seconds between two requests for the placeholders of an elastic training that may grow."""
_BY_TAINT = "DeletionByTaintManager"


def start(
    cluster: Cluster, manifest: Document, service_of: Callable[[Document], Document]
) -> Document | None:
    """Create the Job and its Service (`service_of` the Job); return the Job. None if a Job of this name is being
    deleted."""
    try:
        document = cluster.create("job", manifest)
    except AlreadyThere:  # our own earlier request, whose answer was lost
        found = cluster.get("job", manifest["metadata"]["name"])
        if found is None or found["metadata"].get("deletionTimestamp"):
            return None
        document = found
    with suppress(AlreadyThere):
        cluster.create("service", service_of(document))
    return document


def newest(cluster: Cluster, selector: str) -> Document | None:
    """Return the newest Job that is not being deleted, or None."""
    found = [one for one in cluster.list("job", selector) if not one["metadata"].get("deletionTimestamp")]
    return max(found, key=lambda one: str(one["metadata"]["creationTimestamp"]), default=None)


def size_of(job: Document) -> int:
    """Return the number of a Job's pods."""
    return int(job["spec"]["completions"])


def pods_of(cluster: Cluster, selector: str) -> list[Pod]:
    """Return the pods that match a selector."""
    return [Pod.of(document) for document in cluster.list("pod", selector)]


@dataclass(kw_only=True)
class AttemptWatcher:
    """Follows a Job to its end and passes on its log lines."""

    cluster: Cluster
    job: Document
    """Its Job, as it was last read."""
    profile: ResourceProfile
    settings: KubernetesSettings
    logs: LogTail
    output: PodsOutput
    lost: threading.Event
    """Set when another launcher leads the training."""
    grow_after: float = math.inf
    """Seconds from the start of the pods to the search for room for more, if there are fewer than the most."""
    earlier: Collection[str] = ()
    """Uids of the Job's pods that ended before a queue admitted it again."""
    queued: Document | None = None
    """JobSet or TrainJob that a queue admits; None if that is the Job itself."""
    share_nodes: Callable[[Collection[str]], None] = lambda _: None
    """Tells these pods, by their uids, that a queue admitted them together."""

    def __post_init__(self) -> None:
        self._nodes = size_of(self.job)
        self._known: dict[str, Pod] = {}
        self._was_whole = False
        self._is_placed = False
        self._placed_at = 0.0
        self._running_since: float | None = None
        self._trouble_since: float | None = None
        self._heard: dict[str, tuple[float, list[Document]]] = {}
        uid = str(self.job["metadata"]["uid"])
        # A Job that a queue admits again holds other places than before, which are counted apart.
        key = f"{uid}/{len(self.earlier)}" if self.earlier else uid
        self._reservation = Reservation(key, self.profile)
        self._grown: int | None = None
        # With a queue, never grow: a larger attempt might wait behind others while the smaller one could train.
        self._stays = self._nodes >= self.profile.most_nodes or self.profile.queue is not None
        self._queued = ""
        self._priority = QueuePriority(self.cluster, self.output.say)
        self._refused_since: float | None = None
        self._admitted: int = 0
        self._told = set[str]()
        self._has_news = True
        self._asked_again: dict[str, float] = {}

    def end(self) -> AttemptEnd:
        """Wait for the end of the attempt and return it. Raise `LeaseLost` once `lost` is set."""
        name, uid = str(self.job["metadata"]["name"]), str(self.job["metadata"]["uid"])
        of_job = f"batch.kubernetes.io/controller-uid={uid}"
        document: Document | None = None
        pods: list[Pod] = []
        watched: dict[Kind, tuple[str, str]] = {"job": ("", f"metadata.name={name}"), "pod": (of_job, "")}
        with Changes(self.cluster, watched, self.output.say) as changes:
            while True:
                self._deliver()
                if self.lost.is_set():
                    raise LeaseLost
                self._has_news = changes.taken()
                if self._has_news:
                    # Of a pod that was removed since the last read, only the watch tells how it ended. Asked before
                    # the read: a pod that is made after it was not removed.
                    told = changes.pods.copy()
                    document = self.cluster.get("job", name)
                    found = {pod.uid: pod for pod in pods_of(self.cluster, of_job)}
                    self._take({**told, **found})
                    pods = [pod for uid, pod in self._known.items() if uid in found]
                    self.logs.look(pods)
                if document is None or document["metadata"]["uid"] != uid:
                    return self._deleted()
                self.job = document
                if document["metadata"].get("deletionTimestamp"):
                    return self._deleted()
                if (end := self._looked_at(document, pods)) is not None:
                    return end

    def _take(self, pods: Mapping[str, Pod]) -> None:
        """Take the newest states of the Job's pods that belong to this attempt. `pods`: uid → pod.

        A queue that evicts an elastic training and has room for fewer pods admits the same Job again at once. Its new
        pods do not count: the next attempt replaces them.
        """
        own = {
            uid: pod for uid, pod in pods.items() if uid not in self.earlier and not self._knows_later(pod)
        }
        self._known.update({uid: pod for uid, pod in own.items() if uid in self._known})
        if self.profile.queue is None or not self._is_ending:
            self._known.update(own)

    def _knows_later(self, pod: Pod) -> bool:
        """True if a later state of the pod is known: a watch that broke keeps the state that it told last."""
        known = self._known.get(pod.uid, pod)
        return (known.has_ended and not pod.has_ended) or (known.deleted is not None and pod.deleted is None)

    @property
    def _is_ending(self) -> bool:
        """True if a pod was deleted or has failed: no other pod will join this attempt."""
        return any(
            pod.deleted is not None or (pod.has_ended and pod.exit_code != 0) for pod in self._known.values()
        )

    def _looked_at(self, document: Document, pods: list[Pod]) -> AttemptEnd | None:
        """Return the end of the attempt if its Job and pods, as last read, have come to one by now."""
        queued = self._asked_queue(document)
        if queued is not None:
            self._refresh_priority(queued)
        if (reading := self._reservation.changed(pods, self.cluster.now())) is not None:
            self.output.tell([reading])
        self._take_size(document, pods)
        if (end := self._held_back(document, queued) or self._not_begun(document, pods)) is not None:
            return end
        self._grow(pods)
        return self._over(document, pods)

    def _take_size(self, document: Document, pods: list[Pod]) -> None:
        """Take the number of pods that the queue admitted. Once all exist, tell it the pods, which wait for it."""
        size = size_of(document)
        if document["spec"].get("suspend") or not may_be_smaller(document) or self._is_ending:
            return
        if size != self._admitted:
            self._admitted = self._nodes = size
            self.output.say(f"queue {self.profile.queue} admitted {size} of {self.profile.most_nodes} pods")
        uids = {pod.uid for pod in pods}
        if len(uids) == size and uids != self._told:
            self.share_nodes(uids)
            self._told = uids

    def _is_due(self, what: str, seconds: float) -> bool:
        """Return True at each change of Job or pods, and every `seconds`: when to request `what`, which is not
        watched.
        """
        now = time.monotonic()
        is_due = self._has_news or now >= self._asked_again.get(what, 0.0)
        if is_due:
            self._asked_again[what] = now + seconds
        return is_due

    @cached_property
    def _capacity(self) -> CapacityProbe:
        """Search for room for more pods; only for an attempt that may grow."""
        return CapacityProbe(self.cluster, self.job, self.profile.most_nodes - self._nodes)

    @property
    def pods(self) -> list[Pod]:
        """Pods of the attempt in their last known state."""
        return list(self._known.values())

    def _deleted(self) -> AttemptEnd:
        """Return the end of an attempt whose Job is gone: a JobSet deletes it as soon as its pods have failed."""
        if any(pod.exit_code for pod in self.pods):
            self.logs.finish(_LOG_SECONDS)
            return end_of(self.job, self.pods, (), self.profile, self.output.reason)
        return AttemptEnd(kind="preempted", said=f"the Job {self.job['metadata']['name']} was deleted")

    def _deliver(self) -> None:
        """Pass on the log lines of the pods until the next look is due."""
        until = time.monotonic() + max(POLL_SECONDS, self._nodes * POLL_SECONDS_A_POD)
        while (left := until - time.monotonic()) > 0 and not self.lost.is_set():
            self.logs.deliver(left)

    def _waits(self, document: Document) -> bool:
        """True if the queue has not admitted the Job yet."""
        return bool(document["spec"].get("suspend")) and self._running_since is None

    def _asked_queue(self, document: Document) -> list[Document] | None:
        """Return Kueue's record of the Job; None without a queue, and if it is not due."""
        seconds = _QUEUE_SECONDS if self._waits(document) else REFRESH_SECONDS
        if self.profile.queue is None or not self._is_due("queue", seconds):
            return None
        return self._workloads()

    def _held_back(self, document: Document, queued: list[Document] | None) -> AttemptEnd | None:
        """Log why the queue does not admit the Job. Return the end of the attempt if the queue never will."""
        queue = self.profile.queue
        if queue is None or queued is None or not self._waits(document):
            return None
        # At an eviction the queue gives the Job all of its pods back, and its message is about them.
        least, most = self.profile.least_nodes, size_of(document)
        is_smaller = may_be_smaller(document)
        place = QueuePosition.of(queued, least / most if is_smaller else 1.0)
        if place.waits_for not in ("", self._queued):
            self._queued = place.waits_for
            for_pods = f" for at least {least} of {most} pods" if is_smaller else ""
            self.output.say(f"waits in queue {queue}{for_pods}: {place.waits_for}")
        error = why_not_admitted(place, queue)
        if error is None:
            self._refused_since = None
            return None
        self._refused_since = self._refused_since or time.monotonic()
        # Without a position Kueue may be away; with one, it has decided.
        allowed = min(
            self.settings.unschedulable_seconds, HOPELESS_SECONDS if place.is_hopeless else math.inf
        )
        is_final = time.monotonic() - self._refused_since > allowed
        return AttemptEnd(kind="failed", said=str(error), error=error) if is_final else None

    def _workloads(self) -> list[Document]:
        """Return Kueue's record of the training."""
        return self.cluster.workloads(f"{JOB_UID}={(self.queued or self.job)['metadata']['uid']}")

    def _refresh_priority(self, queued: list[Document]) -> None:
        """Tell the queue what an eviction would lose, or how long the training waits."""
        bound = 3600 * self.settings.waiting_hours
        for workload in queued:
            level = level_of(workload, self.output.pace.saved_at, self.cluster.now(), bound)
            self._priority.raise_to(workload, level)

    def _not_begun(self, document: Document, pods: list[Pod]) -> AttemptEnd | None:
        """Return the end of an attempt that cannot begin with its pods as they are; None if it can or may."""
        is_whole = len(pods) == self._nodes
        self._was_whole |= is_whole
        self._is_placed |= is_whole and all(pod.is_scheduled for pod in pods)
        now = self.cluster.now()
        age = (now - began(document)).total_seconds()
        nodes = None if self._is_placed else fitting(pods, self._nodes, self.profile)
        if nodes is not None and age > ROOM_SECONDS:
            return AttemptEnd(kind="resized", said=f"{nodes} of {self._nodes} pods have a node", nodes=nodes)
        if self._running_since is None and is_whole and all(pod.has_started for pod in pods):
            self._running_since = time.monotonic()
            self._placed_at = max((pod.placed or pod.created).timestamp() for pod in pods)
            where = name_some(sorted({pod.node for pod in pods}))
            since = "was created" if self.profile.queue is None else "was admitted by its queue"
            self.output.say(f"{len(pods)} pods run on {where}, {age:.0f} s after the Job {since}")
        error = self._why_not(document, pods, now)
        return error and AttemptEnd(kind="failed", said=str(error), error=error)

    def _why_not(self, document: Document, pods: list[Pod], now: datetime) -> TrainingFailed | None:
        """Return the failure of pods that cannot be created or do not start; None without one."""
        timeouts = StartTimeouts(start=self.settings.unschedulable_seconds, pull=self.settings.pull_seconds)
        is_held = document["spec"].get("suspend") or condition(document, "Failed") is not None
        is_late = (now - began(document)).total_seconds() > _EVENTS_SECONDS
        if not self._was_whole and not is_held and is_late and self._is_due("events", _EVENTS_SECONDS):
            events = self.cluster.events(document["metadata"]["uid"])
            if (error := why_no_pods(document, events, now, self.profile, timeouts)) is not None:
                return error
        return why_not_started(pods, self.profile, now, timeouts, self._events_of)

    def _events_of(self, pod: Pod) -> list[Document]:
        """Return the events of a late pod, requested at most every 2 s. Log the newest once: a pull may take long."""
        asked, events = self._heard.get(pod.uid, (-math.inf, []))
        if time.monotonic() - asked > _EVENTS_SECONDS:
            events = self.cluster.events(pod.uid)
            if events and pod.uid not in self._heard:
                self.output.say(f"{pod.named} has not started yet: {read_pod_events(events)[-1].message}")
            self._heard[pod.uid] = time.monotonic(), events
        return events

    def _grow(self, pods: list[Pod]) -> None:
        """Delete the running pods, which save and end, if there is room for more pods and a restart with them pays."""
        if self._running_since is None or self._grown or self._stays or self._trouble_since is not None:
            return
        estimate = self.output.pace.estimate(self._placed_at)
        if estimate is None or time.monotonic() - self._running_since < self.grow_after:
            return
        if not self._pays(estimate, self.profile.most_nodes) or not self._is_due("room", _ROOM_LOOK_SECONDS):
            return
        if more := self._capacity.found():
            grown = self._nodes + more
            if self._pays(estimate, grown):
                self._grown = grown
                self.output.say(
                    f"there is room for {more} more pods: asking the running pods to save and end"
                )
                for pod in pods:
                    self.cluster.delete("pod", pod.name, grace_seconds=self.profile.grace_seconds)

    def _pays(self, estimate: RestartEstimate, grown: int) -> bool:
        """True if the training would end earlier with `grown` pods. If not, stop probing for capacity: the remaining
        work only shrinks.
        """
        self._stays = not estimate.pays(self._nodes, grown)
        if self._stays:
            self._capacity.give_up()
            self.output.say(
                f"no longer looking for room for more pods: {estimate.why_not(self._nodes, grown)}"
            )
        return not self._stays

    def _over(self, document: Document, pods: list[Pod]) -> AttemptEnd | None:
        """Return the end of the attempt once its pods have ended or had their time to end; else None."""
        present = {pod.uid for pod in pods}
        absent = [pod for pod in self._known.values() if pod.uid not in present]
        if self._trouble_since is None and _in_trouble(
            document, pods, absent, self.profile, self.cluster.now()
        ):
            self._trouble_since = time.monotonic()
        settle = LOST_SECONDS if any(map(is_lost, pods)) else SETTLE_SECONDS
        is_over = self._trouble_since is not None and (
            all(pod.has_ended for pod in pods) or time.monotonic() - self._trouble_since > settle
        )
        if not is_over and condition(document, "Complete") is None and not are_done(document, pods):
            return None
        self.logs.finish(_LOG_SECONDS)
        gone = [pod for pod in absent if not pod.has_ended]
        others = [pod for pod in self._known.values() if pod not in gone]
        end = end_of(document, others, gone, self.profile, self.output.reason)
        if end.kind == "preempted" and self._grown:
            said = f"there is room for {self._grown} pods instead of {self._nodes}"
            return AttemptEnd(kind="resized", said=said, nodes=self._grown)
        queue, is_held = self.profile.queue, bool(document["spec"].get("suspend"))
        # The record of a JobSet also has its earlier evictions.
        if end.kind == "preempted" and queue is not None and (is_held or self.queued is None):
            why = QueuePosition.of(self._workloads()).given_up_for or (end.said if is_held else "")
            if why:
                said = f"queue {queue} evicted the training: {why}"
                return replace(end, said=said, nodes=self.profile.most_nodes)
        return end


def _in_trouble(
    job: Document, pods: list[Pod], absent: list[Pod], profile: ResourceProfile, now: datetime
) -> bool:
    def is_bad(pod: Pod) -> bool:
        if pod.has_ended:
            return pod.exit_code != 0
        if pod.deleted is None:
            return False
        overdue = (now - pod.deleted).total_seconds() > profile.grace_seconds + _OVERDUE_SECONDS
        return overdue or is_lost(pod)

    has_lost = any(pod.exit_code != 0 for pod in absent)
    return has_lost or condition(job, "Failed") is not None or any(map(is_bad, pods))


def is_lost(pod: Pod) -> bool:
    """True if the pod's node does not answer. The pod then never receives its deletion."""
    return pod.deleted is not None and pod.disrupted.startswith(_BY_TAINT)
