"""Heartbeats: each rank writes them; its agent reads them and kills a rank that stalls.

A stopped or stuck rank closes no connection, so the others would wait for it until a collective times out. A heartbeat
has two parts. A thread of the rank writes it twice a second; a process that is stopped, or that hangs in a call that
holds the GIL, does not. It also holds a counter of the loop's progress; a loop that waits forever does not raise it. If
one rank stalls, the others soon wait for it: a flag separates the ranks that wait from the rank that stalls.
Heartbeats are files in the job's temporary folder on this machine. Not here: starting ranks (node.agent), the decision
after an end (the launcher).
"""

import faulthandler
import logging
import math
import os
import re
import signal
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from resources.job.job import TrainingJob
from resources.threads import working_beside

log = logging.getLogger(__name__)

_WRITE_SECONDS = 0.5
_LOOK_SECONDS = 0.25
_ASLEEP_SECONDS = 2.0
"""Longer than this between two looks only if the whole machine or container was suspended."""
_STALL_SECONDS, _STALL_SECONDS_OF_SCRIPTS = 120.0, 600.0
"""Default of `stall_timeout_seconds`, for models and for scripts. A script reports fewer of its operations."""
_STALL_STEPS = 10.0
"""A step may also take this many times as long as the longest step before it."""
_FIRST_STEP = 15.0
"""Bound of the first step of an attempt, as a multiple of `stall_timeout_seconds`: kernels compile and caches fill.
Without a bound, a first all-reduce that never returned held its GPUs forever."""
_WAITING = 1.5
"""A rank that waits for ranks of other nodes gets this many times the limit: the agent of the rank that stands still
comes first, and names that rank."""
_LAST_WORDS_SECONDS = 0.5
"""Time from the request for a stack trace to SIGKILL."""
_SIGN = struct.Struct(
    "<qqd?"
)  # process, `Heartbeat.done`, time.monotonic(), True if it waits for another rank
_WAITS_IN = re.compile(
    r"[/\\](torch[/\\](distributed[/\\].*|autograd[/\\]graph)|training[/\\](process[/\\]group|script[/\\]meeting))\.py$"
)
"""Files whose code waits for other ranks. Backward passes do so in autograd's engine: hooks of DDP are not Python."""
_NAME = "heartbeat-{}"


class Heartbeat:
    """Heartbeat of this process, as a context manager; a clean exit deletes the file."""

    def __init__(self, local_rank: int) -> None:
        self._path = _folder() / _NAME.format(local_rank)
        self._moves = 0
        self._rests = True
        self._first: Callable[[int], None] | None = None
        self.newest_step = 0
        """Newest trained step of the job, for the place of an error."""
        self._over = threading.Event()

    def on_first_step(self, tell: Callable[[int], None]) -> None:
        """Call `tell` with the step number after the first trained step."""
        self._first = tell

    def step(self, step: int) -> None:
        """Count progress after `step` trained steps. Costs one addition: the thread does the writing."""
        self.moved()
        self.newest_step = step
        if self._first is not None:
            self._first(step)
            self._first = None

    @property
    def done(self) -> int:
        """Counter of the loop's progress; negative while no loop runs.

        Each change gives a new value. Otherwise an agent that looks once per step would see a loop that stands still.
        """
        return -1 - self._moves if self._rests else self._moves

    def begin(self) -> None:
        """Mark the start of a loop: the time to its first progress counts towards the longest step."""
        self._rests = False

    @contextmanager
    def bounded(self) -> Generator[None]:
        """Bound the block by the time that the first step of an attempt may take."""
        self.begin()
        try:
            yield
        finally:
            self.rest()

    def moved(self) -> None:
        """Count progress: a step, or a batch of validation."""
        self._moves += 1
        self._rests = False

    def rest(self) -> None:
        """Mark the end of a loop, for example while the rank saves. The next progress starts a loop again."""
        self._rests = True

    def __enter__(self) -> "Heartbeat":
        # The agent requests a stack trace before it kills this process, so that the log shows where it hangs.
        faulthandler.register(signal.SIGUSR2, all_threads=True)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
        self._write()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._over.wait(_WRITE_SECONDS):
            self._write()

    def _write(self) -> None:
        with suppress(OSError):  # the write that needs the space reports a full disk
            sign = _SIGN.pack(os.getpid(), self.done, time.monotonic(), _waits_for_rank())
            os.pwrite(self._descriptor, sign, 0)


def _waits_for_rank() -> bool:
    """Return True if the main thread of this process waits in a collective call."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # pyright: ignore[reportPrivateUsage]
    return frame is not None and _WAITS_IN.search(frame.f_code.co_filename) is not None


@dataclass(frozen=True, kw_only=True)
class HangTimeouts:
    """Seconds for which a rank may be silent."""

    heartbeat_timeout_seconds: float
    """Limit for a process without a heartbeat."""
    stall_timeout_seconds: float
    """Limit for a loop without progress, at least."""
    first_step_seconds: float = math.inf
    """Limit for a loop before its first step. Infinite for scripts, since a script may never report a step."""

    @classmethod
    def of(cls, job: TrainingJob) -> "HangTimeouts":
        """Read the timeouts from the job's settings, with the defaults for a model or a script."""
        default = _STALL_SECONDS_OF_SCRIPTS if job.script else _STALL_SECONDS
        settings = job.settings
        stall = settings.stall_timeout_seconds or default
        return cls(
            heartbeat_timeout_seconds=settings.heartbeat_timeout_seconds,
            stall_timeout_seconds=stall,
            first_step_seconds=math.inf if job.script else _FIRST_STEP * stall,
        )


