"""Callbacks of a launcher that keep what it tells, and the processes that they see."""

import inspect
import time
from collections.abc import Callable
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import PContext

from ml_assets_tests.training.small_jobs import alive
from resources.job.events import TrainingEvent
from resources.job.job import TrainingJob, TrainingResult
from resources.job.reserved import RESERVED
from resources.launcher.local import LocalLauncher

SECONDS_TO_SAVE = float(inspect.signature(PContext.close).parameters["timeout"].default)
"""The agent kills ranks that it asked to end and that still run so much later."""


class Watcher:
    """Callbacks of a launcher. Keeps events and log lines, and may react to events of the workers."""

    def __init__(self, react: Callable[["Watcher", TrainingEvent], None] | None = None) -> None:
        self.events: list[TrainingEvent] = []
        self.log: list[str] = []
        self.pids: list[int] = []
        self._react = react

    def on_event(self, event: TrainingEvent) -> None:
        self.events.append(event)
        if event.kind == "started":
            self.pids += event.values["pids"]
        if self._react is not None and event.kind != RESERVED:
            self._react(self, event)

    def kinds(self) -> list[str]:
        """Return the kinds of the workers' events. The launcher's own reports are left out."""
        return [event.kind for event in self.events if event.kind != RESERVED]

    def run(self, job: TrainingJob, folder: Path) -> TrainingResult:
        return LocalLauncher().run(job, folder, self.on_event, self.log.append)


Unbroken = tuple[TrainingJob, Path, TrainingResult, Watcher]
"""A job, its folder, its result and its watcher."""


def children_of(pid: int, command: str) -> list[int]:
    """Return the children of a process whose command line holds `command`."""
    children = [
        int(child)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    return [child for child in children if command in Path(f"/proc/{child}/cmdline").read_text()]


def wait_until_dead(pids: list[int]) -> None:
    """Wait for the end of ranks that the agent ends after one of them."""
    deadline = time.monotonic() + 2 * SECONDS_TO_SAVE
    while alive(pids):
        assert time.monotonic() < deadline, "a rank outlives the other"
        time.sleep(0.02)
