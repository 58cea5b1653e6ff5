"""Classification of an attempt's pods as types with a remedy. Pure functions of the API's documents.

Here: the reason why pods do not start, the reason why an attempt ended, and the events of an object by their last
occurrence. Events are hints: the API keeps them for an hour and may lose them. Not here: reading the documents of pods
(pod_state), requesting documents (attempt), the next attempt (launcher).
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from resources.job.errors import (
    FINAL,
    DeadlineExceeded,
    ImageUnavailable,
    OutOfDisk,
    OutOfMemory,
    PodNotStarted,
    TrainingFailed,
    Unschedulable,
)
from resources.job.job import ExitCode
from resources.launcher.kubernetes.cluster import Document
from resources.launcher.kubernetes.pod_state import Container, Pod
from resources.launcher.resource_profile import ResourceProfile


@dataclass(frozen=True, kw_only=True)
class PodEvent:
    """One event, which may have occurred several times."""

    reason: str
    """Kind of the event: `FailedMount`, `Pulling`, `FailedCreate`, …"""
    is_warning: bool
    message: str
    first: datetime
    last: datetime
    """Time of its last occurrence, in whole seconds."""


def read_pod_events(events: Iterable[Document]) -> list[PodEvent]:
    """Return the events of one object, the newest last.

    Most time stamps are in whole seconds. Within one second a warning sorts first, so that another event is the newest:
    to wait longer does less harm than to end a training.
    """
    return sorted(map(_event, events), key=lambda one: (one.last, not one.is_warning))


def _event(event: Document) -> PodEvent:
    made: str = event["metadata"]["creationTimestamp"]
    first: str = event.get("firstTimestamp") or event.get("eventTime") or made
    series: Document = event.get("series") or {}
    last: str = series.get("lastObservedTime") or event.get("lastTimestamp") or first
    return PodEvent(
        reason=str(event.get("reason", "")),
        is_warning=event.get("type") == "Warning",
        message=str(event.get("message", "")),
        first=datetime.fromisoformat(first).replace(microsecond=0),
        last=datetime.fromisoformat(last).replace(microsecond=0),
    )


_NEVER = ("InvalidImageName", "ErrImageNeverPull")
_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", *_NEVER)
_PULL_FAILED = "Failed to pull image"
"""Beginning of the event message of each failed pull."""
_REFUSED = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError")
_NOT_STARTED = ("StartError", "ContainerCannotRun")
IMAGE_SECONDS, REFUSED_SECONDS = 30.0, 10.0
"""Seconds from the first failure until a missing image, or a container that cannot be created, fails the training. A
registry may recover, and a Secret may be created a moment later."""
_ASKED_ABOUT = 8
"""Late pods whose events are requested per poll. If a thousand pods pull, these few represent all."""
_TAKEN_AWAY = ("Evicted", "NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated")
"""Reasons for which kubelets and controllers end a healthy pod. Older ones set no `DisruptionTarget` condition."""
_LOST = ("ContainerStatusUnknown", "Unknown")
"""Reasons of containers whose node was switched off. Their exit is unknown."""
_OVER_ITS_LIMIT = re.compile(r"exceeds the (total )?limit|exceeded its local ephemeral storage limit")
_INJECTED = "The pipeline did not request it: look for the webhook that adds it to the pods of this namespace"


@dataclass(frozen=True, kw_only=True)
class StartTimeouts:
    """Timeouts of a pod whose trainer does not run yet, in seconds."""

    start: float
    """Time to find a node, and then to start if the node reports a problem."""
    pull: float
    """Time to start on a node without a problem. Images are large, and a node pulls them one after the other."""


@dataclass(frozen=True, kw_only=True)
class Remedies:
    """Ends of messages about a container that cannot be created."""

    image: str
    """Remedy if its image cannot be pulled."""
    objects: str
    """Remedy if an object that it names, or a key in it, is missing."""

    @classmethod
    def of_trainers(cls, profile: ResourceProfile) -> "Remedies":
        """Return the remedies for pods of a training."""
        named = "resources.image" if profile.image else "ML_ASSETS_KUBERNETES_IMAGE"
        return cls(
            image=f"Correct {named}, push the image, or name the registry's Secret in resources.pull_secrets",
            objects="Create the object that it names, or add the key to it (Secrets: ML_ASSETS_KUBERNETES_S3_SECRET, "
            "resources.env_from_secrets), or correct the name",
        )


@dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """End of an attempt."""

    kind: Literal["done", "preempted", "failed", "resized"]
    said: str
    """Description for the log."""
    nodes: int | None = None
    """Pods of the next attempt, if their number changes."""
    error: TrainingFailed | None = None
    """Final failure: another attempt cannot help."""


def condition(job: Document, kind: str) -> Document | None:
    """Return a Job's condition of this type, or None unless its status is True."""
    for one in job.get("status", {}).get("conditions", []):
        if one["type"] == kind and one["status"] == "True":
            return one
    return None


