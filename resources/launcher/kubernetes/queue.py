"""Position of a training in a queue (Kueue). Pure functions of the API's documents.

A queue suspends the Job of an attempt until its quota has room for all pods at once. It suspends the Job again if
somebody with a better claim needs the room. Not here: requests (attempt), the name of the queue (resource_profile).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from resources.job.errors import Unschedulable
from resources.launcher.kubernetes.cluster import Document

QUEUE = "kueue.x-k8s.io/queue-name"
"""Label of a Job: name of its LocalQueue."""
JOB_UID = "kueue.x-k8s.io/job-uid"
"""Label of a Workload, Kueue's record of a Job."""
_HOPELESS = ("doesn't exist", "maximum capacity")
"""Phrases in Kueue's messages: the queue does not exist, or even an empty queue is too small for the request."""


@dataclass(frozen=True, kw_only=True)
class QueuePosition:
    """Position of one Job, as Kueue reports it."""

    is_known: bool
    """True if Kueue has a Workload for the Job."""
    waits_for: str
    """Reason why the Job is not admitted; empty if Kueue gives none."""
    is_hopeless: bool
    """True if waiting cannot help: the queue does not exist or is too small."""
    given_up_for: str
    """Reason why the Job lost its quota after its admission; empty if it did not."""

    @classmethod
    def of(cls, workloads: Sequence[Document]) -> "QueuePosition":
        """Read the Workloads of a Job. There is one, or none yet."""
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
    """Return the failure of a Job that keeps this position for long; None if it may wait for ever, behind others."""
    if not place.is_known:
        return Unschedulable(
            "Kueue has not seen the training: install Kueue 0.15 or newer, with batch/job among its "
            f"integrations, or leave out resources.queue, {queue}"
        )
    if place.is_hopeless:
        return Unschedulable(
            f"queue {queue} never admits the training: {place.waits_for}. Correct resources.queue, request "
            "less in resources (nodes, gpus, cpu, memory), or change the queue (deployment/kubernetes/queues)"
        )
    return None
