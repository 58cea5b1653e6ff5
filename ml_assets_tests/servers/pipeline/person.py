"""A process that does on the servers what a person does at a terminal, and rings a bell at chosen moments.

A moment is a place in the work, as in `ml_assets_tests.chaos.moments`: the so many-th file of the home or request to
a server within a phase. Whoever hears the bell breaks something; the work goes on when he lets it. Not here: what is
broken (`test_killed_servers`), what must stand afterwards (`ml_assets_tests.chaos.installation`).
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from ml_assets.cli.project import prepare_home
from ml_assets_tests.chaos import user
from ml_assets_tests.chaos.moments import Clock, Moment
from ml_assets_tests.chaos.shop import SALES, Shop
from resources.settings import Settings

_REQUEST = "http.client.send"


@dataclass(frozen=True)
class Person:
    """One process at work."""

    process: ForkServerProcess
    bell: Connection
    """Tells the phase when a moment has come; the process waits for an answer."""
    said: Path
    """File of its terminal output."""


def start(variables: Mapping[str, str], moments: Sequence[Moment] = ()) -> Person:
    """Begin to run everything on the installation that `variables` name, ringing at each of `moments`."""
    said = Path(variables["ML_ASSETS_HOME"]).with_name("said")
    context = user.context()
    ours, theirs = context.Pipe()
    process = context.Process(target=_run_all, args=(dict(variables), said, tuple(moments), theirs))
    process.start()
    theirs.close()
    return Person(process, ours, said)


class _Bell(Clock):
    """Counts files and requests by phase, and rings at each moment in turn: at the latest when its phase ends."""

    def __init__(self, home: Path, moments: Sequence[Moment], ring: Callable[[str], None]) -> None:
        self._pending = list(moments)
        self._ring = ring
        super().__init__(home, None)

    def enter(self, phase: str) -> None:
        while self._pending and self._pending[0].phase == self._phase:
            self._come()
        super().enter(phase)

    def _hear(self, operation: str, arguments: tuple[Any, ...]) -> None:
        if operation == _REQUEST:
            self.operations[self._phase] += 1
        else:
            super()._hear(operation, arguments)
        if self._pending:
            moment = self._pending[0]
            if moment.phase == self._phase and self.operations[self._phase] >= moment.operation:
                self._come()

    def _come(self) -> None:
        self._ring(self._pending.pop(0).phase)


def _run_all(variables: dict[str, str], said: Path, moments: Sequence[Moment], bell: Connection) -> None:
    terminal = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(terminal, 1)
    os.dup2(terminal, 2)
    os.environ.update(variables)

    def ring(phase: str) -> None:
        bell.send(phase)
        bell.recv()

    settings = Settings()
    clock = _Bell(settings.home, moments, ring)
    clock.enter("ingest")
    prepare_home(settings)
    shop = Shop(settings)
    clock.follow(shop.instance)
    shop.run_all(lambda name: clock.enter(user.PHASE_OF[name]) if name != SALES else None)
    clock.enter("")