def why_not_started(
    pods: Sequence[Pod],
    profile: ResourceProfile,
    now: datetime,
    timeouts: StartTimeouts,
    events_of: Callable[[Pod], Iterable[Document]],
) -> TrainingFailed | None:
    """Return the failure of a pod that did not start within its timeout; None while it may still start.

    `events_of` requests the events of a pod from the API. It is called only for late pods, and for at most 8 of them.
    """
    late = 0
    for pod in pods:
        if pod.has_started or pod.has_ended or pod.is_gated or pod.deleted is not None:
            continue
        if not pod.is_scheduled:
            waited = (now - pod.created).total_seconds()
            if waited > timeouts.start:
                return _unschedulable(pod, profile, waited)
            continue
        stuck = _stuck(pod)
        if stuck is not None and stuck.waiting in _NEVER:
            return _no_image(pod, stuck, Remedies.of_trainers(profile))
        least = timeouts.start
        if stuck is not None:
            least = min(least, IMAGE_SECONDS if stuck.waiting in _NO_IMAGE else REFUSED_SECONDS)
        if (now - pod.since).total_seconds() > least and late < _ASKED_ABOUT:
            late += 1
            error = _why_late(pod, stuck, profile, now, timeouts, read_pod_events(events_of(pod)))
            if error is not None:
                return error
    return None


def _stuck(pod: Pod) -> Container | None:
    """Return the container that cannot be created: the trainer, or a container that the trainer waits for."""
    waited_for = [one for one in pod.others if one.is_first]
    return next((one for one in [*waited_for, pod.trainer] if one.waiting in (*_NO_IMAGE, *_REFUSED)), None)


def _why_late(
    pod: Pod,
    stuck: Container | None,
    profile: ResourceProfile,
    now: datetime,
    timeouts: StartTimeouts,
    events: Sequence[PodEvent],
) -> TrainingFailed | None:
    """Return the failure of a pod that has a node and is past its shortest timeout. `events` are those of the pod."""
    if stuck is not None and not _pulls_again(stuck, events):
        return why_stuck(pod, Remedies.of_trainers(profile), now, timeouts.start, events)
    waited = (now - pod.since).total_seconds()
    if waited <= timeouts.start:
        return None
    for one in pod.others:
        if one.is_first and (one.has_failed or (one.is_running and one.role == "init container")):
            does = "runs" if one.is_running else f"ended with {one.how_it_ended} ({one.restarts} restarts)"
            return PodNotStarted(
                f"{pod.named} has not started for {waited:.0f} s: its {one.role} {one.name} {does}. "
                f"{_INJECTED}, or raise ML_ASSETS_KUBERNETES_UNSCHEDULABLE_SECONDS"
            )
    newest = events[-1] if events and events[-1].last >= pod.since else None
    if newest is not None and newest.is_warning:
        return PodNotStarted(
            f"{pod.named} has a node but has not started for {waited:.0f} s: {newest.reason}: {newest.message}. "
            "Correct resources.volumes if it names one, or look at the node"
        )
    if waited <= timeouts.pull:
        return None
    said = f"its last event is: {newest.message}" if newest else "it has no events"
    return PodNotStarted(
        f"{pod.named} has a node but has not started for {waited:.0f} s; {said}. If its image is large, raise "
        "ML_ASSETS_KUBERNETES_PULL_SECONDS or pull the image to the nodes first; otherwise look at the node"
    )


