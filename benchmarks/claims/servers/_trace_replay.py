"""Replay of one policy: submits the trainings of a trace, sees them run, wait and be evicted, and counts.

Times are seconds of the trace. A training has no process: it has worked for as long as all its pods ran, less the
start of each attempt, and it is done once it has worked for its duration. It saves every `CHECKPOINT_SECONDS` of work.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from benchmarks.claims.servers._trace_queues import TRAINING, job
from resources.launcher.kubernetes.attempt_objects import JOB_UID
from resources.launcher.kubernetes.cluster import Cluster, Document
from resources.launcher.kubernetes.queue_priority import QueuePriority, level_of
from resources.launcher.protocol import pause_after

CHECKPOINT_SECONDS = 1800.0
START_SECONDS = 120.0
"""Start of an attempt, without work: images, data, the checkpoint."""
_POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class TraceJob:
    """A training of the trace."""

    number: int
    at: float
    """Submission."""
    work: float
    """Duration on its GPUs."""
    gpus: int
    team: str


@dataclass(kw_only=True)
class ReplayedTraining:
    """A training in the replay."""

    of: TraceJob
    saved: float = 0.0
    """Work in the last checkpoint."""
    attempts: int = 0
    fruitless: int = 0
    """Attempts in a row that were evicted before their first step."""
    waiting_since: float | None = None
    is_admitted: bool = False
    running_since: float | None = None
    resumes_at: float | None = None
    """Time of the next attempt, after a pause."""
    waits: list[float] = field(default_factory=list[float])
    """Ended waits, the first of them from the submission."""
    unsaved: list[float] = field(default_factory=list[float])
    """Work since the last checkpoint at each eviction."""
    lost: float = 0.0
    """GPU-seconds of lost work, and of starts after the first."""
    done_at: float | None = None

    def worked(self, now: float) -> float:
        """Return all work, saved or not."""
        ran = 0.0 if self.running_since is None else now - self.running_since - START_SECONDS
        return min(self.of.work, self.saved + max(0.0, ran))

    def last_save(self, now: float) -> float | None:
        """Return the time of this attempt's last checkpoint; None before the first."""
        saves = (self.worked(now) - self.saved) // CHECKPOINT_SECONDS
        if self.running_since is None or not saves:
            return None
        return self.running_since + START_SECONDS + saves * CHECKPOINT_SECONDS

    def evicted(self, now: float, *, saves: bool) -> None:
        """Count an eviction. `saves`: the training saves on the notice of its end."""
        worked = self.worked(now)
        unsaved = (worked - self.saved) % CHECKPOINT_SECONDS
        ran = 0.0 if self.running_since is None else now - self.running_since
        self.fruitless = self.fruitless + 1 if worked <= self.saved else 0
        self.unsaved.append(unsaved)
        self.lost += self.of.gpus * ((0.0 if saves else unsaved) + min(START_SECONDS, ran))
        self.saved = worked if saves else worked - unsaved
        self.is_admitted, self.running_since = False, None
        self.waiting_since = self.waiting_since or now


