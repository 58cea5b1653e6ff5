"""Destinations of the lines of a job's workers: callbacks, the log beside the job, the tail that an error quotes."""

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

from resources.job.events import LOG, TrainingEvent

_TAIL_LINES = 15
_TRAINED = ("metrics", "epoch", "checkpoint", "recovered")
"""Events that come after a step."""


class Output:
    """Takes lines and events in the caller's thread. Workers write their events to a file themselves, because this
    process may be killed."""

    def __init__(
        self, folder: Path, on_event: Callable[[TrainingEvent], None], on_log: Callable[[str], None]
    ) -> None:
        self.log_file = folder / LOG
        self._log = self.log_file.open("a", buffering=1)
        self._on_event, self._on_log = on_event, on_log
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.reason = ""
        """Reason of the first worker of this attempt that ended for good."""
        self.cause = ""
        """Reason for the end of this attempt, as the agent of its workers tells it."""
        self.has_trained = False
        """True if this attempt has reported a step."""

    @property
    def tail(self) -> str:
        """The last log lines of this attempt."""
        return "\n".join(self._tail)

    def begin(self) -> None:
        """Another attempt."""
        self.reason, self.cause, self.has_trained = "", "", False
        self._tail.clear()

    def take(self, line: str, whose: str = "") -> None:
        """One line of a worker: an event, or one for the log with `whose` before it."""
        event = TrainingEvent.from_line(line)
        if event is None:
            self.say(whose + line)
        else:
            self.tell([event])

    def tell(self, events: Iterable[TrainingEvent]) -> None:
        """Pass on events."""
        for event in events:
            if event.kind == "failed":
                self.reason = self.reason or str(event.values.get("message", ""))
            if event.kind == "ended":
                self.cause = str(event.values.get("cause", ""))
            self.has_trained |= event.kind in _TRAINED
            self._on_event(event)

    def say(self, line: str) -> None:
        """A log line, of a worker or of the launcher."""
        self._log.write(line + "\n")
        self._tail.append(line)
        self._on_log(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
