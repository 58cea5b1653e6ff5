"""Threads that predict while a model has a canary, so that a slow canary holds up nothing but its own requests.

Champion and canary of each model have a few threads each, so that their latencies are compared alike. A request waits
for a thread of the canary up to a bound, and for the prediction up to the same bound; then production answers. Only a
prediction that takes too long is the canary's error. Too many requests at once are not, since they would wait for the
champion's threads as well, and a list that takes long is not, since its client chooses its length. The champion has no
bound: its answer is always sent. But an answer that a canary would have lost counts against the champion in the
comparison, too (`too_slow_for`). The threads are daemons: a canary that hangs for ever does not keep the process from
ending.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

THREADS = 2
"""Threads of a version."""
MOST = 64
"""Requests that wait for a canary, or that it still works on. Further ones get production's answer at once."""

Answer = TypeVar("Answer")


LIST_TIMES = 60
"""A list that holds a thread for that many times the bound hangs: only then it is the canary's error."""


class CanaryTooSlow(Exception):
    """The canary did not predict within the bound. Production answers, and the log has this error."""

    def __init__(self, seconds: float, *, hangs: bool) -> None:
        super().__init__(f"no answer within {seconds:g} s")
        self.hangs = hangs
        """True if earlier requests hold all threads."""


class CanaryBusy(Exception):
    """No thread of the canary took the request within the bound. Production answers; the canary has no part in it."""


class _Job:
    """Work of one request."""

    def __init__(self, work: Callable[[], Any], times: int) -> None:
        self.work, self.times = work, times
        self.done: Future[Any] = Future()
        self.began: float | None = None
        """Moment at which a thread took it, by the monotonic clock."""


class _Side:
    """Threads of one version of a model, and its requests. Its attributes change under `lock`."""

    def __init__(self, name: str) -> None:
        self.open = 0
        """Requests that wait or are worked on."""
        self.running: set[_Job] = set()
        self.lock = threading.Lock()
        self._queue: SimpleQueue[_Job] = SimpleQueue()
        for _ in range(THREADS):
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def put(self, work: Callable[[], Any], is_list: bool) -> _Job:
        job = _Job(work, LIST_TIMES if is_list else 1)
        with self.lock:
            self.open += 1
        job.done.add_done_callback(lambda _: self._close())
        self._queue.put(job)
        return job

    def is_held(self, seconds: float) -> bool:
        """Return True if each thread has worked `seconds` or longer on a row, or `LIST_TIMES` that on a list."""
        now = time.monotonic()
        with self.lock:
            held = [
                job
                for job in self.running
                if job.began is not None and now - job.began >= job.times * seconds
            ]
        return len(held) >= THREADS

    def _close(self) -> None:
        with self.lock:
            self.open -= 1

    def _work(self) -> None:
        while True:
            job = self._queue.get()
            job.began = time.monotonic()
            if not job.done.set_running_or_notify_cancel():
                continue
            with self.lock:
                self.running.add(job)
            try:
                result = job.work()
            except BaseException as error:  # whatever it is, the request that waits has to know
                end, result = job.done.set_exception, error
            else:
                end = job.done.set_result
            with self.lock:
                self.running.remove(job)
            end(result)


class CanaryThreads:
    """Threads of all models of a server; they start with the first request beside a canary."""

    def __init__(self, seconds: float) -> None:
        """Wait up to `seconds` for a thread of a canary, and as long for its prediction."""
        self._seconds = seconds
        self._sides: dict[str, _Side] = {}
        self._lock = threading.Lock()

    async def of_canary(self, model: str, work: Callable[[], Answer], *, is_list: bool = False) -> Answer:
        """Return what `work` returns in a thread of the canary.

        Raises `CanaryTooSlow`, also at once while earlier requests hold all threads longer than the bound;
        `CanaryBusy`; and what `work` raises.
        """
        side = self._side(f"{model} canary")
        self._refuse_if_held(side)
        if side.open >= MOST:
            raise CanaryBusy(f"{MOST} requests wait for the canary")
        job = side.put(work, is_list)
        answer = asyncio.wrap_future(job.done)
        try:
            await asyncio.wait({answer}, timeout=self._seconds)
            if not answer.done() and job.done.cancel():  # no thread has taken it
                self._refuse_if_held(side)
                raise CanaryBusy(f"no thread of the canary was free within {self._seconds:g} s")
            while not answer.done():
                left = (job.began or 0.0) + self._seconds - time.monotonic()
                if left <= 0:
                    raise CanaryTooSlow(self._seconds, hangs=False)
                await asyncio.wait({answer}, timeout=left)
            return answer.result()
        finally:
            answer.cancel()  # nobody waits for it any more, if it is still to come

    def too_slow_for(self, model: str) -> Callable[[float], CanaryTooSlow | None]:
        """Return a function of the seconds of a prediction that the champion begins now: the error that a canary would
        have had with it, or None."""
        is_held = self._side(f"{model} production").is_held(self._seconds)

        def why(took: float) -> CanaryTooSlow | None:
            return CanaryTooSlow(self._seconds, hangs=is_held) if is_held or took > self._seconds else None

        return why

    async def of_production(self, model: str, work: Callable[[], Answer], *, is_list: bool = False) -> Answer:
        """Return what `work` returns in a thread of the champion. Raises what `work` raises."""
        return await asyncio.wrap_future(self._side(f"{model} production").put(work, is_list).done)

    def _side(self, name: str) -> _Side:
        with self._lock:
            if name not in self._sides:
                self._sides[name] = _Side(name)
            return self._sides[name]

    def _refuse_if_held(self, side: _Side) -> None:
        if side.is_held(self._seconds):
            raise CanaryTooSlow(self._seconds, hangs=True)
