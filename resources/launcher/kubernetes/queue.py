"""Position of a training in a queue (Kueue) before the cluster. Pure functions of the API's documents.

A queue suspends the Job of an attempt until its quota has room for all pods at once, and suspends it again where
somebody with a better claim needs the room. Not here: asking (attempt), naming the queue (profile, manifest).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from resources.job.errors import Unschedulable
from resources.launcher.kubernetes.cluster import Document

QUEUE = "kueue.x-k8s.io/queue-name"
"""Label of a Job: the LocalQueue it goes through."""
JOB_UID = "kueue.x-k8s.io/job-uid"
"""Label of the queue's own record of a Job, its Workload."""
_HOPELESS = ("doesn't exist", "maximum capacity")
"""Phrases in Kueue's messages for a queue that does not exist, and for a request that even an empty queue has no room
for."""


@dataclass(frozen=True, kw_only=True)
class QueuePosition:
    """One Job's, as the queue tells it."""

    is_known: bool
    """True if a queue has taken note of the Job."""
    waits_for: str
    """Reason for which it is not admitted; empty where there is nothing to tell."""
    is_hopeless: bool
    """True if waiting will not help: there is no such queue, or it is too small."""
    given_up_for: str
    """Reason for which it lost its quota after it had been admitted; empty if it did not."""

    @classmethod
    def of(cls, workloads: Sequence[Document]) -> "QueuePosition":
        """Read the Workloads of a Job: one, or none yet."""
        conditions: dict[str, Document] = {
            one["type"]: one
            for workload in workloads
            for one in workload.get("status", {}).get("conditions", [])
        }
        reserved, evicted = conditions.get("QuotaReserved", {}), conditions.get("Evicted", {})
        waits_for = str(reserved.get("message", "")) if reserved.get("status") == "False" else ""
        return cls(
            is_known=bool(workloads),
            waits_for=waits_for,
            is_hopeless=any(words in waits_for for words in _HOPELESS),
            given_up_for=str(evicted.get("message", "")) if evicted.get("status") == "True" else "",
        )


def why_not_admitted(place: QueuePosition, queue: str) -> Unschedulable | None:
    """The failure of a Job that stays in this place for long; None where waiting is as it should be: behind others it
    may wait for ever."""
    if not place.is_known:
        return Unschedulable(
            "no queue has taken note of the training: install Kueue 0.15 or newer, with batch/job among its "
            f"integrations, or leave out resources.queue, {queue}"
        )
    if place.is_hopeless:
        return Unschedulable(
            f"queue {queue} will not let the training through: {place.waits_for}. Correct resources.queue, ask for "
            "less in resources (nodes, gpus, cpu, memory), or change the queue (deployment/kubernetes/queues)"
        )
    return None
