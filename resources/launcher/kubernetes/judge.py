"""What became of an attempt's pods, in words and types. Pure functions of the API's documents.

Here: reading a pod's status, telling why pods do not start, telling why an attempt ended. Not here: asking
for the documents (attempt), what to do about it (launcher).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from resources.launcher.errors import (
    FINAL,
    DeadlineExceeded,
    ImageUnavailable,
    OutOfMemory,
    PodNotStarted,
    TrainingFailed,
    Unschedulable,
)
from resources.launcher.job import ExitCode
from resources.launcher.kubernetes.api import Document
from resources.launcher.kubernetes.manifest import INDEX
from resources.launcher.profile import ResourceProfile

_NEVER = ("InvalidImageName", "ErrImageNeverPull")
_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", *_NEVER)
_REFUSED = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError")
_NOT_STARTED = ("StartError", "ContainerCannotRun")
IMAGE_SECONDS, REFUSED_SECONDS = 30.0, 10.0
"""A registry, or a Secret that is made a moment later, gets this long."""


@dataclass(frozen=True, kw_only=True)
class Pod:
    """What matters of a pod's status."""

    name: str
    uid: str
    index: int
    node: str
    created: datetime
    placed: datetime | None
    """When it found its node, where the API says."""
    is_scheduled: bool
    unscheduled_why: str
    is_gated: bool
    """Held back by a queue: waiting is as it should be."""
    has_started: bool
    """Its container runs or ran: there is a log."""
    has_ended: bool
    exit_code: int | None
    reason: str
    """`OOMKilled`, `StartError`, … of the ended container, or the pod's own."""
    message: str
    waiting: str
    """Why the container waits: `ErrImagePull`, `ContainerCreating`, …"""
    waiting_message: str
    disrupted: str
    """Why the cluster or a person took it away: eviction, preemption, a lost node, a deletion. Else empty."""
    deleted: datetime | None
    """When its deletion was asked for."""

    @classmethod
    def of(cls, document: Document) -> "Pod":
        """Read the API's document."""
        meta, spec, status = document["metadata"], document["spec"], document.get("status", {})
        conditions = {one["type"]: one for one in status.get("conditions", [])}
        containers: list[Document] = status.get("containerStatuses", [])
        state: Document = containers[0].get("state", {}) if containers else {}
        waits: Document = state.get("waiting", {})
        ended: Document = state.get("terminated", {})
        scheduled = conditions.get("PodScheduled", {})
        phase = status.get("phase", "Pending")
        deleted = None
        if meta.get("deletionTimestamp"):
            grace = timedelta(seconds=meta.get("deletionGracePeriodSeconds") or 0)
            deleted = datetime.fromisoformat(meta["deletionTimestamp"]) - grace
        target = conditions.get("DisruptionTarget", {})
        disrupted = ""
        if target.get("status") == "True":
            disrupted = f"{target.get('reason', 'disrupted')}: {target.get('message', '')}".rstrip(": ")
        return cls(
            name=meta["name"],
            uid=meta["uid"],
            index=int(meta.get("annotations", {}).get(INDEX, 0)),
            node=spec.get("nodeName", ""),
            created=datetime.fromisoformat(meta["creationTimestamp"]),
            placed=_moment(scheduled) if scheduled.get("status") == "True" else None,
            is_scheduled=bool(spec.get("nodeName")),
            unscheduled_why=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
            is_gated=scheduled.get("reason") == "SchedulingGated",
            has_started="running" in state or bool(ended),
            has_ended=phase in ("Succeeded", "Failed"),
            exit_code=ended.get("exitCode"),
            reason=ended.get("reason", "") or status.get("reason", ""),
            message=ended.get("message", "") or status.get("message", ""),
            waiting=waits.get("reason", ""),
            waiting_message=waits.get("message", ""),
            disrupted=disrupted,
            deleted=deleted,
        )

    @property
    def named(self) -> str:
        """For people."""
        return f"pod {self.index}" + (f" on {self.node}" if self.node else "")


@dataclass(frozen=True, kw_only=True)
class End:
    """How an attempt ended."""

    kind: Literal["done", "preempted", "failed", "resized"]
    said: str
    """What happened, for the log."""
    nodes: int | None = None
    """Of a resized one: how many pods the next attempt is to have."""
    error: TrainingFailed | None = None
    """A failure another attempt cannot mend."""


def condition(job: Document, kind: str) -> Document | None:
    """The condition of this type of a Job, if it is true."""
    for one in job.get("status", {}).get("conditions", []):
        if one["type"] == kind and one["status"] == "True":
            return one
    return None


def _moment(condition: Document) -> datetime:
    """When it became what it is."""
    return datetime.fromisoformat(condition["lastTransitionTime"])


def why_not_started(
    pods: Sequence[Pod], profile: ResourceProfile, image: str, now: datetime, patience_seconds: float
) -> TrainingFailed | None:
    """The failure of a pod that will not start, once it had its time; None while there is hope."""
    for pod in pods:
        if pod.has_started or pod.has_ended or pod.is_gated or pod.deleted is not None:
            continue
        waited = (now - pod.created).total_seconds()
        if not pod.is_scheduled:
            if waited > patience_seconds:
                return _unschedulable(pod, profile, waited)
        elif pod.waiting in _NO_IMAGE:
            if pod.waiting in _NEVER or waited > min(IMAGE_SECONDS, patience_seconds):
                named = "resources.image" if profile.image else "ML_ASSETS_KUBERNETES_IMAGE"
                return ImageUnavailable(
                    f"{pod.named} cannot get image {image}: {pod.waiting}: {pod.waiting_message}. Correct "
                    f"{named}, push the image, or name the registry's Secret in resources.pull_secrets"
                )
        elif pod.waiting in _REFUSED:
            if waited > min(REFUSED_SECONDS, patience_seconds):
                return PodNotStarted(
                    f"{pod.named} cannot make its container: {pod.waiting}: {pod.waiting_message}. Create "
                    "what it names (Secrets: ML_ASSETS_KUBERNETES_S3_SECRET, resources.env_from_secrets), or "
                    "correct the name"
                )
        elif waited > patience_seconds:
            return PodNotStarted(
                f"{pod.named} is scheduled but has not started for {waited:.0f} s "
                f"({pod.waiting or 'no reason given'}). Look at the node and at resources.volumes"
            )
    return None


