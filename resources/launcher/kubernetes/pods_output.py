"""Output of a training's pods: each event once, from the log or from the artifacts, and the pace of the training."""

from collections.abc import Callable, Iterable
from pathlib import Path

from resources.job.events import TrainingEvent
from resources.launcher.kubernetes.restart_estimate import Pace
from resources.launcher.output import Output


class PodsOutput(Output):
    """Output of pods. A log may be read twice and the artifacts repeat the events, so each event is passed on once."""

    def __init__(
        self, folder: Path, on_event: Callable[[TrainingEvent], None], on_log: Callable[[str], None]
    ) -> None:
        super().__init__(folder, on_event, on_log)
        self._told: set[int] = set()
        self.events: list[TrainingEvent] = []
        """Events of the current attempt."""
        self.pace = Pace()
        """Pace of the current attempt."""

    def begin(self) -> None:
        """Begin another attempt: reset its events and its pace."""
        super().begin()
        self.events, self.pace = [], Pace()

    def tell(self, events: Iterable[TrainingEvent]) -> None:
        """Pass on those events that were not passed on before."""
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