def why_stuck(
    pod: Pod, remedies: Remedies, now: datetime, patience_seconds: float, events: Sequence[PodEvent]
) -> TrainingFailed | None:
    """Return why a container of the pod cannot be created; None while it still may be. `events` are those of the pod.

    A failure counts after 30 s for an image and 10 s for another object, or after `patience_seconds` if that is less.
    """
    stuck = _stuck(pod)
    if stuck is None or _pulls_again(stuck, events):
        return None
    is_image = stuck.waiting in _NO_IMAGE
    # Take the time of the first failure from the events: the status has none, and a pull may last minutes first.
    tried = (now - min((one.first for one in _failures(stuck, events)), default=pod.since)).total_seconds()
    allowed = IMAGE_SECONDS if is_image else REFUSED_SECONDS
    if stuck.waiting not in _NEVER and tried <= min(allowed, patience_seconds):
        return None
    return _no_image(pod, stuck, remedies) if is_image else _refused(pod, stuck, remedies)


def _failures(container: Container, events: Sequence[PodEvent]) -> list[PodEvent]:
    """Return the events that say why this container cannot be created."""
    is_image = container.waiting in _NO_IMAGE
    said = f'{_PULL_FAILED} "{container.image}"' if is_image else container.waiting_message
    return [one for one in events if one.reason == "Failed" and said in one.message]


def _pulls_again(container: Container, events: Sequence[PodEvent]) -> bool:
    """True if another pull began after the failed ones. The status still says that the image failed."""
    failed = _failures(container, events) if container.waiting in _NO_IMAGE else []
    begun = [one.last for one in events if one.reason == "Pulling"]
    return bool(begun and failed) and max(begun) > max(one.last for one in failed)


def _no_image(pod: Pod, container: Container, remedies: Remedies) -> ImageUnavailable:
    said = f"{container.image}: {container.waiting}: {container.waiting_message}"
    if container.role != "trainer":
        return ImageUnavailable(
            f"{pod.named} cannot get the image of its {container.role} {container.name}, {said}. {_INJECTED}"
        )
    return ImageUnavailable(f"{pod.named} cannot get image {said}. {remedies.image}")


def _refused(pod: Pod, container: Container, remedies: Remedies) -> PodNotStarted:
    said = f"{container.waiting}: {container.waiting_message}"
    if container.role != "trainer":
        return PodNotStarted(
            f"{pod.named} cannot create its {container.role} {container.name}: {said}. {_INJECTED}"
        )
    return PodNotStarted(f"{pod.named} cannot create its container: {said}. {remedies.objects}")


def fitting(pods: Iterable[Pod], nodes: int, profile: ResourceProfile) -> int | None:
    """Return the number of pods that found a node, if an elastic training can begin with fewer than `nodes` pods.

    None if all pods have a node, if fewer than the least have, or if a queue holds pods back.
    """
    pods = [pod for pod in pods if pod.deleted is None]
    placed = sum(pod.is_scheduled for pod in pods)
    is_held = any(pod.is_gated for pod in pods)
    return placed if profile.least_nodes <= placed < nodes and not is_held else None


def began(job: Document) -> datetime:
    """Return the time from which the Job could create pods. A queue may have suspended it before."""
    return datetime.fromisoformat(
        job.get("status", {}).get("startTime") or job["metadata"]["creationTimestamp"]
    )


