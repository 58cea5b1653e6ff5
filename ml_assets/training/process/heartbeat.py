"""Signs of life: each rank writes them, its agent reads them and ends a rank that gives none.

A rank that is stopped or stuck closes no connection, so the others would wait for it until the timeout of a
collective. Two signs: a thread of the rank writes twice a second (a process that is stopped, or hangs in a call
that lets no thread run, does not), and what its loop has done so far (one that waits for ever adds nothing). Files of
this machine, in the job's folder for temporary files. Not here: starting ranks (agent), what follows from an
end (the launcher).
"""

import faulthandler
import logging
import math
import os
import signal
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from resources.job.job import TrainingJob

log = logging.getLogger(__name__)

_WRITE_SECONDS = 0.5
_LOOK_SECONDS = 0.25
_ASLEEP_SECONDS = 2.0
"""Between two looks, only where the whole machine or container stood still."""
_STALL_SECONDS, _STALL_SECONDS_OF_SCRIPTS = 120.0, 600.0
"""A step may take at least so long, where a job says nothing else, and… A script tells of fewer things that it does."""
_STILL_STEPS = 10.0
"""…so many times as long as the longest before."""
_FIRST_STEP = 15.0
"""The first step of an attempt may take this many times `stall_timeout_seconds`: kernels are compiled, caches fill.
Without a bound, a first all-reduce that never returned held its GPUs for ever."""
_LAST_WORDS_SECONDS = 0.5
"""From the request for a stack trace to SIGKILL."""
_SIGN = struct.Struct("<qqd")  # process, `Heartbeat.done`, time.monotonic()
_NAME = "heartbeat-{}"


class Heartbeat:
    """The signs of this process, as a context; a clean end takes them back."""

    def __init__(self, local_rank: int) -> None:
        self._path = _folder() / _NAME.format(local_rank)
        self._moves = 0
        self._rests = True
        self._first: Callable[[int], None] | None = None
        self._over = threading.Event()

    def on_first_step(self, tell: Callable[[int], None]) -> None:
        """Have `tell` called after the first step that is trained, with its number."""
        self._first = tell

    def step(self, step: int) -> None:
        """`step` steps are trained. Costs an addition: the thread writes it."""
        self.moved()
        if self._first is not None:
            self._first(step)
            self._first = None

    @property
    def done(self) -> int:
        """Counter of the loop's progress; below 0 where no loop runs now. Never twice the same with something done
        in between, or an agent that looks once a step would see a loop that stands still."""
        return -1 - self._moves if self._rests else self._moves

    def begin(self) -> None:
        """There is a loop from now on: how long it takes to the first sign says how long it may take to another."""
        self._rests = False

    @contextmanager
    def bounded(self) -> Generator[None]:
        """Bound what runs inside by the time that the first step of an attempt may take."""
        self.begin()
        try:
            yield
        finally:
            self.rest()

    def moved(self) -> None:
        """The loop goes on: a step, a batch of validation."""
        self._moves += 1
        self._rests = False

    def rest(self) -> None:
        """Until it moves again there is no loop: the rank stores what it has trained."""
        self._rests = True

    def __enter__(self) -> "Heartbeat":
        # Asked for by the agent before it ends this process: where does it hang?
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
        with suppress(OSError):  # a full disk is told by what needs the space
            os.pwrite(self._descriptor, _SIGN.pack(os.getpid(), self.done, time.monotonic()), 0)


@dataclass(frozen=True, kw_only=True)
class HangTimeouts:
    """Seconds that a rank may be silent, by what it does."""

    heartbeat_timeout_seconds: float
    """As a process."""
    stall_timeout_seconds: float
    """As a loop, at least."""
    first_step_seconds: float = math.inf
    """As a loop that has not done its first step. A script may never say that it did one."""

    @classmethod
    def of(cls, job: TrainingJob) -> "HangTimeouts":
        """As the job's settings have it."""
        default = _STALL_SECONDS_OF_SCRIPTS if job.script else _STALL_SECONDS
        settings = job.settings
        still = settings.stall_timeout_seconds or default
        return cls(
            heartbeat_timeout_seconds=settings.heartbeat_timeout_seconds,
            stall_timeout_seconds=still,
            first_step_seconds=math.inf if job.script else _FIRST_STEP * still,
        )


