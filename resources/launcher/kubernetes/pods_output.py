"""Output of a training's pods: each event once, whichever way it comes, and their pace."""

from collections.abc import Callable, Iterable
from pathlib import Path

from resources.job.events import TrainingEvent
from resources.launcher.kubernetes.restart_estimate import Pace
from resources.launcher.output import Output


class PodsOutput(Output):
    """Output of pods, whose logs may be read again, and whose events are in the artifacts too."""

    def __init__(
        self, folder: Path, on_event: Callable[[TrainingEvent], None], on_log: Callable[[str], None]
    ) -> None:
        super().__init__(folder, on_event, on_log)
        self._told: set[int] = set()
        self.events: list[TrainingEvent] = []
        """Attribute of this attempt alone."""
        self.pace = Pace()
        """Attribute of this attempt alone."""

    def begin(self) -> None:
        """Another attempt."""
        super().begin()
        self.events, self.pace = [], Pace()

    def tell(self, events: Iterable[TrainingEvent]) -> None:
        """Pass on those events that were not told yet."""
        for event in events:
            identity = hash(event.to_line())
            if identity in self._told:
                continue
            self._told.add(identity)
            self.events.append(event)
            if event.kind == "started":
                self.pace = Pace(event)
            else:
                self.pace.hear(event)
            super().tell([event])
