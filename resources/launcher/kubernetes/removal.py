"""Ending what belongs to a training on the cluster: Jobs, Services, pods.

Here: the order in which it is asked for, and how long it is waited for. Not here: when (launcher, prune).
"""

import time

from resources.job.errors import ClusterUnavailable
from resources.launcher.kubernetes.attempt import POLL_SECONDS, POLL_SECONDS_A_POD, pods_of
from resources.launcher.kubernetes.cluster import Cluster
from resources.words import name_some

_FORCED_AFTER_SECONDS = 2.0
"""After the grace period a pod that is still there is removed without asking its node."""
_REMOVED_SECONDS = 60.0


def remove(cluster: Cluster, selector: str, grace_seconds: int) -> None:
    """Delete Jobs, Services and pods; returns when none is left. Pods get `grace_seconds` to end.

    `ClusterUnavailable` where the API takes the deletions but pods stay.
    """
    asked = {pod.uid for pod in pods_of(cluster, selector)}
    # Before their Job is gone, whose end would give them all of their grace: a node that has begun to wait so long does
    # not hear of less.
    cluster.delete_pods(selector, grace_seconds)
    for job in cluster.list("job", selector):
        cluster.delete("job", job["metadata"]["name"])
    for service in cluster.list("service", selector):
        cluster.delete("service", service["metadata"]["name"])
    # Only what is there now: a launcher that begins meanwhile has pods of its own.
    pods = pods_of(cluster, selector)
    left = {pod.uid for pod in pods}
    began = time.monotonic()
    while pods:
        passed = time.monotonic() - began
        if passed > _REMOVED_SECONDS:
            raise ClusterUnavailable(
                f"pods {name_some([pod.name for pod in pods])} were deleted {_REMOVED_SECONDS:g} s ago and are "
                "still there: check the cluster's controller manager, then run ml-assets trainings prune"
            )
        is_overdue = passed > grace_seconds + _FORCED_AFTER_SECONDS
        for pod in pods:
            if is_overdue or pod.uid not in asked:
                asked.add(pod.uid)
                cluster.delete("pod", pod.name, grace_seconds=0 if is_overdue else grace_seconds)
        time.sleep(max(POLL_SECONDS / 2, len(pods) * POLL_SECONDS_A_POD))
        pods = [pod for pod in pods_of(cluster, selector) if pod.uid in left]
