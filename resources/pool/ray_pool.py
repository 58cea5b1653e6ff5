"""Workers that are tasks of Ray: of a cluster, or of a Ray of this machine that starts and ends with the tasks.

Ray's library ends its process when it loses the cluster. So it runs in a child process, the driver, and a lost cluster
becomes an error of the run. Ray's own retries are off: `schedule` counts the workers that a task ended. Not here: the
cluster (`own_ray.py`, docs/how-to/servers.md).
"""

import multiprocessing
import os
import pickle
import secrets
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from resources.addresses import Address, parts_of
from resources.extras import require
from resources.pool import (
    Call,
    Handover,
    Item,
    PartitionPool,
    PoolUnavailable,
    Result,
    TaskOutcome,
    WorkerHasOtherCode,
    answer_to,
    read_answer,
)
from resources.pool.own_ray import RayNotStarted, own_ray
from resources.pool.processes import without_main
from resources.pool.schedule import TaskLost, mapped

_POLL_SECONDS = 0.1
_CONNECT_SECONDS = 30.0
_JOIN_SECONDS = 60.0
"""Seconds for which a reached cluster may be without workers: they may be starting."""
_SLOW_START = "Proxy failed to Connect to backend"
"""Words of the client server of a head whose process for this client needs more than 30 s to listen."""
_STARTS = 4
"""Most processes that a head starts for this client, one after the other, until one listens."""
_END_SECONDS = 10.0
"""Seconds for which the driver may leave the cluster before it is killed."""


class RayPool:
    """Pool of Ray's tasks, one for each CPU of the cluster."""

    def __init__(self, address: Address | None, workers: int | None, seconds_here: float) -> None:
        """`address`: of the head; None: a Ray of this machine alone. `workers`: tasks at once; None: the CPUs of the
        cluster. `seconds_here`: see `schedule.begun_here`."""
        self._address = address
        self._workers = workers
        self._seconds_here = seconds_here

    def map(
        self,
        function: Callable[[Item], Result],
        items: Mapping[str, Item],
        handover: Handover[Item, Result] | None = None,
        at_once: int | None = None,
    ) -> Generator[Result]:
        """See `PartitionPool`. Also raises `PoolUnavailable`."""
        started = partial(self._started, at_once)
        return mapped(function, items, handover, self._seconds_here, started)

    @contextmanager
    def kept(self) -> Generator[PartitionPool]:
        """See `PartitionPool`. The connection stays."""
        kept = _KeptRayPool(self, self._workers, self._seconds_here)
        try:
            yield kept
        finally:
            kept.end()

    @contextmanager
    def _started(self, at_once: int | None, tasks: int) -> "Generator[_Driver]":
        limits = (self._workers, at_once, tasks)
        driver = self.connected(min(one for one in limits if one is not None))
        try:
            yield driver
        finally:
            driver.end()

    def connected(self, most: int | None) -> "_Driver":
        """Connect to the cluster for at most so many tasks at once; None: as many as it has CPUs."""
        require("ray")
        return _Driver(self._address, most)


class _KeptRayPool:
    """Pool whose connections stay after the tasks that needed them.

    A range has its connection alone: its end, which may end the connection, must not end tasks of another range.
    """

    def __init__(self, pool: RayPool, workers: int | None, seconds_here: float) -> None:
        self._pool = pool
        self._workers = workers
        self._seconds_here = seconds_here
        self._drivers: list[_Driver] = []
        self._idle: list[_Driver] = []

    def map(
        self,
        function: Callable[[Item], Result],
        items: Mapping[str, Item],
        handover: Handover[Item, Result] | None = None,
        at_once: int | None = None,
    ) -> Generator[Result]:
        """See `PartitionPool`. No task runs here once there is a connection."""
        if at_once is not None:  # the connection has another number
            return self._pool.map(function, items, handover, at_once)
        seconds_here = 0.0 if self._drivers else self._seconds_here
        return mapped(function, items, handover, seconds_here, self._lent)

    def kept(self) -> AbstractContextManager[PartitionPool]:
        """Return this pool."""
        return nullcontext(self)

    @contextmanager
    def _lent(self, _: int) -> "Generator[_Driver]":
        if self._idle:
            driver = self._idle.pop()
        else:
            driver = self._pool.connected(self._workers)
            self._drivers.append(driver)
        try:
            yield driver
        finally:
            if not driver.is_busy:
                self._idle.append(driver)
            elif driver in self._drivers:  # with tasks that nobody waits for any more
                self._drivers.remove(driver)
                driver.end()

    def end(self) -> None:
        """Leave the cluster."""
        while self._drivers:
            self._drivers.pop().end()


