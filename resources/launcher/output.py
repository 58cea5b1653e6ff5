"""Destinations of the lines of a job's workers: callbacks, the log file of the job, the tail that an error quotes."""

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

from resources.job.errors import FailedTwice
from resources.job.events import LOG, TrainingEvent

_TAIL_LINES = 15
_TRAINED = ("metrics", "epoch", "checkpoint", "recovered")
"""Kinds of events that a worker reports only after a step."""


class Output:
    """Takes lines and events of workers in the caller's thread. Does not write the event file: workers write it
    themselves, because this process may be killed."""

    def __init__(
        self, folder: Path, on_event: Callable[[TrainingEvent], None], on_log: Callable[[str], None]
    ) -> None:
        self.log_file = folder / LOG
        self._log = self.log_file.open("a", buffering=1)
        self._on_event, self._on_log = on_event, on_log
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.reason = ""
        """Message of the first `failed` event of this attempt."""
        self.cause = ""
        """Cause of the end of this attempt, reported by the agent of its workers."""
        self.has_trained = False
        """True if this attempt has reported a step."""
        self._places: set[str] = set()
        """Places at which this attempt failed, each reported by the agent of a machine."""
        self._earlier_places: set[str] = set()

    @property
    def tail(self) -> str:
        """Last log lines of this attempt."""
        return "\n".join(self._tail)

    def begin(self) -> None:
        """Begin another attempt: reset reason, cause and tail."""
        self.reason, self.cause, self.has_trained = "", "", False
        self._earlier_places |= self._places
        self._places = set()
        self._tail.clear()

    def take(self, line: str, whose: str = "") -> None:
        """Take one line of a worker. Pass on an event; write any other line to the log, after the prefix `whose`."""
        event = TrainingEvent.from_line(line)
        if event is None:
            self.say(whose + line)
        else:
            self.tell([event])

    def tell(self, events: Iterable[TrainingEvent]) -> None:
        """Pass on events, and note reason, cause and progress of the attempt."""
        for event in events:
            if event.kind == "failed":
                self.reason = self.reason or str(event.values.get("message", ""))
            if event.kind == "ended":
                self.cause = str(event.values.get("cause", ""))
                self._places |= {str(event.values.get("place", ""))} - {""}
            self.has_trained |= event.kind in _TRAINED
            self._on_event(event)

    def failed_twice(self) -> FailedTwice | None:
        """Return the error of an attempt that failed at the place of an earlier one; None if it did not."""
        if not (repeated := sorted(self._places & self._earlier_places)):
            return None
        return FailedTwice(
            f"failed twice at the same place, so another attempt would fail there too: {repeated[0]}. Correct that "
            "code, or what it reads, and launch again: a training of changed code begins anew, an unchanged one "
            f"resumes from its last checkpoint. The last lines of {self.log_file}:\n{self.tail}"
        )

    def say(self, line: str) -> None:
        """Write a line of a worker or of the launcher to the log."""
        self._log.write(line + "\n")
        self._tail.append(line)
        self._on_log(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
