"""Events of one object, in the order in which they last came. Events of the API are hints: they
are kept for an hour, and may be lost.

Not here: asking for them (attempt), what follows from them (classify).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from resources.launcher.kubernetes.cluster import Document


@dataclass(frozen=True, kw_only=True)
class PodEvent:
    """One event, which may have been told several times."""

    reason: str
    """`FailedMount`, `Pulling`, `FailedCreate`, …"""
    is_warning: bool
    message: str
    first: datetime
    last: datetime
    """Time of the last one, in whole seconds."""


def read_pod_events(events: Iterable[Document]) -> list[PodEvent]:
    """Read the API's events of one object; the newest is last. Most stamps are in whole seconds: within one second a
    warning counts as the older one, since waiting longer does less harm than ending a training."""
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
