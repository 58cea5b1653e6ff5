"""Events of one object, in the order in which they last came. Events of the API are hints: they
are kept for an hour, and may be lost.

Not here: asking for them (attempt), what follows from them (judge).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from resources.launcher.kubernetes.api import Document
from resources.launcher.kubernetes.pod import moment


@dataclass(frozen=True, kw_only=True)
class Told:
    """One event, which may have been told several times."""

    reason: str
    """`FailedMount`, `Pulling`, `FailedCreate`, …"""
    is_warning: bool
    message: str
    first: datetime
    last: datetime
    """Time of the last one, in whole seconds."""


def told(events: Iterable[Document]) -> list[Told]:
    """Read the API's events of one object; the newest is last. Most stamps are in whole seconds: within one second a
    warning counts as the older one, since waiting longer does less harm than ending a training."""
    return sorted(map(_told, events), key=lambda one: (one.last, not one.is_warning))


def _told(event: Document) -> Told:
    made: str = event["metadata"]["creationTimestamp"]
    first: str = event.get("firstTimestamp") or event.get("eventTime") or made
    series: Document = event.get("series") or {}
    last: str = series.get("lastObservedTime") or event.get("lastTimestamp") or first
    return Told(
        reason=str(event.get("reason", "")),
        is_warning=event.get("type") == "Warning",
        message=str(event.get("message", "")),
        first=moment(first).replace(microsecond=0),
        last=moment(last).replace(microsecond=0),
    )