def why_no_pods(
    job: Document,
    events: Iterable[Document],
    now: datetime,
    profile: ResourceProfile,
    timeouts: StartTimeouts,
) -> TrainingFailed | None:
    """Return the failure of a Job that could not create all its pods; None while it still may. `events` are the Job's.

    A refusal counts only if no pod was created after it: a full quota may have room again.
    """
    since = began(job)
    heard = [one for one in read_pod_events(events) if one.last >= since]
    refused = [one for one in heard if one.reason == "FailedCreate"]
    made = max((one.last for one in heard if one.reason == "SuccessfulCreate"), default=since)
    if not refused or refused[-1].last <= made:
        return None
    said, waited = refused[-1].message, (now - since).total_seconds()
    if "exceeded quota" in said:
        if waited <= timeouts.start:
            return None
        return Unschedulable(
            f"the quota of the namespace has had no room for {profile.least_nodes} pods of {profile.cpu} CPU and "
            f"{profile.memory} for {waited:.0f} s: {said}. Lower resources, wait for other trainings, or "
            "raise the quota"
        )
    if waited <= min(REFUSED_SECONDS, timeouts.start):
        return None
    return PodNotStarted(
        f"the cluster refuses the pods: {said}. Correct the pipeline's resources (volumes, run_as_user, "
        "priority_class, service_account), or the namespace's policy"
    )


def _unschedulable(pod: Pod, profile: ResourceProfile, waited: float) -> Unschedulable:
    asked = f"{profile.cpu} CPU, {profile.memory} memory" + (f", {profile.gpus} GPUs" * bool(profile.gpus))
    also = [
        f"{name} {value}"
        for name, value in (
            ("node_selector", profile.node_selector),
            ("priority_class", profile.priority_class),
        )
        if value
    ]
    return Unschedulable(
        f"{pod.named} of {_count(profile)} found no node for {waited:.0f} s. It asks for {', '.join([asked, *also])}; "
        f"the scheduler says: {pod.unscheduled_why or 'nothing'} Lower resources.cpu, memory, gpus or nodes, "
        "correct node_selector or tolerations, or add a node"
    )


def are_done(job: Document, pods: Sequence[Pod]) -> bool:
    """True if the trainers of all pods ended with exit code 0. The Job itself is not complete while a sidecar runs."""
    return len(pods) >= int(job["spec"]["completions"]) and all(
        pod.exit_code == ExitCode.DONE for pod in pods
    )


def end_of(
    job: Document, pods: Iterable[Pod], gone: Iterable[Pod], profile: ResourceProfile, reason: str
) -> AttemptEnd:
    """Return the cause of an attempt's end. Its pods have ended, and one pod's end may have ended others.

    `gone`: pods that vanished before they ended. `reason`: message of a worker that ended with a final failure.
    """
    ended, vanished = sorted(pods, key=lambda pod: pod.index), list(gone)
    if (
        condition(job, "Complete")
        or condition(job, "SuccessCriteriaMet")
        or are_done(job, [*ended, *vanished])
    ):
        return AttemptEnd(kind="done", said="all pods ended with exit code 0")
    for pod in ended:
        if pod.exit_code in FINAL:
            words = reason or pod.trainer.message or f"{pod.named} ended with exit code {pod.exit_code}"
            return AttemptEnd(kind="failed", said=words, error=FINAL[pod.exit_code](words))
    for pod in ended:
        if (error := _hopeless(pod, profile)) is not None:
            return AttemptEnd(kind="failed", said=str(error), error=error)
    failed = condition(job, "Failed") or condition(job, "FailureTarget")
    if failed is not None and failed.get("reason") == "DeadlineExceeded":
        error = DeadlineExceeded(
            f"the attempt took longer than resources.deadline_minutes, {profile.deadline_minutes:g}. Its "
            "checkpoint is kept: launch again with a later deadline to resume from it"
        )
        return AttemptEnd(kind="failed", said=str(error), error=error)
    if (why := _taken_away(ended, vanished, failed)) is not None:
        return AttemptEnd(kind="preempted", said=why)
    said = "; ".join(words for pod in ended if (words := _how_it_failed(pod)))
    if not said and any(pod.exit_code == ExitCode.PREEMPTED for pod in ended):
        return AttemptEnd(kind="preempted", said="the pods saved a checkpoint and ended on request")
    return AttemptEnd(
        kind="failed", said=said or f"the Job failed: {(failed or {}).get('message', 'no reason given')}"
    )


