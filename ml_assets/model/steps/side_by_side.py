"""Trainings side by side: each in a thread of this process, all led by the thread that called.

The leader begins the work, takes its results and speaks to the page: Dagster's page and signals belong to one thread.
A training follows its workers in its thread, which an exception ends, as Ctrl-C would. Not here: the work (`tune`).
"""

import ctypes
import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, TypeVar

from ml_assets.model.steps.live import StudyPage, TrainingPage

Result = TypeVar("Result")
_POLL_SECONDS = 0.5
"""Longest wait of the leader before it notices Ctrl-C, which may arrive without waking it."""
_AGAIN_SECONDS = 5.0
"""Time after which a piece of work that goes on is interrupted again. Python drops an exception that it raises within a
destructor, or within a callback of a weak reference or of the garbage collector."""


class StoppedWithOthers(BaseException):
    """The study ended while this training ran: its workers save a checkpoint and end.

    Not an `Exception`, so that MLflow shows the run as KILLED, which may go on, not as FAILED.
    """


class SideBySide(Generic[Result]):
    """Up to `most` pieces of work at once. With 1, the work runs in the caller's thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._leader = threading.current_thread()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._running: set[threading.Thread] = set()
        self._ended: set[threading.Thread] = set()
        """Threads whose work raised."""

    def run(
        self, next_work: Callable[[], Callable[[], Result] | None], done: Callable[[Result], None]
    ) -> None:
        """Begin work until `next_work` returns None and all work has ended. Pass each result to `done`.

        Both are called in this thread, one call at a time. `next_work` is called again after each result. If one of
        them, or a piece of work, raises, or a signal interrupts this thread, all other work is stopped at once, each
        piece by `StoppedWithOthers` in its thread, unless an exception of its own ends it already; the exception is
        raised again after all threads have ended.
        """
        try:
            while True:
                while len(self._running) < self._most and (work := next_work()) is not None:
                    if self._most == 1:
                        done(work())
                    else:
                        self._start(work, done)
                if not self._running:
                    return
                running = len(self._running)
                while len(self._running) == running:
                    self._answer()
        except BaseException:
            self._stop()
            raise

    def say(self, call: Callable[[], None]) -> None:
        """Run `call` in the leader's thread: at once there, soon from the thread of a piece of work."""
        if threading.current_thread() is self._leader:
            call()
        else:
            self._calls.put(call)

    def _start(self, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
        def follow() -> None:
            try:
                result = work()
            except BaseException as error:
                self._ended.add(thread)
                self._calls.put(lambda error=error: self._fail(thread, error))
            else:
                self._calls.put(lambda: self._end(thread, result, done))

        # A daemon: if a second signal ends the leader's wait for it, its workers see the end of their stdin and save.
        thread = threading.Thread(target=follow, daemon=True)
        self._running.add(thread)
        thread.start()

    def _answer(self) -> None:
        """Run the next call of a piece of work, or return after a while."""
        try:
            call = self._calls.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            return
        call()

    def _end(self, thread: threading.Thread, result: Result, done: Callable[[Result], None]) -> None:
        self._running.discard(thread)
        done(result)

    def _fail(self, thread: threading.Thread, error: BaseException) -> None:
        self._running.discard(thread)
        raise error

    def _stop(self) -> None:
        told: dict[threading.Thread, float] = {}
        while alive := [thread for thread in self._running - self._ended if thread.is_alive()]:
            now = time.monotonic()
            for thread in alive:
                # A piece of work that ends by its own exception gives its workers time to save: a second exception
                # would cut this time.
                if now - told.get(thread, -math.inf) > _AGAIN_SECONDS and not _handles_exception(thread):
                    told[thread] = now
                    _interrupt(thread)
            alive[0].join(_POLL_SECONDS)


def _handles_exception(thread: threading.Thread) -> bool:
    """True while the code of `thread` is in an `except` or a `finally` that an exception reached."""
    handled = sys._current_exceptions().get(thread.ident or 0)  # pyright: ignore[reportPrivateUsage]
    return handled not in (None, (None, None, None))  # Python 3.11 has a triple for each thread


def _interrupt(thread: threading.Thread) -> None:
    """Raise `StoppedWithOthers` in `thread` when its code runs next: launchers look at workers each second."""
    assert thread.ident is not None  # it was started
    # The only way to interrupt a thread wherever it waits.
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(StoppedWithOthers)
    )


class LedPage:
    """Page of a study that speaks in the leader's thread, whoever calls it."""

    def __init__(self, page: StudyPage, leader: SideBySide[Result]) -> None:
        self._page, self._say = page, leader.say

    def info(self, text: str) -> None:
        self._say(partial(self._page.info, text))

    def of_trial(self, number: int) -> TrainingPage:
        return _LedTrialPage(self._page.of_trial(number), self._say)


class _LedTrialPage:
    def __init__(self, page: TrainingPage, say: Callable[[Callable[[], None]], None]) -> None:
        self._page, self._say = page, say

    def info(self, text: str) -> None:
        self._say(partial(self._page.info, text))

    def warning(self, text: str) -> None:
        self._say(partial(self._page.warning, text))

    def observe(self, step: int, numbers: Mapping[str, float]) -> None:
        self._say(partial(self._page.observe, step, numbers))
