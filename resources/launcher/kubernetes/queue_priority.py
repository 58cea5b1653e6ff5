"""Levels of a queued training above the priority of its class, which its launcher refreshes in Kueue.

Kueue evicts the Workload of the lowest priority first and, among equals, the youngest, which may have the most unsaved
work. So a training that runs gets a level by the age of its last checkpoint: the one that has just saved is evicted
first. A training that has waited for the bound gets the highest level: it goes before every training of its class in
its own queue, also before those that run.

Levels stay below 100, and priorities of classes are at least 100 apart, so no level reaches the next class. Not here:
the queue's decision (Kueue), the time of a checkpoint (output).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from resources.job.errors import ClusterRefused, ClusterUnavailable
from resources.launcher.kubernetes.cluster import Cluster, Document

LEVELS = 99
"""Highest level, for a training that has waited for the bound."""
PLACE_KEPT = 1 / 24
"""Part of the bound for which a training that waited for the bound keeps its level. Without it, the next one that has
waited so long would evict it at once, and both would only start."""
FIRST_SAVE_SECONDS = 600.0
"""Least age of the unsaved work of an attempt without a checkpoint. Its pods, images and data also took time."""
REFRESH_SECONDS = 30.0
"""Seconds between two looks at the level, and after each change of the training's pods."""
_PER_DOUBLING = 4
"""Levels by which unsaved work of twice the age is higher. One second has 4, ten minutes 36, a day 65."""
_CLASS = "ml-assets/class-priority"
"""Annotation of a Workload: the priority that Kueue gave it, by its class."""
_WRITE_SECONDS = 2.0
"""Time limit of a write in seconds. Kueue's webhooks check it and may be away; the next refresh tries again."""


def unsaved_level(seconds: float) -> int:
    """Return the level of a training that runs and would lose so many seconds of work."""
    return min(LEVELS - 1, int(_PER_DOUBLING * math.log2(1 + max(0.0, seconds))))


def level_of(workload: Document, saved_at: float | None, now: datetime, bound_seconds: float) -> int:
    """Return the level of a Workload at `now`.

    `saved_at`: time of the training's last checkpoint, in seconds since the epoch; one from before the admission does
    not count. `bound_seconds`: bound on waiting.
    """
    conditions: dict[str, Mapping[str, Any]] = {
        one["type"]: one for one in workload.get("status", {}).get("conditions", [])
    }
    reserved = conditions.get("QuotaReserved")
    if reserved is None:
        return 0
    since, created = (
        datetime.fromisoformat(text).timestamp()
        for text in (reserved["lastTransitionTime"], workload["metadata"]["creationTimestamp"])
    )
    age = now.timestamp() - since
    if reserved["status"] != "True":
        return LEVELS if age >= bound_seconds else 0
    if conditions.get("Evicted", {}).get("status") == "True":  # its pods save and end
        return 0
    if since - created >= bound_seconds and age < PLACE_KEPT * bound_seconds:
        return LEVELS
    if saved_at is None or saved_at < since:
        return unsaved_level(max(age, FIRST_SAVE_SECONDS))
    return unsaved_level(now.timestamp() - saved_at)


@dataclass
class QueuePriority:
    """Writer of the priorities of Workloads."""

    cluster: Cluster
    say: Callable[[str], None]
    """Takes a log line."""
    _is_refused: bool = False

    def raise_to(self, workload: Document, level: int) -> None:
        """Set the priority of a Workload to `level` above its class. A failure does not end the training."""
        meta, spec = workload["metadata"], workload["spec"]
        priority = int(spec.get("priority", 0))
        noted = meta.get("annotations", {}).get(_CLASS)
        try:
            declared = priority if noted is None else int(noted)
        except ValueError:  # somebody edited it
            declared = priority
        if self._is_refused or declared + level == priority:
            return
        change = {
            "metadata": {"annotations": {_CLASS: str(declared)}},
            "spec": {"priority": declared + level},
        }
        try:
            with self.cluster.impatient(_WRITE_SECONDS) as cluster:
                cluster.change_workload(meta["name"], change)
        except ClusterUnavailable:
            return
        except ClusterRefused as error:
            self._is_refused = True
            self.say(
                f"its queue does not learn what an eviction would lose, so Kueue evicts the youngest training: {error}"
            )
