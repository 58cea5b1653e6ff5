"""Threads that predict while a model has a canary, so that a slow canary holds up nothing but its own requests.

Champion and canary of each model have a few threads each, so that their latencies are compared alike. A request waits
for its canary up to a bound, and then production answers. A prediction that nobody waits for any more still occupies
its thread; while all are occupied, further requests wait up to the same bound. The threads are daemons: a canary that
hangs for ever does not keep the process from ending.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

THREADS = 2
"""Threads of a version."""
MOST = 64
"""Requests that wait for a canary, or that it still works on. Further ones get production's answer at once."""

Answer = TypeVar("Answer")


class CanaryTooSlow(Exception):
    """The canary did not answer within the bound. Production answers, and the log has this error."""


class CanaryThreads:
    """Threads of all models of a server; they start with the first request beside a canary."""

    def __init__(self, seconds: float) -> None:
        """Wait for a canary up to `seconds`."""
        self._seconds = seconds
        self._queues: dict[str, SimpleQueue[tuple[Future[Any], Callable[[], Any]]]] = {}
        self._open: dict[str, int] = {}
        self._lock = threading.Lock()

    async def of_canary(self, model: str, work: Callable[[], Answer]) -> Answer:
        """Return what `work` returns in a thread of the canary. Raises `CanaryTooSlow`, and what `work` raises."""
        too_slow = CanaryTooSlow(f"no answer within {self._seconds:g} s, so production answered")
        name = f"{model} canary"
        if self._open.get(name, 0) >= MOST:
            raise too_slow
        try:
            return await asyncio.wait_for(self._call(name, work), self._seconds)
        except TimeoutError:
            raise too_slow from None

    async def of_production(self, model: str, work: Callable[[], Answer]) -> Answer:
        """Return what `work` returns in a thread of the champion. Raises what `work` raises."""
        return await self._call(f"{model} production", work)

    def _call(self, name: str, work: Callable[[], Answer]) -> "asyncio.Future[Answer]":
        with self._lock:
            self._open[name] = self._open.get(name, 0) + 1
            if name not in self._queues:
                queue = self._queues[name] = SimpleQueue()
                for _ in range(THREADS):
                    threading.Thread(target=_work, args=(queue,), name=name, daemon=True).start()
        done: Future[Answer] = Future()
        done.add_done_callback(lambda _: self._close(name))
        self._queues[name].put((done, work))
        return asyncio.wrap_future(done)

    def _close(self, name: str) -> None:
        with self._lock:
            self._open[name] -= 1


def _work(queue: "SimpleQueue[tuple[Future[Any], Callable[[], Any]]]") -> None:
    while True:
        done, work = queue.get()
        if not done.set_running_or_notify_cancel():
            continue
        try:
            result = work()
        except BaseException as error:  # whatever it is, the request that waits has to know
            done.set_exception(error)
        else:
            done.set_result(result)
