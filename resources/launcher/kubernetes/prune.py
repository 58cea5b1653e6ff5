"""Remove the objects of a training from the cluster: Jobs, Services, pods; and abandoned trainings.

Here: the order of the requests, and the wait for the end of the pods. A training is abandoned if its Lease has expired
and no run will return to it. Every launcher prunes when it starts. Dagster's daemon prunes every few seconds, and
`ml-assets trainings prune` on demand.
"""

import time
from collections.abc import Callable, Collection, Iterable

from resources.job.errors import ClusterRefused, ClusterUnavailable
from resources.launcher.kubernetes.attempt import POLL_SECONDS, POLL_SECONDS_A_POD, pods_of
from resources.launcher.kubernetes.attempt_objects import ATTEMPT, MANAGED, TRAINING
from resources.launcher.kubernetes.cluster import Cluster, Document, Kind, Outdated
from resources.launcher.kubernetes.lease import RENEWALS, has_run_out, is_led, run_of
from resources.words import name_some

_FORCED_AFTER_SECONDS = 2.0
"""Seconds after the grace period until a pod that still exists is removed without its node's answer."""
_REMOVED_SECONDS = 60.0


JOBS: tuple[Kind, ...] = ("job", "service")
"""Kinds of the objects behind the pods of a launcher's attempt."""


def remove(
    cluster: Cluster,
    selector: str,
    grace_seconds: int,
    kinds: Collection[Kind] = JOBS,
    *,
    after_pods: bool = False,
) -> None:
    """Delete pods and the objects of these `kinds`, and wait until no pod is left. Pods get `grace_seconds` to end.

    `after_pods`: the objects stay, with a time of deletion, until their pods are gone. Then no controller makes others
    of the same name beside those pods.

    Raise `ClusterUnavailable` if pods still exist 60 s after the API accepted their deletion.
    """
    asked = {pod.uid for pod in pods_of(cluster, selector)}
    # Delete the pods before their Job. The Job's deletion would give them their own, longer grace period, and a node
    # does not shorten a grace period that has begun.
    cluster.delete_pods(selector, grace_seconds)
    for kind in kinds:
        for one in cluster.list(kind, selector):
            cluster.delete(kind, one["metadata"]["name"], after_dependents=after_pods)
    # Wait only for the pods that exist now: a launcher that begins meanwhile has pods of its own.
    pods = pods_of(cluster, selector)
    left = {pod.uid for pod in pods}
    began = time.monotonic()
    while pods:
        passed = time.monotonic() - began
        if passed > _REMOVED_SECONDS:
            raise ClusterUnavailable(
                f"pods {name_some([pod.name for pod in pods])} were deleted {_REMOVED_SECONDS:g} s ago and "
                "still exist: check the cluster's controller manager, then run ml-assets trainings prune"
            )
        is_overdue = passed > grace_seconds + _FORCED_AFTER_SECONDS
        for pod in pods:
            if is_overdue or pod.uid not in asked:
                asked.add(pod.uid)
                cluster.delete("pod", pod.name, grace_seconds=0 if is_overdue else grace_seconds)
        time.sleep(max(POLL_SECONDS / 2, len(pods) * POLL_SECONDS_A_POD))
        pods = [pod for pod in pods_of(cluster, selector) if pod.uid in left]


GRACE_SECONDS = 5
"""Seconds for abandoned pods to save a checkpoint, from which a later launch resumes."""


def prune(
    cluster: Cluster,
    lease_seconds: int,
    return_seconds: int,
    has_ended: Callable[[str], bool],
    on_log: Callable[[str], None],
) -> list[str]:
    """Remove abandoned trainings; return their names.

    A Lease counts as dead if it has expired and stays unchanged for another half of its duration: after an outage
    of the API server, a living launcher renews its Lease within that time. If a run waits for the training, that run
    must also have ended (`has_ended` of its id) or must have been away for `return_seconds`. A run's pod may die with
    its node and start elsewhere while the trainers go on.

    Objects with our labels that no launcher made, and objects that cannot be removed, stay; `on_log` gets a line on
    each.
    """
    before = _abandoned(cluster, return_seconds, has_ended, on_log)
    if not before:
        return []
    time.sleep(lease_seconds / RENEWALS)
    now = _abandoned(cluster, return_seconds, has_ended, lambda _: None)
    pruned: list[str] = []
    for name in sorted(name for name, version in before.items() if now.get(name) == version):
        try:
            if before[name]:
                cluster.delete("lease", name, version=before[name])
            remove(cluster, f"{MANAGED},{TRAINING}={name.removeprefix('train-')},{ATTEMPT}", GRACE_SECONDS)
        except Outdated:  # a launcher took the Lease meanwhile
            continue
        except (ClusterRefused, ClusterUnavailable) as error:
            on_log(f"{name} could not be removed, the next prune tries again: {error}")
            continue
        pruned.append(name)
    return pruned


def _abandoned(
    cluster: Cluster,
    return_seconds: int,
    has_ended: Callable[[str], bool],
    on_log: Callable[[str], None],
) -> dict[str, str]:
    """Return name of each abandoned training → resource version of its expired Lease; empty if it has no Lease."""
    jobs = {f"train-{_label(one, TRAINING)}" for one in ours("Job", cluster.list("job", MANAGED), on_log)}
    leases = {_name(one): one for one in ours("Lease", cluster.list("lease", MANAGED), on_log)}
    now = cluster.now()

    def is_dead(lease: Document) -> bool:
        if not has_run_out(lease, now):
            return False
        run = run_of(lease)
        return not run or has_run_out(lease, now, return_seconds) or has_ended(run)

    found = dict.fromkeys(jobs - leases.keys(), "")
    found |= {name: str(one["metadata"]["resourceVersion"]) for name, one in leases.items() if is_dead(one)}
    return found


def ours(kind: str, documents: Iterable[Document], on_log: Callable[[str], None]) -> list[Document]:
    """Return the documents that launchers made: their name follows from the labels, and a Lease has a holder."""
    found: list[Document] = []
    for one in documents:
        name = f"train-{_label(one, TRAINING)}"
        expected = f"{name}-{_label(one, ATTEMPT)}" if kind == "Job" else name
        if _name(one) == expected and (kind != "Lease" or is_led(one)):
            found.append(one)
        else:
            on_log(
                f"{kind} {_name(one)} has the label {MANAGED}, but no launcher created it: it stays. Remove the label "
                "from it"
            )
    return found


def _name(document: Document) -> str:
    return str(document["metadata"]["name"])


def _label(document: Document, label: str) -> str:
    return str(document["metadata"].get("labels", {}).get(label, ""))
