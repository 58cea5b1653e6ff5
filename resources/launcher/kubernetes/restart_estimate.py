"""Would a larger attempt pay? What is left of a training at its own pace, against what another start costs it: both as
its events tell.

Not here: whether there is room for one (capacity_probe), asking the pods to make place for it (attempt).
"""

import math
from dataclasses import dataclass

from resources.job.events import TrainingEvent

_STEPPING = ("metrics", "epoch", "system")
"""Events whose step is done when they are told."""


@dataclass(frozen=True, kw_only=True)
class RestartEstimate:
    """Remaining work of an attempt."""

    left_seconds: float
    """Until the last step of all epochs, at the pace so far."""
    restart_seconds: float
    """At least so long without a step, if it gave way to another attempt: as it took to save last, and from when its
    pods had their nodes until it trained."""

    def pays(self, nodes: int, grown: int) -> bool:
        """True if `grown` nodes instead of `nodes` would be done earlier, at best: twice as many, twice as fast."""
        return self.left_seconds * (1 - nodes / grown) > self.restart_seconds

    def why_not(self, nodes: int, grown: int) -> str:
        """Return in words why it does not pay."""
        return (
            f"the {self.left_seconds:.0f} s that are left would become {self.left_seconds * nodes / grown:.0f} s with "
            f"{grown} pods at best, and to save and start again takes {self.restart_seconds:.0f} s"
        )


class Pace:
    """Speed and start-up time of an attempt, by its events."""

    def __init__(self, began: TrainingEvent | None = None) -> None:
        """`began`: its `started`; None where nobody has heard it."""
        self._steps = 0 if began is None else int(began.values.get("steps", 0))
        """Steps of the whole training; 0 where nobody knows, as for a script."""
        self._marks = [] if began is None else [began]
        """Its start, the first step that was told, the last one."""
        self._ready_at = None if began is None else began.time
        self._save_seconds = 0.0

    def hear(self, event: TrainingEvent) -> None:
        """Another event of the attempt."""
        if event.kind == "recovered":  # at its first step, which may take long
            self._ready_at = event.time
        elif event.kind == "checkpoint":
            self._save_seconds = float(event.values.get("checkpoint_duration_ms", 0.0)) / 1000
        elif event.kind in _STEPPING and (not self._marks or event.step > self._marks[-1].step):
            self._marks = [*self._marks[:2], event]

    def estimate(self, placed: float) -> RestartEstimate | None:
        """Return the remaining work; None as long as it is unknown. `placed` is the time at which its pods had found
        their nodes, seconds since the epoch.
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
        before, last = self._marks[-2:]  # without the very first steps, as soon as there are others
        return (self._steps - last.step) * (last.time - before.time) / (last.step - before.step)
