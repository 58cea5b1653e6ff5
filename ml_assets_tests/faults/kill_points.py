"""Points of the work at which a process is killed or pauses: before an operation on the files of its home (a rank: in
a step), or a little later, in the middle of what it does then.

A point is a place in the work, not a time, so a slow machine moves none of them. Not here: the work
(`demand_project`), the choice of points (the tests).
"""

import json
import os
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import dagster as dg

PHASES = ("ingest", "features", "snapshot", "train", "evaluate", "register")
"""Phases of the work, in order. `ingest` begins with an empty home, `snapshot` with validating its inputs."""
LATEST_SECONDS = 0.03
"""Seconds after an operation; most take less than that."""
_STEPS = {"train", "evaluate", "register"}
_VARIABLE = "RANK_KILL_POINT"
_FILE_OPERATIONS = {
    "open", "sqlite3.connect", "subprocess.Popen",
    "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "shutil.rmtree", "shutil.copyfile",
}  # fmt: skip
"""Audit hooks report these. They do not report what SQLite does inside: hence `KillPoint.later`."""
_REQUEST = "http.client.send"


@dataclass(frozen=True)
class KillPoint:
    """Point of the work of a command."""

    phase: str
    operation: int
    """Number of the operation within the phase; the end of the phase where it has fewer this time."""
    later: float = 0.0
    """Seconds after that; 0: just before it."""


@dataclass(frozen=True)
class RankKillPoint:
    """Point at which one rank is killed, once."""

    rank: int
    step: int
    """Number of the step within its first attempt."""
    later: float
    """Seconds after the step began."""
    mark: str
    """Path of an empty file that then says it is done."""

    def announce(self) -> None:
        """Tell the ranks that this process will start."""
        os.environ[_VARIABLE] = json.dumps(self.__dict__)


def random_kill_points(
    phase: str, operations: Mapping[str, int], draw: random.Random
) -> tuple[KillPoint, ...]:
    """Draw a point in `phase`; sometimes a second one for the rerun, not earlier on its way.

    `operations` holds the number of operations of each phase in an undisturbed run.
    """
    phases = [phase]
    if draw.random() < 1 / 3:
        phases.append(draw.choice(PHASES[PHASES.index(phase) :]))
    return tuple(
        KillPoint(
            name, draw.randint(1, operations[name]), draw.choice((0.0, draw.uniform(0, LATEST_SECONDS)))
        )
        for name in phases
    )


class RankKillSwitch:
    """Kills this rank at its announced point."""

    def __init__(self) -> None:
        told = os.environ.get(_VARIABLE)
        point = RankKillPoint(**json.loads(told)) if told else None
        self._point = point if point and str(point.rank) == os.environ.get("RANK") else None
        self._steps = 0

    def begin_step(self) -> None:
        """Count a step, and die in it if it is the announced one."""
        self._steps += 1
        if self._point is None or self._steps != self._point.step:
            return
        try:
            Path(self._point.mark).touch(exist_ok=False)
        except FileExistsError:  # it died in an earlier attempt
            return
        _die(self._point.later)


class PhaseCounter:
    """Counts the operations of this process by phase. Subclasses act at chosen ones."""

    def __init__(self, home: Path, counts_requests: bool = False) -> None:
        self.operations: Counter[str] = Counter()
        self._home = str(home)
        self._counts_requests = counts_requests
        self._phase = ""
        sys.addaudithook(self._on_audit)

    def enter(self, phase: str) -> None:
        """End the phase before, and begin another one."""
        self.on_phase_end(self._phase)
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

    def on_operation(self, phase: str, number: int) -> None:
        """React to the operation `number` of a phase, just before it is done."""
        raise NotImplementedError

    def on_phase_end(self, phase: str) -> None:
        """React to the end of a phase."""
        raise NotImplementedError

    def _on_audit(self, operation: str, arguments: tuple[Any, ...]) -> None:
        is_request = self._counts_requests and operation == _REQUEST
        if is_request or (operation in _FILE_OPERATIONS and self._is_at_home(arguments)):
            self.operations[self._phase] += 1
            self.on_operation(self._phase, self.operations[self._phase])

    def _is_at_home(self, arguments: tuple[Any, ...]) -> bool:
        return any(self._home in str(one) for one in arguments)


class KillSwitch(PhaseCounter):
    """Kills this process by SIGKILL at a point; never without one."""

    def __init__(self, home: Path, point: KillPoint | None) -> None:
        self._point = point
        self._is_dying = False
        super().__init__(home)

    def on_operation(self, phase: str, number: int) -> None:
        if self._point is None or self._is_dying:
            return
        if (phase, number) == (self._point.phase, self._point.operation):
            self._is_dying = True
            _die(self._point.later)

    def on_phase_end(self, phase: str) -> None:
        if self._point is not None and phase == self._point.phase:
            _die()


class PauseBell(PhaseCounter):
    """Rings at each point in turn, at the latest when its phase ends. Requests to servers count as operations."""

    def __init__(self, home: Path, points: Sequence[KillPoint], ring: Callable[[str], None]) -> None:
        self._pending = list(points)
        self._ring = ring
        super().__init__(home, counts_requests=True)

    def on_operation(self, phase: str, number: int) -> None:
        if self._pending:
            point = self._pending[0]
            if point.phase == phase and number >= point.operation:
                self._ring_next()

    def on_phase_end(self, phase: str) -> None:
        while self._pending and self._pending[0].phase == phase:
            self._ring_next()

    def _ring_next(self) -> None:
        self._ring(self._pending.pop(0).phase)


def _die(later: float = 0.0) -> None:
    if not later:
        os.kill(os.getpid(), signal.SIGKILL)
    killer = threading.Timer(later, _die)
    killer.daemon = True
    killer.start()
