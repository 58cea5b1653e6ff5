"""Span: a stretch of time with a name, and the spans within it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")

_LAST = 2**63 / 1e9
_INTEGERS = 2**63
"""Bounds of times, in seconds, and of whole numbers in a message."""

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

    def __post_init__(self) -> None:
        # A message with one such number cannot be written at all, and its other spans would be lost with it.
        for one in (self.began, self.ended):
            if not 0 <= one <= _LAST:
                raise ValueError(
                    f"span {self.name} has the time {one}, which is no time in seconds since the epoch"
                )
        for name, one in self.attributes.items():
            if isinstance(one, int) and abs(one) >= _INTEGERS:
                raise ValueError(f"span {self.name} has {name} {one}, which is no number of 64 bits")


def is_parent(text: str) -> bool:
    """Return True for a valid `traceparent`, the header of W3C's Trace Context that names the span above."""
    found = _PARENT.fullmatch(text)
    return found is not None and int(found[1], 16) != 0 and int(found[2], 16) != 0