@dataclass
class Seen:
    """The agent's view of one rank. Times are those of time.monotonic()."""

    done: int = -1
    since: float = 0.0
    """Time at which the counter last moved."""
    longest: float = 0.0
    """Seconds it took at most to do more."""

    def why_end(self, done: int, alive: float, now: float, patience: HangTimeouts) -> str:
        """Return the reason to kill a rank with this counter and last sign of life at `alive`; empty if there is
        none."""
        if now - alive > patience.heartbeat_timeout_seconds:
            limit = patience.heartbeat_timeout_seconds
            return f"gave no sign of life for {now - alive:.1f} s (heartbeat_timeout_seconds {limit:g})"
        if done != self.done:
            if min(done, self.done) >= 0:
                self.longest = max(self.longest, now - self.since)
            self.done, self.since = done, now
        still = now - self.since
        if done == 0 and still > patience.first_step_seconds:
            return (
                f"did not finish its model, or its first step, within {still:.0f} s ({_FIRST_STEP:g} × "
                f"stall_timeout_seconds {patience.stall_timeout_seconds:g})"
            )
        if done > 0 and still > max(patience.stall_timeout_seconds, _STILL_STEPS * self.longest):
            return (
                f"did no step for {still:.0f} s, the longest before took {self.longest:.1f} s "
                f"(stall_timeout_seconds {patience.stall_timeout_seconds:g})"
            )
        return ""


class Watch:
    """The agent's side: looks after the ranks of this machine."""

    def __init__(self, ranks: int, patience: HangTimeouts) -> None:
        self._ranks = range(ranks)
        self._patience = patience
        self._seen = [Seen() for _ in self._ranks]
        self._awake = time.monotonic()
        self.ended: dict[int, str] = {}
        """Local rank → why it was ended."""

    @contextmanager
    def watching(self) -> Generator[None]:
        """Look after the ranks as long as the block runs."""
        for rank in self._ranks:
            _path(rank).unlink(missing_ok=True)
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(over,), name="watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def silent(self) -> list[int]:
        """Local ranks that are gone without a clean end: killed, by the kernel or somebody else."""
        return [rank for rank in self._ranks if _path(rank).exists() and rank not in self.ended]

    def _watch(self, over: threading.Event) -> None:
        looked = time.monotonic()
        while not over.wait(_LOOK_SECONDS):
            now = time.monotonic()
            if now - looked > _ASLEEP_SECONDS:  # this process was stopped too: silence then says nothing
                self._awake = now
            looked = now
            for rank in self._ranks:
                sign = _read(rank)
                if sign is None or rank in self.ended:
                    continue
                pid, done, at = sign
                why = self._seen[rank].why_end(done, max(at, self._awake), now, self._patience)
                if why and _is_there(pid):
                    self.ended[rank] = why
                    _end(rank, pid, why)


def _end(rank: int, pid: int, why: str) -> None:
    log.error("local rank %d (process %d) %s: it is ended", rank, pid, why)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR2)
        time.sleep(_LAST_WORDS_SECONDS)
        os.kill(pid, signal.SIGKILL)


def _read(rank: int) -> tuple[int, int, float] | None:
    try:
        content = _path(rank).read_bytes()
    except FileNotFoundError:
        return None
    return _SIGN.unpack(content) if len(content) == _SIGN.size else None


def _is_there(pid: int) -> bool:
    """False also for one that has ended and that nobody has asked after yet: the agent will."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # no /proc on this system, or gone just now
        return not Path("/proc/self").exists()


def _path(local_rank: int) -> Path:
    return _folder() / _NAME.format(local_rank)


def _folder() -> Path:
    return Path(tempfile.gettempdir())
