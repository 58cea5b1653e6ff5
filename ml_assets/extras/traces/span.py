"""Span: a stretch of time with a name, and the spans within it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")

Attribute = str | bool | int | float


@dataclass(frozen=True, kw_only=True)
class TraceSpan:
    """Stretch of time of a run."""

    name: str
    began: float
    """Seconds since the epoch, UTC, as `ended`."""
    ended: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict[str, Attribute])
    error: str = ""
    """Reason of a failure; empty if it did not fail."""
    parts: Sequence["TraceSpan"] = ()
    """Spans within it, oldest first."""


def is_parent(text: str) -> bool:
    """Return True for a valid `traceparent`, the header of W3C's Trace Context that names the span above."""
    found = _PARENT.fullmatch(text)
    return found is not None and int(found[1], 16) != 0 and int(found[2], 16) != 0
