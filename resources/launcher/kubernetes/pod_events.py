"""Kubernetes events of one object, ordered by their last occurrence. Events are hints: the API keeps them for an hour
and may lose them.

Not here: requesting them (attempt), conclusions from them (classify).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from resources.launcher.kubernetes.cluster import Document


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