@dataclass(frozen=True)
class _Ready:
    """The driver reached the cluster."""

    workers: int


@dataclass(frozen=True)
class _Ended:
    """A call ended."""

    number: int
    outcome: bytes | TaskLost | WorkerHasOtherCode
    """A pickled `TaskOutcome`, or the reason why there is none."""


@dataclass(frozen=True)
class _Away:
    """The cluster does not answer."""

    said: str


class _Driver:
    """Child process that is connected to the cluster: `Workers`. A handle is the number of a call."""

    def __init__(self, address: Address | None, most: int | None) -> None:
        self._place = "Ray of this machine" if address is None else f"Ray at {address}"
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_drive, args=(theirs, address, most), daemon=True)
        with without_main():
            self._process.start()
        theirs.close()  # the end of the child is then the end of the pipe
        self._calls = self._answers = 0
        self._calls_of: dict[int, Call] = {}
        self._outcomes: dict[int, bytes | TaskLost | WorkerHasOtherCode] = {}
        try:
            ready = self._next("did not answer")
        except BaseException:
            self.end()
            raise
        assert isinstance(ready, _Ready)
        self.number = ready.workers

    @property
    def is_busy(self) -> bool:
        """True if a call has no answer yet."""
        return self._calls > self._answers

    def start(self, call: Call) -> int:
        self._calls += 1
        self._calls_of[self._calls] = call
        with suppress(BrokenPipeError):  # `wait` says it
            self._pipe.send((self._calls, call))
        return self._calls

    def wait(self, handles: Collection[int]) -> Collection[int]:
        while not (done := [one for one in handles if one in self._outcomes]):
            ended = self._next("was lost")
            assert isinstance(ended, _Ended)
            self._outcomes[ended.number] = ended.outcome
        return done

    def answer(self, handle: int) -> TaskOutcome:
        outcome, call = self._outcomes.pop(handle), self._calls_of.pop(handle)
        self._answers += 1
        if isinstance(outcome, Exception):
            raise outcome
        return read_answer(call, outcome)

    def _next(self, what_happened: str) -> _Ready | _Ended:
        try:
            message: _Ready | _Ended | _Away = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            message = _Away("its driver ended")
        if isinstance(message, _Away):
            raise PoolUnavailable(
                f"{self._place} {what_happened}: {message.said}. What was merged before stays. Look at the cluster "
                "(ray status), then repeat the run; ML_ASSETS_POOL=processes makes the rest on this machine"
            )
        return message

    def end(self) -> None:
        """Leave the cluster, which ends the tasks in progress there."""
        with suppress(BrokenPipeError):
            self._pipe.send(None)
        self._process.join(_END_SECONDS)
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _drive(pipe: Connection, address: Address | None, most: int | None) -> None:
    """Pass calls from `pipe` to the cluster, and their outcomes back, until it is closed or sends None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run's process decides
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray lets workers import what is in the folder of the driver: those of a cluster have code of their own.
    os.chdir("/")
    if address is not None:
        _pass_on(pipe, address.reveal(), most)
        return
    # Workers import what this process does. Only it and its children may use this Ray. Without a token, Ray would write
    # one to the user's home.
    os.environ |= {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    try:
        with own_ray(most or len(os.sched_getaffinity(0)), os.environ) as own:
            _pass_on(pipe, own.address, most)
    except RayNotStarted as error:
        pipe.send(_Away(str(error)))


def _pass_on(pipe: Connection, address: str, most: int | None) -> None:
    ray: Any = import_module("ray")  # it reads the environment at its import, and has no complete types
    try:
        _require_listener(address)
        _connect(ray, address)
        cpus = _cpus(ray)
        number = min(most or cpus, cpus)
    except Exception as error:  # some of its errors have no type of their own
        pipe.send(_Away(_in_a_line(error)))
        return
    try:
        pipe.send(_Ready(number))
        _run_calls(ray, pipe, number)
    except (EOFError, BrokenPipeError):
        pass  # the run was killed
    except (OSError, RuntimeError, ray.exceptions.RayError) as error:
        pipe.send(_Away(_in_a_line(error)))
    ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    """Connect to the cluster. A client (`ray://`) tries several times.

    The head forks a process for each client while its own threads use gRPC. Sometimes that process ends at once,
    without a word, and the client gets one of several errors that have no type of their own.
    """
    for left in reversed(range(_STARTS if parts_of(address).scheme == "ray" else 1)):
        try:
            ray.init(address)
            return
        except Exception:
            if not left:
                raise


def _require_listener(address: str) -> None:
    """Raise an `OSError` if nobody listens at the address: Ray itself would try for minutes."""
    parts = parts_of(address)
    port = parts.port or (10001 if parts.scheme == "ray" else 6379)
    socket.create_connection((parts.hostname or "", port), _CONNECT_SECONDS).close()


def _cpus(ray: Any) -> int:
    """Return the CPUs of the cluster. Raises `TimeoutError` if it has none."""
    waiting_until = time.monotonic() + _JOIN_SECONDS
    while not (cpus := int(ray.cluster_resources().get("CPU", 0))):
        if time.monotonic() > waiting_until:
            raise TimeoutError(f"it has no worker, {_JOIN_SECONDS:g} s long")
        time.sleep(_POLL_SECONDS)
    return cpus


def _in_a_line(error: BaseException) -> str:
    """Return type and first line of a message of Ray. The other lines are a traceback, whose last line is its error."""
    first, *more = str(error).strip().splitlines() or [""]
    if _SLOW_START in str(error):
        return (
            "the head gave up its wait for the process that it starts for each client: give it more seconds for that "
            "(start the head with RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S=300)"
        )
    said = f"{first} {more[-1]}" if more and first.endswith(":") else first
    return f"{type(error).__name__}: {said.rstrip('.')}"


def _run_calls(ray: Any, pipe: Connection, at_once: int) -> None:
    remote = ray.remote(num_cpus=1, max_retries=0)(_run)
    waiting: deque[tuple[int, Call]] = deque()
    running: dict[Any, int] = {}
    while True:
        while pipe.poll(0 if running or waiting else None):
            message = pipe.recv()
            if message is None:
                return
            waiting.append(message)
        while waiting and len(running) < at_once:
            number, call = waiting.popleft()
            running[remote.remote(pickle.dumps(call))] = number
        done, _ = ray.wait(list(running), num_returns=1, timeout=_POLL_SECONDS)
        for one in done:
            pipe.send(_Ended(running.pop(one), _outcome(ray, one)))


def _outcome(ray: Any, of: Any) -> bytes | TaskLost | WorkerHasOtherCode:
    lost = ray.exceptions
    try:
        return ray.get(of)
    except (
        lost.WorkerCrashedError,
        lost.NodeDiedError,
        lost.ObjectLostError,
        lost.OutOfMemoryError,
    ) as error:
        return TaskLost(f"Ray: {type(error).__name__}")
    except lost.RayTaskError as error:
        # `run_call` answers with the task's own errors: what is raised beside them comes before it.
        return WorkerHasOtherCode(
            f"a worker of Ray cannot run the code of this process ({str(error).strip().splitlines()[-1]}): give the "
            "workers the image, the folder and the Python of this run"
        )


def _run(call: bytes) -> bytes:
    return answer_to(pickle.loads(call), socket.gethostname())