@dataclass
class Seen:
    """The agent's view of one rank. Times are those of time.monotonic()."""

    done: int = -1
    since: float = 0.0
    """Time at which the counter last moved."""
    longest: float = 0.0
    """Longest time between two signs of progress so far, in seconds."""

    def why_end(self, done: int, alive: float, now: float, timeouts: HangTimeouts) -> str:
        """Return the reason to kill a rank with the counter `done` and its last heartbeat at `alive`; empty if there is
        no reason."""
        if now - alive > timeouts.heartbeat_timeout_seconds:
            limit = timeouts.heartbeat_timeout_seconds
            return f"gave no sign of life for {now - alive:.1f} s (heartbeat_timeout_seconds {limit:g})"
        if done != self.done:
            if min(done, self.done) >= 0:
                self.longest = max(self.longest, now - self.since)
            self.done, self.since = done, now
        still = now - self.since
        if still <= self.limit(timeouts):
            return ""
        if done == 0:
            return (
                f"did not finish its model, or its first step, within {still:.0f} s ({_FIRST_STEP:g} × "
                f"stall_timeout_seconds {timeouts.stall_timeout_seconds:g})"
            )
        return (
            f"finished no step for {still:.0f} s, its longest step before took {self.longest:.1f} s "
            f"(stall_timeout_seconds {timeouts.stall_timeout_seconds:g})"
        )

    def limit(self, timeouts: HangTimeouts) -> float:
        """Return the seconds for which the loop may stand still now."""
        if self.done < 0:
            return math.inf
        if self.done == 0:
            return timeouts.first_step_seconds
        return max(timeouts.stall_timeout_seconds, _STALL_STEPS * self.longest)


class Watch:
    """Agent's side: watches the ranks of this machine."""

    def __init__(self, ranks: int, timeouts: HangTimeouts, *, is_alone: bool = True) -> None:
        """`is_alone`: these are all ranks of the job; other nodes have none."""
        self._ranks = range(ranks)
        self._timeouts = timeouts
        self._is_alone = is_alone
        self._seen = [Seen() for _ in self._ranks]
        self._awake = time.monotonic()
        self.ended: dict[int, str] = {}
        """Local rank → reason for which the agent killed it."""

    @contextmanager
    def watching(self) -> Generator[None]:
        """Watch the ranks while the block runs."""
        for rank in self._ranks:
            _path(rank).unlink(missing_ok=True)
        with working_beside(self._watch, "watch"):
            yield

    def silent(self) -> list[int]:
        """Return local ranks that ended without a clean exit: killed by the kernel or another process."""
        return [rank for rank in self._ranks if _path(rank).exists() and rank not in self.ended]

    def _watch(self, over: threading.Event) -> None:
        looked = time.monotonic()
        while not over.wait(_LOOK_SECONDS):
            now = time.monotonic()
            if now - looked > _ASLEEP_SECONDS:  # this process was suspended too, so silence means nothing
                self._awake = now
            looked = now
            self._look(now)

    def _look(self, now: float) -> None:
        """Kill a rank that was silent for too long at `now`; the others lose it, and end by themselves.

        The log has to name the rank that stands still, not one that waits for it.
        """
        signs = {
            rank: sign
            for rank in self._ranks
            if rank not in self.ended and (sign := _read(rank)) is not None and _is_there(sign.pid)
        }
        alive = {rank: max(sign.at, self._awake) for rank, sign in signs.items()}
        whys = {
            rank: self._seen[rank].why_end(sign.done, alive[rank], now, self._timeouts)
            for rank, sign in signs.items()
        }
        if not (late := [rank for rank, why in whys.items() if why]):
            return
        # A stopped process says what it did before.
        timeout = self._timeouts.heartbeat_timeout_seconds
        waiting = {rank for rank, sign in signs.items() if sign.waits and now - alive[rank] <= timeout}
        rank = min(late, key=lambda one: one in waiting)
        why = whys[rank]
        if rank in waiting:
            half = (now + self._seen[rank].since) / 2
            still = [one for one in signs if one not in waiting and signs[one].done >= 0]
            awaited = min(still, key=lambda one: self._seen[one].since, default=rank)
            if self._seen[awaited].since <= half and awaited != rank:
                took = now - self._seen[awaited].since
                rank, why = awaited, f"finished no step for {took:.0f} s; rank {rank} waits for it and {why}"
            elif not self._is_alone and self._waits_shortly(rank, now):
                return
            else:
                why = f"{why}; it waits for another rank"
        self.ended[rank] = why
        _end(rank, signs[rank].pid, why)

    def _waits_shortly(self, rank: int, now: float) -> bool:
        """Return True while the agent of another node may still find the rank that `rank` waits for."""
        seen = self._seen[rank]
        return now - seen.since <= _WAITING * seen.limit(self._timeouts)


def _end(rank: int, pid: int, why: str) -> None:
    log.error("local rank %d (process %d) %s: killing it", rank, pid, why)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR2)
        time.sleep(_LAST_WORDS_SECONDS)
        os.kill(pid, signal.SIGKILL)


class _Sign(NamedTuple):
    """Content of a heartbeat."""

    pid: int
    done: int
    at: float
    waits: bool


def _read(rank: int) -> _Sign | None:
    try:
        content = _path(rank).read_bytes()
    except FileNotFoundError:
        return None
    return _Sign(*_SIGN.unpack(content)) if len(content) == _SIGN.size else None


def _is_there(pid: int) -> bool:
    """Return True if the process runs; False also for a zombie that the agent has not reaped yet."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # this system has no /proc, or the process ended just now
        return not Path("/proc/self").exists()


def _path(local_rank: int) -> Path:
    return _folder() / _NAME.format(local_rank)


def _folder() -> Path:
    return Path(tempfile.gettempdir())
