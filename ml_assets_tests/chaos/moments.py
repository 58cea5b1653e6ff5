"""The moments at which a process can die by SIGKILL: before any of its operations on the files of its home (a
worker: in any of its steps), or a little later, in the middle of what it does then.

A moment is a place in the work, not a time, so that a slow machine moves none of them. Not here: the work
(`shop`), who chooses moments (the tests).
"""

import json
import os
import signal
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import dagster as dg

PHASES = ("ingest", "features", "snapshot", "train", "evaluate", "register")
"""Phases of the work, in order. `ingest` begins with an empty home, `snapshot` with judging its inputs."""
_STEPS = {"train", "evaluate", "register"}
_VARIABLE = "CHAOS_RANK_MOMENT"
_OPERATIONS = {
    "open", "sqlite3.connect", "subprocess.Popen",
    "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "shutil.rmtree", "shutil.copyfile",
}  # fmt: skip
"""Python tells of these through audit hooks. What SQLite does inside it does not tell: hence `Moment.later`."""


@dataclass(frozen=True)
class Moment:
    """Moment of a process's death."""

    phase: str
    operation: int
    """The so many-th of the phase; its end where it has fewer this time."""
    later: float = 0.0
    """Seconds after that; 0: just before it."""


@dataclass(frozen=True)
class RankMoment:
    """Moment of one worker's death, once."""

    rank: int
    step: int
    """The so many-th step of its first attempt."""
    later: float
    """Seconds after it began."""
    mark: str
    """Path of an empty file that then says it is done."""

    def announce(self) -> None:
        """To the workers this process will start."""
        os.environ[_VARIABLE] = json.dumps(self.__dict__)


class Pulse:
    """A worker's: `beat` at each of its steps."""

    def __init__(self) -> None:
        told = os.environ.get(_VARIABLE)
        moment = RankMoment(**json.loads(told)) if told else None
        self._moment = moment if moment and str(moment.rank) == os.environ.get("RANK") else None
        self._steps = 0

    def beat(self) -> None:
        """One step begins."""
        self._steps += 1
        if self._moment is None or self._steps != self._moment.step:
            return
        try:
            Path(self._moment.mark).touch(exist_ok=False)
        except FileExistsError:  # it died in an earlier attempt
            return
        _die(self._moment.later)


class Clock:
    """Counts the operations of this process by phase, and ends it by SIGKILL when its moment has come."""

    def __init__(self, home: Path, moment: Moment | None) -> None:
        self.operations: Counter[str] = Counter()
        self._home = str(home)
        self._moment = moment
        self._phase = ""
        self._is_dying = False
        sys.addaudithook(self._hear)

    def enter(self, phase: str) -> None:
        """The phase before is over."""
        if self._moment is not None and self._phase == self._moment.phase:
            _die()
        self._phase = phase

    def follow(self, instance: "dg.DagsterInstance") -> None:
        """Take the steps of the runs of `instance` as phases."""
        handle = instance.handle_new_event

        def handle_new_event(event: "dg.EventLogEntry", **options: Any) -> None:
            handle(event, **options)
            step = event.dagster_event
            if step is not None and step.is_step_start and step.step_key:
                name = step.step_key.rpartition(".")[2]
                if name in _STEPS:
                    self.enter(name)

        instance.handle_new_event = handle_new_event

    def _hear(self, operation: str, arguments: tuple[Any, ...]) -> None:
        if operation not in _OPERATIONS or not self._is_at_home(arguments):
            return
        self.operations[self._phase] += 1
        moment = self._moment
        if moment is None or self._is_dying:
            return
        if (self._phase, self.operations[self._phase]) == (moment.phase, moment.operation):
            self._is_dying = True
            _die(moment.later)

    def _is_at_home(self, arguments: tuple[Any, ...]) -> bool:
        return any(self._home in str(one) for one in arguments)


def _die(later: float = 0.0) -> None:
    if not later:
        os.kill(os.getpid(), signal.SIGKILL)
    killer = threading.Timer(later, _die)
    killer.daemon = True
    killer.start()
