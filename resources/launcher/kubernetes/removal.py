"""Remove the objects of a training from the cluster: Jobs, Services, pods.

Here: the order of the requests, and the wait for the end of the pods. Not here: when to remove (launcher, prune).
"""

import time

from resources.job.errors import ClusterUnavailable
from resources.launcher.kubernetes.attempt import POLL_SECONDS, POLL_SECONDS_A_POD, pods_of
from resources.launcher.kubernetes.cluster import Cluster
from resources.words import name_some

_FORCED_AFTER_SECONDS = 2.0
"""Seconds after the grace period until a pod that still exists is removed without its node's answer."""
_REMOVED_SECONDS = 60.0


def remove(cluster: Cluster, selector: str, grace_seconds: int) -> None:
    """Delete Jobs, Services and pods, and wait until no pod is left. Pods get `grace_seconds` to end.

    Raise `ClusterUnavailable` if pods still exist 60 s after the API accepted their deletion.
    """
    asked = {pod.uid for pod in pods_of(cluster, selector)}
    # Delete the pods before their Job. The Job's deletion would give them their own, longer grace period, and a node
    # does not shorten a grace period that has begun.
    cluster.delete_pods(selector, grace_seconds)
    for job in cluster.list("job", selector):
        cluster.delete("job", job["metadata"]["name"])
    for service in cluster.list("service", selector):
        cluster.delete("service", service["metadata"]["name"])
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
