"""`MetricSink`: metrics leave the training step at once and reach the tracker in batches, in order, once.

Here: the queue, its thread, and the spool file that holds what could not be delivered. Not here: MLflow
(`tracker`), which gives the function that delivers a batch.
"""

import fcntl
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from resources.mlflow_client import TrackerError

INTERVAL = 0.5
"""Seconds between two deliveries."""
LONGEST_PAUSE = 30.0
"""Seconds between two tries at most, while the tracker is away."""


class Point(NamedTuple):
    """One value of one metric."""

    name: str
    value: float
    step: int
    time_ms: int
    """Milliseconds since the epoch, UTC."""


class Spool:
    """A file of points that were not delivered, locked by the process that writes it.

    The lock goes away with its process: who can take it knows that the owner is gone and may deliver the
    rest. Points carry their time, so a tracker that is sent one twice keeps it once.
    """

    def __init__(self, path: Path, file: IO[str]) -> None:
        self.path = path
        self._file = file
        self.is_empty = path.stat().st_size == 0

    @classmethod
    def create(cls, path: Path) -> Self:
        """A new, locked spool."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unseen = path.with_suffix(".new")  # nobody may adopt it before it is locked
        file = unseen.open("x+")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unseen.rename(path)
        return cls(path, file)

    @classmethod
    def adopt(cls, path: Path) -> Self | None:
        """The spool of a process that is gone, locked; None while its owner lives or if it was delivered."""
        try:
            file = path.open("r+", errors="replace")
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        if not path.exists():  # delivered and deleted between opening and locking
            file.close()
            return None
        return cls(path, file)

    def append(self, points: Iterable[Point]) -> None:
        """Write points behind the others, readable at once by who adopts the file."""
        lines = [json.dumps(point) + "\n" for point in points]
        if lines:
            self._file.seek(0, 2)
            self._file.writelines(lines)
            self._file.flush()
            self.is_empty = False

    def end(self, status: str) -> None:
        """Remember how the run ended."""
        self._file.seek(0, 2)
        self._file.write(json.dumps(status) + "\n")
        self._file.flush()

    def points(self) -> list[Point]:
        """What waits, in order."""
        return [Point(*line) for line in self._lines() if isinstance(line, list)]

    def ending(self) -> str | None:
        """How the run ended, if its owner came to say so."""
        return next((line for line in self._lines() if isinstance(line, str)), None)

    def clear(self) -> None:
        """Forget everything: it was delivered."""
        self._file.seek(0)
        self._file.truncate()
        self.is_empty = True

    def close(self, *, delete: bool) -> None:
        """Let go of the file, and with `delete` of what is in it."""
        if delete:
            self.path.unlink()
        self._file.close()

    def _lines(self) -> list[Any]:
        """Those that are whole: a kill cuts the last one short, a power cut may leave zeros in place of some."""
        self._file.seek(0)
        lines: list[Any] = []
        for line in self._file:
            if line.endswith("\n"):
                with suppress(ValueError):
                    lines.append(json.loads(line))
        return lines


class MetricSink:
    """Takes metrics without ever waiting for the tracker.

    Each interval what came in goes to the spool, then `deliver` sends the spool in order and it is emptied;
    where `deliver` raises a `TrackerError` it stays, and is tried again after a growing pause. So a hung
    or absent tracker costs nothing and loses nothing; a killed process loses at most the last half second.

    `seen` is metric → last step the tracker already has. A metric's steps only go up: a training that goes on
    from a checkpoint repeats the steps since, and those are not stored twice.
    """

    def __init__(
        self,
        deliver: Callable[[Sequence[Point]], None],
        spool: Spool,
        seen: Mapping[str, int] | None = None,
        interval: float = INTERVAL,
    ) -> None:
        self._deliver = deliver
        self._spool = spool
        self._seen = dict(seen or {})
        self._interval = interval
        self._queue: deque[tuple[list[tuple[str, float]], int, int]] = deque()
        self._closing = threading.Event()
        self._spooling = threading.Lock()
        self._is_abandoned = False
        self._pause = 0.0
        self._next_try = 0.0
        self._thread = threading.Thread(target=self._work, name="metric-sink", daemon=True)
        self._thread.start()

    def log(self, values: Mapping[str, float], step: int, at: float | None = None) -> None:
        """Take the metrics of one step; returns in about a microsecond whatever the tracker does.

        `at` is when they were measured, in seconds since the epoch (UTC), now if not given. The tracker keeps
        a point that comes again with the same time once, whoever sends it.
        """
        time_ns = time.time_ns() if at is None else int(at * 1e9)
        # A deque's append is atomic and never waits, so the hot path takes no lock.
        self._queue.append(([(name, float(value)) for name, value in values.items()], step, time_ns))

    def close(self, timeout: float = 10.0) -> bool:
        """One last try of at most `timeout` seconds. True: all delivered. False: the rest is in the spool."""
        self._closing.set()
        self._thread.join(timeout)
        with self._spooling:
            self._is_abandoned = True
            self._spool.append(self._drain())
        return self._spool.is_empty

    def _work(self) -> None:
        while not self._closing.wait(self._interval):
            self._flush(is_due=time.monotonic() >= self._next_try)
        self._flush(is_due=True)

    def _flush(self, *, is_due: bool) -> None:
        with self._spooling:
            if self._is_abandoned:
                return
            self._spool.append(self._drain())
            waiting = self._spool.points() if is_due and not self._spool.is_empty else []
        if not waiting:
            return
        try:
            self._deliver(waiting)
        except TrackerError:
            self._pause = min(max(2 * self._pause, self._interval), LONGEST_PAUSE)
            self._next_try = time.monotonic() + self._pause
            return
        self._pause = 0.0
        with self._spooling:
            # After `close` gave up waiting, later points may lie behind these: who adopts the file sends
            # all of them, and the tracker keeps each once.
            if not self._is_abandoned:
                self._spool.clear()

    def _drain(self) -> list[Point]:
        points: list[Point] = []
        for _ in range(len(self._queue)):
            values, step, time_ns = self._queue.popleft()
            new = [(name, value) for name, value in values if step > self._seen.get(name, -1)]
            points += [Point(name, value, step, time_ns // 1_000_000) for name, value in new]
            self._seen.update(dict.fromkeys((name for name, _ in new), step))
        return points
