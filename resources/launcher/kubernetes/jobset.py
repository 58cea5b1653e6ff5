"""Back ends `jobset` and `trainjob`: the cluster restarts the pods of a training of fixed size, and a launcher only
follows them.

Here: making the JobSet or attaching to it, the errors of its attempts, its removal. The JobSet counts the attempts, so
there is no Lease: any number of launchers may follow one training, and none need live. A launcher that lives does what
the cluster cannot: it ends an attempt that cannot start, a training that failed twice at one place, and the wait for a
lost node. With `trainjob` the launcher makes a TrainJob, of which Kubeflow Trainer makes the JobSet. Not here: both as
documents (jobset_objects, trainjob_objects), one attempt (attempt).
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal
from uuid import uuid4

from resources.job.errors import (
    ClusterRefused,
    ClusterUnavailable,
    PodNotStarted,
    TrainingFailed,
)
from resources.job.job import TrainingResult
from resources.launcher.kubernetes.attempt import POLL_SECONDS, is_lost, pods_of
from resources.launcher.kubernetes.attempt_objects import (
    MANAGED,
    TRAINING,
    TYPES,
    reference_to,
    training_name,
)
from resources.launcher.kubernetes.classify import AttemptEnd, read_pod_events
from resources.launcher.kubernetes.cluster import AlreadyThere, Cluster, Document, Kind, Outdated
from resources.launcher.kubernetes.jobset_objects import (
    RUN,
    JobSetState,
    jobset_manifest,
    owner_of,
    workers_name,
)
from resources.launcher.kubernetes.prune import GRACE_SECONDS, ours, remove
from resources.launcher.kubernetes.training import CANCEL_GRACE_SECONDS, NO_RESULT, ClusterTraining
from resources.launcher.kubernetes.trainjob_objects import runtime_manifest, trainjob_manifest

Restarting = Literal["jobset", "trainjob"]
"""Back ends of this module, and the kind of object that a launcher makes."""
KINDS: dict[Restarting, tuple[Kind, ...]] = {
    "jobset": ("jobset", "job"),
    "trainjob": ("trainjob", "trainingruntime", "jobset", "job"),
}
"""Kinds of the objects behind the pods. First those whose controllers would make the others again."""

_UNSEEN = "specified trainingRuntime must be created before"
"""Phrase in Trainer's refusal of a TrainJob whose runtime it has not seen."""
_SEEN_SECONDS = 30.0


