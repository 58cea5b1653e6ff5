"""Obstacle of a run whose pod does not start, in words: its image, its Secret, its node, the quota of its namespace.

Pure functions of the API's documents, by the rules for pods of trainings (`resources.launcher.kubernetes.classify`).
Not here: requests to the cluster, and the run's page (`run_pods`).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from resources.launcher.kubernetes.classify import PodEvent, Remedies, read_pod_events, why_stuck
from resources.launcher.kubernetes.pod_state import Pod

MAIN = "dagster"
"""Container of a run in its pod."""
PATIENCE_SECONDS = 20.0
"""Seconds for which a pod may have no node or no volume before the page says so."""
_REMEDIES = Remedies(
    image="Push the image, or name the registry's Secret in images.pullSecrets of the chart; or set images.platform, "
    "and launch again: a run keeps the image with which it was launched",
    objects="Create the object that it names, or add the key to it (Secret: secrets.platform of the chart)",
)
_ROOM = "Lower runs.resources of the chart, correct runs.nodeSelector or runs.tolerations, or add a node"
_QUOTA = "Raise quota of the chart, or wait for other runs"
_OBJECT = "Create the object that it names, or look at the node"


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """Reason why the pod of a run has not started."""

    kind: str
    """The same for the same reason, whatever the time: a page says it once."""
    said: str
    """Reason and remedy, for the run's page."""


def obstacle_of(
    pods: Iterable[dict[str, Any]],
    job_events: Sequence[dict[str, Any]],
    events_of: Callable[[str], Iterable[dict[str, Any]]],
    now: datetime,
) -> Obstacle | None:
    """Return the obstacle of a run's pod; None while it may start without help, and once it has started.

    `job_events` are those of the run's Job, `events_of` returns those of the object with a uid. `now` is the time of
    the API server.
    """
    found = [Pod.of(document, MAIN, "the pod of this run") for document in pods]
    if not found:
        return _not_made(read_pod_events(job_events))
    for pod in found:
        if pod.has_started or pod.has_ended or pod.deleted is not None:
            continue
        events = read_pod_events(events_of(pod.uid))
        if (error := why_stuck(pod, _REMEDIES, now, math.inf, events)) is not None:
            kind = type(error).__name__
            return Obstacle(kind=kind, said=f"{kind}: {error}")
        if (now - pod.since).total_seconds() > PATIENCE_SECONDS:
            return _waits(pod, events)
    return None


def _not_made(events: Sequence[PodEvent]) -> Obstacle | None:
    refused = [one for one in events if one.reason == "FailedCreate"]
    if not refused:
        return None
    said = refused[-1].message
    if "exceeded quota" in said:
        return Obstacle(
            kind="quota",
            said=f"Unschedulable: the quota has no room for the pod of this run: {said}. {_QUOTA}",
        )
    return Obstacle(kind="refused", said=f"PodNotStarted: the cluster refuses the pod of this run: {said}")


def _waits(pod: Pod, events: Sequence[PodEvent]) -> Obstacle | None:
    if not pod.is_scheduled:
        why = pod.unscheduled_why
        said = f"Unschedulable: {pod.named} has no node: {why} {_ROOM}"
        return Obstacle(kind="no node", said=said) if why else None
    newest = events[-1] if events else None
    if newest is None or not newest.is_warning:
        return None  # it pulls its image
    said = f"PodNotStarted: {pod.named} has not started: {newest.reason}: {newest.message}. {_OBJECT}"
    return Obstacle(kind=newest.reason, said=said)