@dataclass(kw_only=True)
class PolicyReplay:
    """A policy at work on a cluster."""

    cluster: Cluster
    trainings: Sequence[ReplayedTraining]
    hours: float
    speed: float
    """Seconds of the trace per second."""
    bound: float
    """Bound on waiting."""
    is_aware: bool
    """Trainings save on notice, and launchers tell the queue what an eviction would lose, as the product does. Else
    Kueue alone decides, and evicted Jobs stay in its queue."""
    busy: dict[str, float] = field(default_factory=lambda: {"seconds": 0.0, "running": 0.0, "reserved": 0.0})
    """While trainings wait: seconds, and GPU-seconds that run and that are reserved."""

    def run(self, say: Callable[[str], None]) -> None:
        """Replay the window."""
        began = time.monotonic()
        priority = QueuePriority(self.cluster, say)
        before, told = 0.0, -1
        while (now := (time.monotonic() - began) * self.speed) < 3600 * self.hours:
            self._submit(now)
            self._look(now, now - before, priority)
            before = now
            if int(now // 3600) > told:
                told = int(now // 3600)
                say(self._line(now))
            time.sleep(_POLL_SECONDS)

    def _line(self, now: float) -> str:
        running = sum(one.of.gpus for one in self.trainings if one.running_since is not None)
        waiting = sum(one.of.gpus for one in self.trainings if one.waiting_since is not None)
        evictions = sum(len(one.unsaved) for one in self.trainings)
        return f"hour {now / 3600:.1f}: {running} GPUs run, {waiting} wait, {evictions} evictions"

    def _submit(self, now: float) -> None:
        for one in self.trainings:
            is_due = (
                one.of.at <= now if not one.attempts else one.resumes_at is not None and one.resumes_at <= now
            )
            if is_due:
                one.attempts += 1
                one.resumes_at = None
                one.waiting_since = one.waiting_since or (one.of.at if one.attempts == 1 else now)
                self.cluster.create("job", job(self._name(one), one.of.number, one.of.gpus, one.of.team))

    def _name(self, one: ReplayedTraining) -> str:
        return f"t{one.of.number}-{one.attempts}"

    def _look(self, now: float, passed: float, priority: QueuePriority) -> None:
        """Read the cluster once; change and count the trainings."""
        jobs = {one["metadata"]["name"]: one for one in self.cluster.list("job", TRAINING)}
        workloads = {one["metadata"]["labels"][JOB_UID]: one for one in self.cluster.workloads(JOB_UID)}
        pods: dict[str, list[Document]] = {}
        for pod in self.cluster.list("pod", TRAINING):
            pods.setdefault(pod["metadata"]["labels"]["job-name"], []).append(pod)
        running = reserved = 0
        levels: list[tuple[Document, int]] = []
        for one in self.trainings:
            document = jobs.get(self._name(one))
            if document is None or document["metadata"].get("deletionTimestamp"):
                continue
            own = pods.get(self._name(one), [])
            workload = workloads.get(document["metadata"]["uid"])
            self._step(one, document, own, now)
            running += one.of.gpus * (one.running_since is not None)
            reserved += one.of.gpus * (not document["spec"]["suspend"])
            if self.is_aware and workload is not None and one.done_at is None:
                saved = one.last_save(now)
                real = None if saved is None else time.time() - (now - saved) / self.speed
                level = level_of(workload, real, self.cluster.now(), self.bound / self.speed)
                levels.append((workload, level))
        with ThreadPoolExecutor() as pool:  # each training has a launcher of its own
            list(pool.map(lambda one: priority.raise_to(*one), levels))
        if any(one.waiting_since is not None for one in self.trainings):
            self.busy["seconds"] += passed
            self.busy["running"] += running * passed
            self.busy["reserved"] += reserved * passed

    def _step(self, one: ReplayedTraining, document: Document, pods: Sequence[Document], now: float) -> None:
        if not document["spec"]["suspend"]:
            one.is_admitted = True
        if one.waiting_since is not None and one.is_admitted and _all_run(document, pods):
            one.waits.append(now - one.waiting_since)
            one.running_since, one.waiting_since = now, None
        elif one.is_admitted and document["spec"]["suspend"]:
            one.evicted(now, saves=self.is_aware)
            if self.is_aware:  # as a launcher does
                self.cluster.delete("job", self._name(one))
                one.resumes_at = now + pause_after(one.fruitless)
        elif one.running_since is not None and one.worked(now) >= one.of.work:
            one.saved, one.running_since, one.done_at = one.of.work, None, now
            self.cluster.delete("job", self._name(one))


def _all_run(document: Document, pods: Sequence[Document]) -> bool:
    def runs(pod: dict[str, Any]) -> bool:
        return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]

    return sum(map(runs, pods)) == document["spec"]["completions"]
