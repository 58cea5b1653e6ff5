"""Workers that are killed while they work on a snapshot: a pool around another, and its tasks."""

import os
import signal
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resources.pool import Handover, PartitionPool


@dataclass(frozen=True, kw_only=True)
class DeadlyTask:
    """A task whose worker is killed if there is a mark, which goes with it."""

    function: Callable[[Any], Any]
    item: Any
    marks: Path
    """Folder of the marks. The name of a mark is the number of seconds before the kill; none: after the last one."""


def run(task: DeadlyTask) -> Any:
    """Run the task; die before, in the middle, or after it, before its answer."""
    for mark in sorted(task.marks.iterdir()):
        with suppress(FileNotFoundError):  # another worker was faster
            mark.unlink()
            threading.Timer(float(mark.name), os.kill, (os.getpid(), signal.SIGKILL)).start()
            task.function(task.item)
            os.kill(os.getpid(), signal.SIGKILL)
    return task.function(task.item)


class DeadlyPool:
    """Pool whose workers are killed, once for each mark."""

    def __init__(self, pool: PartitionPool, marks: Path) -> None:
        self._pool = pool
        self._marks = marks

    def map(
        self,
        function: Callable[[Any], Any],
        items: Mapping[str, Any],
        handover: Handover[Any, Any] | None = None,
        at_once: int | None = None,
    ) -> Generator[Any]:
        """See `PartitionPool`."""
        tasks = {
            name: DeadlyTask(function=function, item=item, marks=self._marks) for name, item in items.items()
        }
        # A task that is alone runs in this process, which must live.
        return (
            self._pool.map(run, tasks, handover, at_once)
            if len(tasks) > 1
            else self._pool.map(function, items)
        )

    @contextmanager
    def _kept(self) -> Generator[PartitionPool]:
        with self._pool.kept() as kept:
            yield DeadlyPool(kept, self._marks)

    def kept(self) -> AbstractContextManager[PartitionPool]:
        """See `PartitionPool`."""
        return self._kept()
