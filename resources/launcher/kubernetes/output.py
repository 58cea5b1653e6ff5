"""Where the lines of a training's pods go: callbacks, the local log, and what an error will quote."""

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

from resources.launcher.kubernetes.judge import Pod
from resources.launcher.kubernetes.pace import Pace
from resources.launcher.protocol import TrainingEvent

LOG = "log.txt"
_TAIL_LINES = 15


class Output:
    """Takes lines and events in the caller's thread; an event is told once, from whichever source it comes."""

    def __init__(
        self, folder: Path, on_event: Callable[[TrainingEvent], None], on_log: Callable[[str], None]
    ) -> None:
        self.log_file = folder / LOG
        self._log = self.log_file.open("a", buffering=1)
        self._on_event, self._on_log = on_event, on_log
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._told: set[int] = set()
        self.reason = ""
        """What a worker of this attempt said before it ended for good."""
        self.events: list[TrainingEvent] = []
        """Of this attempt."""
        self.pace = Pace()
        """Of this attempt."""

    @property
    def tail(self) -> str:
        """The last log lines."""
        return "\n".join(self._tail)

    def begin(self) -> None:
        """Another attempt."""
        self.reason, self.events, self.pace = "", [], Pace()

    def take(self, pod: Pod, line: str) -> None:
        """One line of a pod."""
        event = TrainingEvent.from_line(line)
        if event is None:
            self.say(f"pod {pod.index}: {line}")
        else:
            self.tell([event])

    def tell(self, events: Iterable[TrainingEvent]) -> None:
        """Pass on those events that were not told yet."""
        for event in events:
            identity = hash(event.to_line())
            if identity in self._told:
                continue
            self._told.add(identity)
            self.events.append(event)
            if event.kind == "failed":
                self.reason = str(event.values.get("message", ""))
            if event.kind == "started":
                self.pace = Pace(event)
            else:
                self.pace.hear(event)
            self._on_event(event)

    def say(self, line: str) -> None:
        """A log line, of a pod or of the launcher."""
        self._log.write(line + "\n")
        self._tail.append(line)
        self._on_log(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