def _hopeless(pod: Pod, profile: ResourceProfile) -> TrainingFailed | None:
    trainer = pod.trainer
    if trainer.reason == "OOMKilled":
        return OutOfMemory(
            f"{pod.named} used more memory than its limit, resources.memory {profile.memory}, and was killed. "
            f"Raise it (for one launch: --resources memory=…), use more nodes, or a smaller global_batch"
        )
    if trainer.reason in _NOT_STARTED:
        return PodNotStarted(
            f"{pod.named} could not run its command: {trainer.message.strip()}. The image of the workers must contain "
            "it: check ML_ASSETS_KUBERNETES_IMAGE or resources.image, and ML_ASSETS_KUBERNETES_COMMAND"
        )
    if is_over_its_disk(pod):
        return OutOfDisk(
            f"{pod.named} wrote more to its disk than its limit and was evicted: {pod.message} Raise "
            f"resources.scratch, {profile.scratch}, or read shards as they are needed (resources.shard_cache)"
        )
    return None


def is_over_its_disk(pod: Pod) -> bool:
    """True if the pod was evicted because it wrote more than its own limit. If the node itself runs out of disk, the
    pod has a `DisruptionTarget` condition.
    """
    return pod.reason == "Evicted" and not pod.disrupted and _OVER_ITS_LIMIT.search(pod.message) is not None


def _taken_away(ended: Sequence[Pod], gone: Sequence[Pod], failed: Document | None) -> str | None:
    """Return a sentence on a pod that the cluster or a person removed; None if there is none."""
    for pod in [*ended, *gone]:
        if pod.disrupted:
            return f"{pod.named} was removed by the cluster ({pod.disrupted})"
        if pod.reason in _TAKEN_AWAY:
            return f"{pod.named} was removed by the cluster ({pod.reason}: {pod.message})"
        if pod.trainer.reason in _LOST:
            return f"{pod.named} was lost: its node restarted ({pod.trainer.reason})"
    # Once a pod has failed, the Job's controller deletes the others: only earlier deletions are causes.
    limit = datetime.fromisoformat(failed["lastTransitionTime"]) if failed else None
    deleted = [pod for pod in ended if pod.deleted and (limit is None or pod.deleted < limit)]
    if deleted:
        return f"{min(deleted, key=lambda pod: pod.deleted or pod.created).named} was deleted"
    for pod in gone:
        return f"{pod.named} vanished"
    return None


def _how_it_failed(pod: Pod) -> str:
    """Return a sentence on the failure of a pod; empty if the pod did not fail by itself."""
    trainer = pod.trainer
    others = [
        f"its {one.role} {one.name} ended with {one.how_it_ended}"
        for one in pod.others
        if one.has_failed
        # A container that ended after the trainer was stopped because of it.
        and (trainer.ended is None or (one.ended is not None and one.ended < trainer.ended))
    ]
    if trainer.exit_code not in (None, ExitCode.DONE, ExitCode.PREEMPTED):
        return f"{pod.named} " + "; before, ".join([f"ended with {trainer.how_it_ended}", *others])
    if trainer.exit_code == ExitCode.DONE and pod.deleted is None and pod.others:
        # A sidecar that fails after its trainer fails the pod, and with it the Job and all other pods.
        failed = [one for one in pod.others if one.has_failed and not one.is_first]
        return "; ".join(
            f"{pod.named} ended with exit code 0, but its {one.role} {one.name} ended with {one.how_it_ended}. "
            f"{_INJECTED}"
            for one in failed
        )
    if trainer.exit_code is not None or not pod.has_ended:
        return ""
    if others:
        return f"{pod.named} never ran its trainer: {'; '.join(others)}. {_INJECTED}"
    return f"{pod.named} was refused by its node: {pod.reason}: {pod.message}" if pod.reason else ""


def _count(profile: ResourceProfile) -> str:
    least, most = profile.least_nodes, profile.most_nodes
    return str(most) if least == most else f"at least {least}"
