"""Injector of a fault into a training: damages it at a chosen step and repairs it at a later step.

Here too: the timeline of a training, its events in order, with the attempts, processes and recoveries that they show.
Not here: the faults and the checks afterwards (drills), a fault at a random moment (the tests).
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from resources.job.events import Recovery, TrainingEvent, read_events, recoveries_of
from resources.job.job import TrainingJob, TrainingResult
from resources.job.reserved import RESERVED
from resources.launcher.local import LocalLauncher


@dataclass(frozen=True)
class Timeline:
    """Events of every attempt so far, oldest first."""

    events: list[TrainingEvent] = field(default_factory=list[TrainingEvent])

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Read the events that the job in `folder` has stored; none before its first attempt."""
        return cls(read_events(folder))

    def kind(self, kind: str) -> Sequence[TrainingEvent]:
        """Return the events of this kind."""
        return [event for event in self.events if event.kind == kind]

    @property
    def attempts(self) -> int:
        """Number of times that the ranks started to train."""
        return len(self.kind("started"))

    @property
    def world_sizes(self) -> list[int]:
        """Ranks of each attempt."""
        return [int(event.values["world_size"]) for event in self.kind("started")]

    @property
    def pids(self) -> list[int]:
        """Processes of the newest attempt, by rank; none before the first."""
        started = self.kind("started")
        return list(started[-1].values["pids"]) if started else []

    @property
    def last_step(self) -> int:
        """Highest step of any event; 0 without events."""
        return max((event.step for event in self.events), default=0)

    @property
    def last_trained_step(self) -> int:
        """Highest step with metrics; 0 without metrics."""
        return max((event.step for event in self.kind("metrics")), default=0)

    @property
    def recoveries(self) -> list[Recovery]:
        """Recoveries that the training recorded itself."""
        return recoveries_of(self.events)

    def seconds_to_step(self, moment: float | None, attempt: int) -> float:
        """Return the seconds from `moment` (Unix time) to the first step of an attempt (1 is the first).

        Infinite without a moment, such an attempt, or a step of it.
        """
        starts = [number for number, event in enumerate(self.events) if event.kind == "started"]
        if moment is None or len(starts) < attempt:
            return float("inf")
        steps = (event.time for event in self.events[starts[attempt - 1] :] if event.kind == "metrics")
        return next(steps, float("inf")) - moment


_END_SECONDS = 10.0


def send(number: signal.Signals, pids: Iterable[int]) -> int:
    """Send a signal to those of the processes that still run; return their number."""
    reached = 0
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            reached += 1
    return reached


class FaultInjector:
    """Callbacks of a launcher, for events and for log lines.

    Calls `damage` once, in the launcher's thread, at the metrics of `at_step`. In a later attempt, calls `repair` once
    at the metrics of `repair_at_step`.
    """

    def __init__(
        self,
        at_step: int,
        damage: Callable[["FaultInjector"], None],
        tell: Callable[[str], None],
        repair_at_step: int | None = None,
        repair: Callable[[], None] = lambda: None,
    ) -> None:
        self._at_step, self._damage, self._tell = at_step, damage, tell
        self._repair_at_step, self._repair = repair_at_step, repair
        self.timeline = Timeline()
        self.log: list[str] = []
        self.damaged_at: float | None = None
        """Seconds since the epoch."""
        self.repaired_at: float | None = None
        """Seconds since the epoch."""

    def run(self, job: TrainingJob, folder: Path, launcher: LocalLauncher) -> TrainingResult:
        """Train `job`. Raises the errors of the launcher."""
        return launcher.run(job, folder, self._on_event, self.log.append)

    def seconds_to_next_step(self) -> float:
        """Return the seconds from the damage to the first step of the next attempt; infinite without one."""
        return self.timeline.seconds_to_step(self.damaged_at, attempt=2)

    def seconds_to_step_after_repair(self) -> float:
        """Return the seconds from the repair to the first step of the attempt after it; infinite without one."""
        return self.timeline.seconds_to_step(self.repaired_at, attempt=3)

    def signal_ranks(self, *ranks: int, number: signal.Signals) -> None:
        """Send a signal to some of the ranks."""
        pids = self.timeline.pids
        send(number, (pids[rank] for rank in ranks))

    def wait_until_ended(self) -> None:
        """Wait until no rank of this attempt runs any more; the launcher waits for this thread meanwhile."""
        deadline = time.monotonic() + _END_SECONDS
        while any(map(_runs, self.timeline.pids)) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _on_event(self, event: TrainingEvent) -> None:
        if event.kind == RESERVED:  # of the launcher
            return
        self.timeline.events.append(event)
        self._tell(f"{event.kind} at step {event.step}")
        if event.kind == "metrics" and event.step >= self._at_step and self.damaged_at is None:
            self.damaged_at = time.time()
            self._damage(self)
        is_late = self._repair_at_step is not None and event.step >= self._repair_at_step
        if event.kind == "metrics" and is_late and self.timeline.attempts > 1 and self.repaired_at is None:
            self.repaired_at = time.time()
            self._repair()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
