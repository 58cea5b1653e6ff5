"""Live report of a training: its events, for the person at the page and for the tracker.

Here: the events to show, and how often. Not here: Dagster's page (`components.steps.train`), the tracker's queue
(resources.tracking.sink).
"""

import time
from collections.abc import Iterable, Mapping
from typing import Protocol

from ml_assets.model.steps.spending import Attempts
from ml_assets.model.steps.stragglers import Stragglers
from resources.job.events import TrainingEvent
from resources.job.recoveries import Recovery
from resources.tracking.tracker import TrackedRun
from resources.words import counted

OBSERVE_EVERY_SECONDS = 1.0
"""Least time between observations, since each is a row in Dagster's event log. The tracker receives every point."""
_MEASURING = {
    "metrics": None,
    "epoch": None,
    "checkpoint": {"checkpoint_duration_ms": "checkpoint_duration_ms", "blocked_ms": "checkpoint_blocked_ms"},
    "recovered": {"seconds": "recovery_seconds", "steps_lost": "recovery_steps_lost"},
    "system": None,
}
"""Kinds of events whose numbers are metrics → the numbers to keep, with their metric names; None for all numbers."""
_OF_A_STEP = ("metrics", "epoch")
"""Kinds whose numbers belong to their step: a repeated step reports the same numbers. Other kinds are readings in time.
"""
_DEVICES = ("device", "gpu", "gpus", "gpu_driver")
"""Values of a `started` event about the machine."""


class TrainingPage(Protocol):
    """Page on which people follow a training while it runs."""

    def info(self, text: str) -> None:
        """Show a message."""
        ...

    def warning(self, text: str) -> None:
        """Show a message that needs attention."""
        ...

    def observe(self, step: int, numbers: Mapping[str, float]) -> None:
        """Show the metrics of a step."""
        ...


class StudyPage(Protocol):
    """Page on which people follow a study while it runs."""

    def info(self, text: str) -> None:
        """Show a message."""
        ...

    def of_trial(self, number: int) -> TrainingPage:
        """Return the page of one trial."""
        ...


class LiveReport:
    """Live report of a training: at most one observation per second, every point to the tracker."""

    def __init__(self, page: TrainingPage, tracked: TrackedRun) -> None:
        self._page = page
        self._tracked = tracked
        self.attempts = Attempts()
        self._observed_at = 0.0
        self._stragglers = Stragglers()
        self.events = 0
        """Number of events; 0 if an earlier run had already finished the job."""
        self.devices: dict[str, str] = {}
        """Devices of rank 0's machine, as it reported at its start."""
        self.finished_at: float | None = None
        """Time at which the workers finished, in seconds since the epoch; the same for each run that follows the
        job."""

    def catch_up(self, events: Iterable[TrainingEvent]) -> None:
        """Send the events of earlier runs of this job to the tracker, which keeps each point once. A killed run may not
        have sent its last events."""
        for event in events:
            self._note(event)
            self._track(event)

    def tell_spent(self, gpu_hour_price: float | None) -> None:
        """Record the cost of a training that did not finish."""
        taken = self.attempts.spent(gpu_hour_price)
        if not taken:
            return
        self._tracked.log(taken, self.attempts.step, self.attempts.last_sign, once_a_step=False)
        cost = f", cost {taken['cost']:.2f}" if "cost" in taken else ""
        self._page.info(
            f"not finished: {taken['worker_hours']:.3f} worker hours in {counted(int(taken['attempts']), 'attempt')}"
            f"{cost}"
        )

    def event(self, event: TrainingEvent) -> None:
        """Report one event of the workers; the launcher calls this for each event."""
        self.events += 1
        numbers = _numbers(event)
        self._note(event)
        self._track(event)
        if event.kind in ("resumed", "checkpoint", "started"):
            self._page.info(f"{event.kind} at step {event.step}")
        if event.kind == "warning":
            self._page.warning(str(event.values["message"]))
        if event.kind == "recovered":
            self._page.warning(Recovery.of(event).in_words())
        if (straggler := self._stragglers.hear(event)) is not None:
            self._page.warning(straggler)
        is_due = event.kind == "metrics" and time.monotonic() - self._observed_at >= OBSERVE_EVERY_SECONDS
        if is_due or event.kind == "epoch":
            self._observed_at = time.monotonic()
            self._page.observe(event.step, numbers)

    def _track(self, event: TrainingEvent) -> None:
        if event.kind in _MEASURING:
            once = event.kind in _OF_A_STEP
            self._tracked.log(_numbers(event), event.step, event.time, once_a_step=once)

    def _note(self, event: TrainingEvent) -> None:
        self.attempts.hear(event)
        if event.kind == "started":
            self.devices = {name: str(event.values[name]) for name in _DEVICES if name in event.values}
        if event.kind == "finished":
            self.finished_at = event.time


def _numbers(event: TrainingEvent) -> dict[str, float]:
    numbers = {name: float(v) for name, v in event.values.items() if isinstance(v, int | float)}
    names = _MEASURING.get(event.kind)
    return numbers if names is None else {names[name]: v for name, v in numbers.items() if name in names}