@dataclass
class JobSetRun:
    """A launcher's share in a training that a JobSet runs."""

    training: ClusterTraining
    kind: Restarting
    run_id: str
    """The run that waits for the training; empty without one."""
    _jobs: set[str] = field(default_factory=set[str])
    """Uids of the Jobs of attempts whose end was seen."""
    _pods: set[str] = field(default_factory=set[str])
    """Uids of the pods of these attempts."""
    _end: AttemptEnd | None = None
    """End of the newest attempt that ended; None while an attempt runs, or before the first."""

    def __post_init__(self) -> None:
        self._name = training_name(self.training.job)

    def run(self) -> TrainingResult:
        """Follow the training to its end; remove its objects, unless the training goes on without this launcher."""
        try:
            result = self._result()
        except BaseException as error:
            if not self.training.goes_on_after(error):
                self.training.clean(error, KINDS[self.kind])
            raise
        self.training.clean(None, KINDS[self.kind])
        return result

    def _result(self) -> TrainingResult:
        training = self.training
        document = self._attached() or self._made()
        training.equip(self.kind, document)
        state = self._state(document)
        since = time.monotonic()
        while True:
            if (result := training.finished(has_pods=True)) is not None:
                return result
            if (job := self._current()) is not None:
                document = self._found() or document  # it may have a new attempt
                state = self._told(document, state)
                self._follow(job, document)
                since = time.monotonic()
                continue
            training.logs.deliver(POLL_SECONDS)
            document = self._found() or self._made()
            training.equip(self.kind, document)
            state = self._told(document, state)
            if state.outcome:
                raise self._failure(state)
            waited = time.monotonic() - since
            if waited > training.settings.unschedulable_seconds:
                events = read_pod_events(training.cluster.events(document["metadata"]["uid"]))
                said = (
                    f"{TYPES[self.kind]['kind']} {self._name} has had no new Job for {waited:.0f} s: look at the log "
                    f"of JobSet's controller{' and of that of Kubeflow Trainer' * (self.kind == 'trainjob')}, and at "
                    f"kubectl describe {self.kind} {self._name}"
                    + (f". Its last event: {events[-1].message}" if events else "")
                )
                if self._end is None:
                    raise PodNotStarted(said)
                training.output.say(said)  # its controller may come back, or the node that keeps an ended pod
                since = time.monotonic()

    def _told(self, document: Document, before: JobSetState) -> JobSetState:
        """Return the state of the JobSet or TrainJob. Log a new attempt."""
        state = self._state(document)
        if state.restarts > before.restarts:
            self.training.output.say(
                f"{self._name} starts attempt {state.restarts + 1}; {state.failures} of "
                f"{self.training.job.settings.max_attempts} failures: resuming from the last checkpoint"
            )
        return state

    def _attached(self) -> Document | None:
        """Return the object of an earlier launch; None without one. Remove one that failed before this run began."""
        document = self._found()
        if document is None:
            return None
        is_of_this_run = document["metadata"].get("annotations", {}).get(RUN, "") == self.run_id != ""
        state = self._state(document)
        if state.outcome == "Failed" and not is_of_this_run:
            remove(self.training.cluster, self.training.selector, CANCEL_GRACE_SECONDS, KINDS[self.kind])
            return None
        self.training.output.say(
            f"attached to {self._name}, which was running already: attempt {state.restarts + 1}, {state.failures} of "
            f"{self.training.job.settings.max_attempts} failures"
        )
        return document if is_of_this_run else self._claimed(document)

    def _claimed(self, document: Document) -> Document | None:
        """Write into the object that this run waits for it, so that the end of an earlier run does not remove it."""

        def claim(meta: Document) -> None:
            meta.setdefault("annotations", {})[RUN] = self.run_id

        return self._changed(self.kind, document, claim) if self.run_id else document

    def _changed(self, kind: Kind, document: Document, change: Callable[[Document], None]) -> Document | None:
        """Write an object with a `change` of its metadata, again while others write it too; None once it is gone."""
        found: Document | None = document
        while found is not None:
            change(found["metadata"])
            with suppress(Outdated):
                return self.training.cluster.replace(kind, found)
            found = self._present(kind, found["metadata"]["name"])
        return None

    def _found(self) -> Document | None:
        """Return the JobSet or TrainJob, or None if there is none, or it is being deleted."""
        return self._present(self.kind, self._name)

    def _present(self, kind: Kind, name: str) -> Document | None:
        document = self.training.cluster.get(kind, name)
        return None if document is None or document["metadata"].get("deletionTimestamp") else document

    def _state(self, document: Document) -> JobSetState:
        """Return the state of the JobSet, which is `document` or is made of it."""
        if self.kind == "jobset":
            return JobSetState.of(document)
        jobset = self.training.cluster.get("jobset", self._name)
        owner = None if jobset is None else owner_of(jobset, "TrainJob")
        # A JobSet of an earlier TrainJob may be about to go.
        is_made = owner is not None and owner["uid"] == document["metadata"]["uid"]
        return JobSetState.of(jobset if jobset is not None and is_made else {})

    def _made(self) -> Document:
        """Return a new JobSet or TrainJob, or the one that another launcher made meanwhile."""
        of = self.training
        manifest = jobset_manifest(
            of.job,
            of.profile,
            of.settings,
            folder=of.folder,
            snapshot=of.snapshot,
            s3_endpoint_url=of.s3_endpoint_url,
            run_id=self.run_id,
        )
        while True:
            try:
                document = self._created(manifest)
            except AlreadyThere:
                if (found := self._found()) is not None:
                    return found
                time.sleep(POLL_SECONDS)  # it is being deleted
                continue
            of.output.say(f"started {self._name}: {of.profile.in_words(of.profile.most_nodes)}")
            return document

    def _created(self, jobset: Document) -> Document:
        """Create the JobSet, or the TrainJob of which Trainer makes it. Raise `AlreadyThere`."""
        cluster = self.training.cluster
        if self.kind == "jobset":
            return cluster.create("jobset", jobset)
        # A TrainJob needs its runtime before it, and the runtime of an earlier TrainJob may be about to go.
        name = f"{self._name}-{uuid4().hex[:8]}"
        runtime = cluster.create("trainingruntime", runtime_manifest(jobset, name))
        try:
            document = self._create_trainjob(trainjob_manifest(jobset, name))
        except AlreadyThere:
            there = self._found()
            if there is None or there["spec"]["runtimeRef"]["name"] != name:
                cluster.delete("trainingruntime", name)
                raise
            document = there  # our own, whose answer was lost
        # So the cluster deletes the runtime with a TrainJob that somebody deletes by hand.
        # Trainer writes its finalizer meanwhile.
        owner = reference_to("trainjob", document)
        self._changed("trainingruntime", runtime, lambda meta: meta.update(ownerReferences=[owner]))
        return document

    def _create_trainjob(self, manifest: Document) -> Document:
        """Create the TrainJob. Trainer refuses it until it has seen the runtime, a moment after that was made."""
        until = time.monotonic() + _SEEN_SECONDS
        while True:
            try:
                return self.training.cluster.create("trainjob", manifest)
            except ClusterRefused as error:
                if _UNSEEN not in str(error) or time.monotonic() > until:
                    raise
            time.sleep(POLL_SECONDS)

    def _current(self) -> Document | None:
        """Return the Job of the present attempt if there is more to see of it; None if not, or before it exists."""
        cluster = self.training.cluster
        job = cluster.get("job", workers_name(self.training.job))
        if job is None or job["metadata"].get("deletionTimestamp"):
            return None
        uid = str(job["metadata"]["uid"])
        # A queue that evicts the training suspends its Job, which gets other pods once it is admitted again.
        if uid not in self._jobs or job["spec"].get("suspend"):
            return job
        pods = pods_of(cluster, f"batch.kubernetes.io/controller-uid={uid}")
        return job if any(pod.uid not in self._pods for pod in pods) else None

    def _follow(self, job: Document, queued: Document) -> None:
        """Follow an attempt to its end. Raise the error of an end after which no attempt can help.

        `queued`: the JobSet or TrainJob, which a queue admits.
        """
        of = self.training
        of.output.begin()
        self._end = None
        # Nobody takes a JobSet over.
        watcher = of.watcher(job, threading.Event(), earlier=self._pods, queued=queued)
        end = watcher.end()
        self._end = end
        self._jobs.add(str(job["metadata"]["uid"]))
        self._pods.update(pod.uid for pod in watcher.pods)
        if end.error is not None:
            raise end.error
        if end.kind == "failed" and (error := of.output.failed_twice()) is not None:
            raise error
        if end.kind != "done":
            of.output.say(f"the attempt ended: {end.said}")
        if any(map(is_lost, watcher.pods)):
            # The cluster alone waits until the node is back or removed. The JobSet makes the Job again once it is gone,
            # and counts no failure.
            remove(of.cluster, of.selector, 1, ("job",), after_pods=True)

    def _failure(self, state: JobSetState) -> TrainingFailed:
        """Return the error of a JobSet that ended without a result, and without an attempt that explains it."""
        said = f"the last attempt because {self._end.said}" if self._end else state.why
        if state.outcome == "Completed":
            said = NO_RESULT
        return self.training.exhausted(max(1, state.failures), said)


def prune_jobsets(
    cluster: Cluster, kind: Restarting, has_ended: Callable[[str], bool], on_log: Callable[[str], None]
) -> list[str]:
    """Remove JobSets or TrainJobs whose run has ended without removing them; return their names.

    Those that no run waits for go on to their end. `on_log` gets a line for each that cannot be removed, or that no
    launcher made.
    """
    pruned: list[str] = []
    for one in ours(TYPES[kind]["kind"], cluster.list(kind, MANAGED), on_log):
        meta: Document = one["metadata"]
        run = str(meta.get("annotations", {}).get(RUN, ""))
        if not run or meta.get("deletionTimestamp") or not has_ended(run):
            continue
        try:
            remove(cluster, f"{TRAINING}={meta['labels'][TRAINING]}", GRACE_SECONDS, KINDS[kind])
        except (ClusterRefused, ClusterUnavailable) as error:
            on_log(f"{meta['name']} could not be removed, the next prune tries again: {error}")
            continue
        pruned.append(str(meta["name"]))
    return pruned
