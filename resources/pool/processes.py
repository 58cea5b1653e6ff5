"""Workers that are processes of this machine."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait as wait_for
from types import ModuleType

from resources.pool import (
    Call,
    Handover,
    Item,
    PartitionPool,
    Result,
    TaskOutcome,
    answer_to,
    read_answer,
)
from resources.pool.code_text import code_here
from resources.pool.schedule import TaskLost, mapped

_START_SECONDS = 60.0
"""Seconds for which a worker may start before it is left alone at the end of the tasks."""
_LOOK_SECONDS = 0.3
"""Seconds between two looks for Ctrl-C. polars' handler of SIGINT lets the system continue a wait, so Ctrl-C would wait
for the end of a task."""
_ALLOCATOR = "narenas:1,dirty_decay_ms:5000"
"""Settings of polars' allocator, jemalloc, in a worker, read when polars is loaded. By default it has four places for
each core of the machine, and gives each back to the system after half a second of rest. A worker has the work of about
one core, and asks for the same memory again with its next task. With one place, kept for 5 s, it needs a sixth less CPU
time and no more memory."""


class ProcessPool:
    """Pool of processes of this machine. They start with the tasks that are left for them, and end with them."""

    def __init__(self, workers: int | None, seconds_here: float) -> None:
        """`workers`: processes; None: a process for each core that this process may use. `seconds_here`: see
        `schedule.begun_here`."""
        self._workers = workers or len(os.sched_getaffinity(0))
        self._seconds_here = seconds_here
        code_here()  # while the files are those that this process imports

    def map(
        self,
        function: Callable[[Item], Result],
        items: Mapping[str, Item],
        handover: Handover[Item, Result] | None = None,
        at_once: int | None = None,
    ) -> Generator[Result]:
        """See `PartitionPool`."""
        started = partial(self._started, at_once)
        return mapped(function, items, handover, self._seconds_here, started)

    @contextmanager
    def _started(self, at_once: int | None, tasks: int) -> "Generator[_Processes]":
        processes = _Processes([_Slot() for _ in range(min(self._workers, tasks, at_once or tasks))])
        try:
            yield processes
        finally:
            processes.end()

    @contextmanager
    def kept(self) -> Generator[PartitionPool]:
        """See `PartitionPool`."""
        kept = _KeptPool(self._workers, self._seconds_here)
        try:
            yield kept
        finally:
            kept.end()


class _KeptPool:
    """Pool whose processes stay after the tasks that started them.

    A range has its processes alone: the end of another range must not end or wait for its tasks.
    """

    def __init__(self, workers: int, seconds_here: float) -> None:
        self._workers = workers
        self._seconds_here = seconds_here
        self._slots: list[_Slot] = []
        self._idle: list[_Slot] = []

    def map(
        self,
        function: Callable[[Item], Result],
        items: Mapping[str, Item],
        handover: Handover[Item, Result] | None = None,
        at_once: int | None = None,
    ) -> Generator[Result]:
        """See `PartitionPool`. No task runs here once there are workers."""
        seconds_here = 0.0 if self._slots else self._seconds_here
        return mapped(function, items, handover, seconds_here, partial(self._lent, at_once))

    def kept(self) -> AbstractContextManager[PartitionPool]:
        """Return this pool."""
        return nullcontext(self)

    @contextmanager
    def _lent(self, at_once: int | None, tasks: int) -> "Generator[_Processes]":
        number = min(self._workers, tasks, at_once or tasks)
        idle, self._idle = self._idle[:number], self._idle[number:]
        started = [_Slot() for _ in range(number - len(idle))]
        self._slots += started
        lent = [*idle, *started]
        processes = _Processes(lent)
        try:
            yield processes
        finally:
            # Those that work are in the middle of tasks that nobody waits for any more.
            working = [one for one in lent if one.calls]
            self._slots = [one for one in self._slots if one not in working]
            self._idle += [one for one in lent if one not in working]
            processes.end_working()

    def end(self) -> None:
        """End all processes."""
        _Processes(self._slots).end()


@dataclass(eq=False)
class _Running:
    """A call that a process has."""

    slot: "_Slot"
    call: Call
    future: Future[bytes]
    """The pickled outcome."""
    executor: ProcessPoolExecutor
    began: bool = True
    """False if the process died while another call ran there."""


class _Processes:
    """Started processes: `Workers`."""

    def __init__(self, slots: "Sequence[_Slot]") -> None:
        self.number = len(slots)
        self._slots = slots

    def start(self, call: Call) -> _Running:
        return min(self._slots, key=lambda one: len(one.calls)).start(call)

    def wait(self, handles: Collection[_Running]) -> Collection[_Running]:
        done: set[Future[bytes]] = set()
        while not done:
            done = wait([one.future for one in handles], _LOOK_SECONDS, FIRST_COMPLETED).done
        return [one for one in handles if one.future in done]

    def answer(self, handle: _Running) -> TaskOutcome:
        return handle.slot.answer(handle)

    def end(self) -> None:
        """End the processes, also those that work."""
        for slot in self._slots:
            slot.end()

    def end_working(self) -> None:
        """End the processes that work."""
        for slot in self._slots:
            if slot.calls:
                slot.end()


class _Slot:
    """Place of one process. Of an executor with several, none could tell which task ended a process."""

    def __init__(self) -> None:
        self.calls: list[_Running] = []
        """Calls without an answer, in the order of their start. The first one runs."""
        self._begin()

    def _begin(self) -> None:
        # Spawned, not forked: threads of polars, which the copy would wait for, do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._executor = ProcessPoolExecutor(1, context, _prepare)
        with without_main():
            self._pid = self._executor.submit(os.getpid)

    def start(self, call: Call) -> _Running:
        try:
            future = self._executor.submit(_run, call)
        except BrokenProcessPool:
            self._begin_again()
            future = self._executor.submit(_run, call)
        self.calls.append(_Running(self, call, future, self._executor))
        return self.calls[-1]

    def answer(self, handle: _Running) -> TaskOutcome:
        try:
            return read_answer(handle.call, handle.future.result())
        except BrokenProcessPool as error:
            if handle.executor is self._executor:
                self._begin_again()
            raise TaskLost("its process was killed", began=handle.began) from error
        finally:
            self.calls.remove(handle)

    def _begin_again(self) -> None:
        for waiting in self.calls[1:]:
            waiting.began = False
        self._begin()

    def end(self) -> None:
        if self.calls:
            with suppress(BrokenProcessPool, TimeoutError, ProcessLookupError):
                os.kill(self._pid.result(_START_SECONDS), signal.SIGKILL)
        self._executor.shutdown(cancel_futures=True)


def _run(call: Call) -> bytes:
    # An answer that the executor cannot read would look like a dead worker.
    return answer_to(call, f"process {os.getpid()}")


def _prepare() -> None:
    """Prepare a worker: it ends with its parent, also if that is killed, and leaves Ctrl-C to it."""
    if "narenas" not in (inherited := os.environ.get("_RJEM_MALLOC_CONF", "")):
        os.environ["_RJEM_MALLOC_CONF"] = f"{inherited},{_ALLOCATOR}".lstrip(",")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


@contextmanager
def without_main() -> Generator[None]:
    """Hide the program of this process while a process is spawned, which would run its file as a module.

    A script that asks for a range at its top would ask again there. No task needs it (`import_path`).
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
