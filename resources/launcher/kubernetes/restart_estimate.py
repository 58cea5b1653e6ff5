"""Estimate if a restart with more pods pays: the remaining time of a training against the time of another start. Both
come from the training's events.

Not here: the search for room (capacity_probe), the request to the pods to end (attempt).
"""

import math
from dataclasses import dataclass

from resources.job.events import TrainingEvent

_STEPPING = ("metrics", "epoch", "system")
"""Events whose step is complete when they are reported."""


@dataclass(frozen=True, kw_only=True)
class RestartEstimate:
    """Remaining work of an attempt."""

    left_seconds: float
    """Seconds until the last step of all epochs, at the current pace."""
    restart_seconds: float
    """Least seconds without a step if another attempt replaces this one: the time of the last save, plus the time from
    the placement of the pods to the first step."""

    def pays(self, nodes: int, grown: int) -> bool:
        """True if `grown` nodes would finish earlier than `nodes`, at best: twice the nodes, twice the speed."""
        return self.left_seconds * (1 - nodes / grown) > self.restart_seconds

    def why_not(self, nodes: int, grown: int) -> str:
        """Return a clause that explains why a restart does not pay."""
        return (
            f"the remaining {self.left_seconds:.0f} s would become {self.left_seconds * nodes / grown:.0f} s with "
            f"{grown} pods at best, and a restart takes {self.restart_seconds:.0f} s"
        )


class Pace:
    """Speed and start-up time of an attempt, measured from its events."""

    def __init__(self, began: TrainingEvent | None = None) -> None:
        """Measure from `began`, the attempt's `started` event; None if it is unknown."""
        self._steps = 0 if began is None else int(began.values.get("steps", 0))
        """Steps of the whole training; 0 if unknown, as for a script."""
        self._marks = [] if began is None else [began]
        """Events of the start, of the first reported step and of the last one."""
        self._ready_at = None if began is None else began.time
        self._save_seconds = 0.0

    def hear(self, event: TrainingEvent) -> None:
        """Take another event of the attempt."""
        if event.kind == "recovered":  # reported at the first step, which may take long
            self._ready_at = event.time
        elif event.kind == "checkpoint":
            self._save_seconds = float(event.values.get("checkpoint_duration_ms", 0.0)) / 1000
        elif event.kind in _STEPPING and (not self._marks or event.step > self._marks[-1].step):
            self._marks = [*self._marks[:2], event]

    def estimate(self, placed: float) -> RestartEstimate | None:
        """Return the remaining work; None while it is unknown. `placed`: time at which all pods had a node, in seconds
        since the epoch.
        """
        left = self._left_seconds()
        if left is None:
            return None
        starting = 0.0 if self._ready_at is None else max(0.0, self._ready_at - placed)
        return RestartEstimate(left_seconds=left, restart_seconds=self._save_seconds + starting)

    def _left_seconds(self) -> float | None:
        if not self._steps:
            return math.inf if self._marks else None
        if len(self._marks) < 2:
            return None
        before, last = self._marks[
            -2:
        ]  # leaves out the first steps, which are slow, once there are later ones
        return (self._steps - last.step) * (last.time - before.time) / (last.step - before.step)
