"""One attempt of a training on the cluster: started or found, watched to its end, removed.

Here: what is asked of the API and when. Not here: what the answers mean (judge), how many attempts there
are (launcher).
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from resources.launcher.errors import ClusterUnavailable, TrainingFailed
from resources.launcher.kubernetes.api import AlreadyThere, Cluster, Document
from resources.launcher.kubernetes.judge import (
    End,
    Pod,
    condition,
    end_of,
    why_no_pods,
    why_not_started,
)
from resources.launcher.kubernetes.lease import LeaseLost
from resources.launcher.kubernetes.logs import Trail
from resources.launcher.kubernetes.output import Output
from resources.launcher.profile import ResourceProfile
from resources.settings import KubernetesSettings

POLL_SECONDS = 0.5
SETTLE_SECONDS = 12.0
"""Once a pod has ended badly the others get so long to notice and to end."""
_OVERDUE_SECONDS = 3.0
_LOG_SECONDS = 5.0
_FORCED_AFTER_SECONDS = 2.0
"""After the grace period a pod that is still there is removed without asking its node."""
_REMOVED_SECONDS = 60.0
_BY_TAINT = "DeletionByTaintManager"


def start(
    cluster: Cluster, manifest: Document, service_of: Callable[[Document], Document]
) -> Document | None:
    """Make the Job and its Service (`service_of` the Job); None where a Job of this name is just being deleted."""
    try:
        document = cluster.create("job", manifest)
    except AlreadyThere:  # by ourselves, where an answer was lost
        found = cluster.get("job", manifest["metadata"]["name"])
        if found is None or found["metadata"].get("deletionTimestamp"):
            return None
        document = found
    with suppress(AlreadyThere):
        cluster.create("service", service_of(document))
    return document


def newest(cluster: Cluster, selector: str) -> Document | None:
    """The youngest Job that is not being deleted."""
    found = [one for one in cluster.list("job", selector) if not one["metadata"].get("deletionTimestamp")]
    return max(found, key=lambda one: str(one["metadata"]["creationTimestamp"]), default=None)


def pods_of(cluster: Cluster, selector: str) -> list[Pod]:
    """The pods there are."""
    return [Pod.of(document) for document in cluster.list("pod", selector)]


def watch(
    cluster: Cluster,
    job: Document,
    profile: ResourceProfile,
    settings: KubernetesSettings,
    trail: Trail,
    output: Output,
    lost: threading.Event,
) -> End:
    """Follow a Job to its end, telling its lines on the way. `LeaseLost` once `lost` is set."""
    name, uid = str(job["metadata"]["name"]), str(job["metadata"]["uid"])
    known: dict[str, Pod] = {}
    trouble_since: float | None = None
    are_running = False
    while True:
        trail.deliver(POLL_SECONDS)
        if lost.is_set():
            raise LeaseLost
        document = cluster.get("job", name)
        if document is None or document["metadata"]["uid"] != uid or document["metadata"].get(
            "deletionTimestamp"
        ):  # fmt: skip
            return End(kind="preempted", said=f"the Job {name} was deleted")
        pods = pods_of(cluster, f"batch.kubernetes.io/controller-uid={uid}")
        known.update({pod.uid: pod for pod in pods})
        trail.look(pods)
        if not are_running and len(pods) == profile.nodes and all(pod.has_started for pod in pods):
            are_running = True
            nodes = ", ".join(sorted({pod.node for pod in pods}))
            output.say(
                f"{len(pods)} pods run on {nodes}, {_age(job, cluster.now()):.0f} s after the Job was made"
            )
        if (error := _why_not(cluster, document, pods, profile, settings)) is not None:
            return End(kind="failed", said=str(error), error=error)
        present = {pod.uid for pod in pods}
        gone = [pod for pod in known.values() if pod.uid not in present and not pod.has_ended]
        if trouble_since is None and _in_trouble(document, pods, gone, profile, cluster.now()):
            trouble_since = time.monotonic()
        is_over = trouble_since is not None and (
            all(pod.has_ended for pod in pods) or time.monotonic() - trouble_since > SETTLE_SECONDS
        )
        if is_over or condition(document, "Complete"):
            trail.finish(_LOG_SECONDS)
            told = [pod for pod in known.values() if pod not in gone]
            return end_of(document, told, gone, profile, output.reason)


def remove(cluster: Cluster, selector: str, grace_seconds: int) -> None:
    """Delete Jobs, Services and pods; returns when none is left. Pods get `grace_seconds` to end.

    `ClusterUnavailable` where the API takes the deletions but pods stay.
    """
    for job in cluster.list("job", selector):
        cluster.delete("job", job["metadata"]["name"])
    for service in cluster.list("service", selector):
        cluster.delete("service", service["metadata"]["name"])
    # Only what is there now: a launcher that begins meanwhile has pods of its own.
    left = {pod.uid for pod in pods_of(cluster, selector)}
    asked: set[str] = set()
    began = time.monotonic()
    while pods := [pod for pod in pods_of(cluster, selector) if pod.uid in left]:
        passed = time.monotonic() - began
        if passed > _REMOVED_SECONDS:
            raise ClusterUnavailable(
                f"pods {', '.join(pod.name for pod in pods)} were deleted {_REMOVED_SECONDS:g} s ago and are "
                "still there: check the cluster's controller manager, then run ml-assets sweep"
            )
        is_late = passed > grace_seconds + _FORCED_AFTER_SECONDS
        for pod in pods:
            if is_late or pod.uid not in asked:
                asked.add(pod.uid)
                cluster.delete("pod", pod.name, grace_seconds=0 if is_late else grace_seconds)
        time.sleep(POLL_SECONDS / 2)


def _why_not(
    cluster: Cluster,
    job: Document,
    pods: list[Pod],
    profile: ResourceProfile,
    settings: KubernetesSettings,
) -> TrainingFailed | None:
    patience = settings.unschedulable_seconds
    if not pods and not job["spec"].get("suspend") and condition(job, "Failed") is None:
        waited = _age(job, cluster.now())
        if waited < 2:
            return None
        events = cluster.list("event", fields=f"involvedObject.uid={job['metadata']['uid']}")
        return why_no_pods(events, waited, profile, patience)
    return why_not_started(pods, profile, settings.image or "", cluster.now(), patience)


def _in_trouble(
    job: Document, pods: list[Pod], gone: list[Pod], profile: ResourceProfile, now: datetime
) -> bool:
    def is_bad(pod: Pod) -> bool:
        if pod.has_ended:
            return pod.exit_code != 0
        if pod.deleted is None:
            return False
        overdue = (now - pod.deleted).total_seconds() > profile.grace_seconds + _OVERDUE_SECONDS
        # Its node does not answer: nobody there hears that it should end.
        return overdue or pod.disrupted.startswith(_BY_TAINT)

    return bool(gone) or condition(job, "Failed") is not None or any(map(is_bad, pods))


def _age(document: Document, now: datetime) -> float:
    return (now - datetime.fromisoformat(str(document["metadata"]["creationTimestamp"]))).total_seconds()
