"""Timeline of a training: its events in order, and the attempts, processes and recoveries that they show."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from resources.job.events import TrainingEvent, read_events
from resources.job.recoveries import Recovery, recoveries_of


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
