"""Garbage of a lake: contents that no kept commit holds. The rules, and the counts that a collection returns.

Kept are the heads of all branches and tags, uncommitted changes, the commits that the caller names, each commit of the
last days, and what each branch held when these days began. So a content can be read for as long after it was replaced
as the rules say. Not here: the work on files (`local_sweep.py`) and on a server (`lakefs_retention.py`).
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class GarbageRules:
    """Contents to keep beside those of branches and tags."""

    since: datetime
    """Time, UTC. Contents that a branch held at this time or later are kept."""
    commits: Collection[str] = ()
    """Commits whose contents are kept, whatever their age."""
    without: Collection[str] = ()
    """Branches that count as deleted, to see beforehand what their deletion frees."""


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """Contents that no rule keeps."""

    objects: int
    size: int
    """Bytes."""
    note: str = ""
    """Sentence on their deletion, if another program does it."""


class GarbageCollector(Protocol):
    """Collector of one lake. Both methods may raise `LakeError`."""

    def look(self, rules: GarbageRules) -> Garbage:
        """Return what `collect` would delete. Changes nothing."""
        ...

    def collect(self, rules: GarbageRules) -> Garbage:
        """Delete what no rule keeps; return what was deleted."""
        ...