def fitting(pods: Iterable[Pod], nodes: int, profile: ResourceProfile) -> int | None:
    """How many of the `nodes` pods of an elastic training have found a node; None where those are all, too few, or
    still held back by a queue."""
    pods = [pod for pod in pods if pod.deleted is None]
    placed = sum(pod.is_scheduled for pod in pods)
    is_held = any(pod.is_gated for pod in pods)
    return placed if profile.least_nodes <= placed < nodes and not is_held else None


def why_no_pods(
    events: Iterable[Document], waited: float, profile: ResourceProfile, patience_seconds: float
) -> TrainingFailed | None:
    """The failure of a Job that has had no pod for `waited` seconds; `events` are those of the Job."""
    said = [str(one.get("message", "")) for one in events if one.get("reason") == "FailedCreate"]
    if not said:
        return None
    if "exceeded quota" in said[-1]:
        if waited <= patience_seconds:
            return None
        return Unschedulable(
            f"the quota of the namespace has had no room for {profile.least_nodes} pods of {profile.cpu} CPU and "
            f"{profile.memory} for {waited:.0f} s: {said[-1]}. Lower resources, wait for other trainings, or "
            "raise the quota"
        )
    if waited <= min(REFUSED_SECONDS, patience_seconds):
        return None
    return PodNotStarted(
        f"the cluster refuses the pods: {said[-1]}. Correct the pipeline's resources (volumes, run_as_user, "
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


def end_of(
    job: Document, pods: Iterable[Pod], gone: Iterable[Pod], profile: ResourceProfile, reason: str
) -> End:
    """Why the attempt ended, once its pods have: the cause, not what it did to the other pods.

    `gone`: pods that vanished before they ended. `reason`: what a worker said before it ended for good.
    """
    ended = sorted(pods, key=lambda pod: pod.index)
    if condition(job, "Complete") or condition(job, "SuccessCriteriaMet"):
        return End(kind="done", said="all pods ended well")
    for pod in ended:
        if pod.exit_code in FINAL:
            words = reason or pod.message or f"{pod.named} ended with exit code {pod.exit_code}"
            return End(kind="failed", said=words, error=FINAL[pod.exit_code](words))
    for pod in ended:
        if (error := _hopeless(pod, profile)) is not None:
            return End(kind="failed", said=str(error), error=error)
    failed = condition(job, "Failed") or condition(job, "FailureTarget")
    if failed is not None and failed.get("reason") == "DeadlineExceeded":
        error = DeadlineExceeded(
            f"the attempt took longer than resources.deadline_minutes, {profile.deadline_minutes:g}. Its "
            "checkpoint is kept: launch again with a later deadline, and it goes on from there"
        )
        return End(kind="failed", said=str(error), error=error)
    if (why := _taken_away(ended, list(gone), failed)) is not None:
        return End(kind="preempted", said=why)
    bad = [pod for pod in ended if pod.exit_code not in (None, ExitCode.DONE, ExitCode.PREEMPTED)]
    if not bad and any(pod.exit_code == ExitCode.PREEMPTED for pod in ended):
        return End(kind="preempted", said="the pods were asked to end and saved")
    said = "; ".join(f"{pod.named} ended with {_named(pod)}" for pod in bad)
    return End(
        kind="failed", said=said or f"the Job failed: {(failed or {}).get('message', 'no reason given')}"
    )


def _hopeless(pod: Pod, profile: ResourceProfile) -> TrainingFailed | None:
    if pod.reason == "OOMKilled":
        return OutOfMemory(
            f"{pod.named} used more memory than its limit, resources.memory {profile.memory}, and was killed. "
            f"Raise it (for one launch: --resources memory=…), use more nodes, or a smaller global_batch"
        )
    if pod.reason in _NOT_STARTED:
        return PodNotStarted(
            f"{pod.named} could not run its command: {pod.message.strip()}. The image of the workers needs it: "
            "check ML_ASSETS_KUBERNETES_IMAGE or resources.image, and ML_ASSETS_KUBERNETES_COMMAND"
        )
    return None


def _taken_away(ended: Sequence[Pod], gone: Sequence[Pod], failed: Document | None) -> str | None:
    """Who was taken away from outside, if anybody was."""
    for pod in [*ended, *gone]:
        if pod.disrupted:
            return f"{pod.named} was taken away ({pod.disrupted})"
    # The Job's controller deletes the other pods once one has failed: only earlier deletions are causes.
    moment = _moment(failed) if failed else None
    deleted = [pod for pod in ended if pod.deleted and (moment is None or pod.deleted < moment)]
    if deleted:
        return f"{min(deleted, key=lambda pod: pod.deleted or pod.created).named} was deleted"
    for pod in gone:
        return f"{pod.named} vanished"
    return None


def _count(profile: ResourceProfile) -> str:
    least, most = profile.least_nodes, profile.most_nodes
    return str(most) if least == most else f"at least {least}"


def _named(pod: Pod) -> str:
    code = pod.exit_code or 0
    name = f"signal {code - 128} ({pod.reason})" if code > 128 else f"exit code {code}"
    return f"{name}: {pod.message.strip().splitlines()[-1]}" if pod.message.strip() else name
