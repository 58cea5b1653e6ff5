"""`MetricSink`: takes metrics without delaying the training step; delivers them in batches, in order, once.

Here: the queue, its thread, the spool file for undelivered points, and copies of spools in the artifacts, where they
outlive the machine: the disk of a run's pod ends with the pod. Not here: MLflow (`tracker`), which provides the
function that delivers a batch.
"""

import json
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, Self, cast

from resources.artifacts import ArtifactMissing, Artifacts, ArtifactsError
from resources.files import create_locked, take_lock
from resources.tracking.mlflow_client import TrackerError
from resources.words import counted, name_some

EVERY = 60.0
"""Seconds between two copies of a spool."""
GONE_AFTER = 900.0
"""Seconds without a new copy after which a process counts as gone. Long enough for clocks that differ by seconds and
for an object store that is away for minutes."""

_NAME = "spool-copies"
_log = logging.getLogger(__name__)


class SpoolCopies:
    """Copies of the spools of all machines, in one folder of the artifacts.

    Errors of the artifacts are logged, never raised: the delivery of metrics does not depend on the copies.
    """

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts

    def keep(self, spool: Path) -> None:
        """Replace the copy of `spool` by its current content. The first line of a copy is the time, a sign of life."""
        content = f"{json.dumps(time.time())}\n".encode() + spool.read_bytes()
        try:
            with self._artifacts.create(_NAME, spool.name) as file:
                file.write(content)
        except ArtifactsError as error:
            _say(error)

    def forget(self, name: str) -> None:
        """Delete the copy of the spool with this file name. Do nothing if it is missing."""
        try:
            self._artifacts.remove(_NAME, [name])
        except ArtifactsError as error:
            _say(error)

    def names(self) -> list[str]:
        """Return the file names of all copies."""
        try:
            return [name for name in self._artifacts.files(_NAME) if name.endswith(".jsonl")]
        except ArtifactsError as error:
            _say(error)
            return []

    def bring_abandoned(self, folder: Path) -> None:
        """Copy to `folder` the spools of processes that ended without delivery, or were silent for `GONE_AFTER`."""
        for name in self.names():
            target, unseen = folder / name, folder / f"{name}.new"
            if (
                target.exists()
            ):  # its process is or was on this machine; the lock of the file shows if it lives
                continue
            try:
                self._artifacts.fetch(_NAME, name, unseen)
            except ArtifactMissing:  # delivered meanwhile
                continue
            except ArtifactsError as error:
                _say(error)
                return
            if _is_abandoned(unseen.read_text(errors="replace").splitlines()):
                unseen.rename(target)
            else:
                unseen.unlink()


def _is_abandoned(lines: list[str]) -> bool:
    """Return True for a copy, time and spool, whose spool begins with a final status, or that is old."""
    try:
        sign_of_life, has_ended = float(json.loads(lines[0])), lines[1].startswith('"')
    except (IndexError, ValueError, TypeError):  # objects are never cut short, so this is a foreign file
        return False
    return has_ended or time.time() - sign_of_life > GONE_AFTER


def _say(error: ArtifactsError) -> None:
    _log.warning("could not copy metrics that wait for MLflow: %s", error)


INTERVAL = 0.5
"""Seconds between two deliveries."""
LONGEST_PAUSE = 30.0
"""Greatest number of seconds between two tries while the tracker is away."""


class Point(NamedTuple):
    """One value of one metric."""

    name: str
    value: float
    step: int
    time_ms: int
    """Milliseconds since the epoch, UTC."""
    once_a_step: bool = True
    """True if a second value of the same step is a repetition, from a step that is trained again after a restart. False
    if each value is a separate measurement, such as the load of a machine or the seconds of a recovery."""


_RESERVE = 1024
"""Bytes at the begin of a spool that a full disk leaves for its last words."""


class SpoolFailed(TrackerError):
    """The spool file cannot be written: its disk is full or read-only."""


class Spool:
    """File of undelivered points, locked by the process that writes it.

    The system releases the lock when its process ends. A process that gets the lock knows that the owner is gone, and
    may deliver the rest. A point is identified by name, step, time and value, so a tracker that receives it twice
    stores it once.

    Each line is JSON: a list is a point, a text is the final status of the run, an object holds the facts of a run that
    has not begun yet, or says what is missing. The first line is blank: room for the status and for what is missing,
    if the disk is full at the end.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self._file = file
        self.is_empty = path.stat().st_size <= _RESERVE

    @classmethod
    def create(cls, path: Path) -> Self:
        """Create a new, locked spool. Raise `SpoolFailed`."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            spool = cls(path, create_locked(path))
        except OSError as error:
            raise _failed(path, error) from error
        spool._last_words([])
        return spool

    @classmethod
    def adopt(cls, path: Path) -> Self | None:
        """Lock the spool of a process that is gone. Return None if its owner lives or if it was delivered."""
        try:
            file = path.open("r+b", buffering=0)
        except FileNotFoundError:
            return None
        if not take_lock(file.fileno(), waits=False) or not path.exists():
            # Its owner lives, or another process delivered and deleted it between opening and locking.
            file.close()
            return None
        return cls(path, file)

    def append(self, points: list[Point]) -> None:
        """Move points to the end of the file, and out of the list. A process that adopts the file can read them at
        once.

        Raise `SpoolFailed` if the disk takes only some. Then the list has the others.
        """
        kept = 0
        try:
            kept = self._write(points)
        except _PartlyWritten as part:
            kept = part.lines
            raise _failed(self.path, part.error) from part.error
        finally:
            self.is_empty = self.is_empty and not kept
            del points[:kept]

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Store the facts of a run that cannot begin yet, because the tracker is away. Raise `SpoolFailed`."""
        try:
            self._write([facts])
        except _PartlyWritten as part:
            raise _failed(self.path, part.error) from part.error

    def end(self, status: str, missing: str = "") -> None:
        """Store the final status of the run, and which points are missing. Raise `SpoolFailed`."""
        self._last_words([status, {_MISSING: missing}] if missing else [status])

    def points(self) -> list[Point]:
        """Return the undelivered points, in order."""
        return [Point(*line) for line in self._lines() if isinstance(line, list)]

    def facts(self) -> dict[str, Any] | None:
        """Return the facts of a run that has not begun yet; None if it has begun."""
        return next((one for one in self._objects() if _MISSING not in one), None)

    def missing(self) -> str:
        """Return which points are missing, for people; empty if none is."""
        return next((one[_MISSING] for one in self._objects() if _MISSING in one), "")

    def ending(self) -> str | None:
        """Return the final status of the run; None if its owner was killed before the end."""
        return next((line for line in self._lines() if isinstance(line, str)), None)

    def clear(self) -> None:
        """Delete all points, after their delivery."""
        self._file.truncate(_RESERVE)
        self.is_empty = True

    def move(self, path: Path) -> None:
        """Rename the file, which stays locked."""
        self.path = self.path.rename(path)

    def close(self, *, delete: bool) -> None:
        """Close the file and so release its lock. With `delete`, delete the file first."""
        if delete:
            self.path.unlink()
        self._file.close()

    def _write(self, lines: Iterable[object]) -> int:
        """Append JSON lines, return their number. Raise `_PartlyWritten` if only the first of them fit on the disk."""
        text = "".join(json.dumps(line) + "\n" for line in lines).encode()
        end = self._file.seek(0, os.SEEK_END)
        rest = memoryview(text)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            whole = text[: len(text) - len(rest)].rpartition(b"\n")
            with suppress(OSError):
                self._file.truncate(end + len(whole[0] + whole[1]))
            raise _PartlyWritten(whole[0].count(b"\n") + len(whole[1]), error) from error
        return text.count(b"\n")

    def _last_words(self, lines: Sequence[object]) -> None:
        """Write JSON lines over the first bytes, which need no room on the disk. Raise `SpoolFailed`."""
        text = "".join(json.dumps(line) + "\n" for line in lines).encode()
        try:
            self._file.seek(0)
            self._file.write(text + b" " * (_RESERVE - len(text) - 1) + b"\n")
        except OSError as error:
            raise _failed(self.path, error) from error

    def _objects(self) -> Iterator[dict[str, Any]]:
        return (cast("dict[str, Any]", line) for line in self._lines() if isinstance(line, dict))

    def _lines(self) -> list[Any]:
        """Return the intact lines. A kill may cut the last line short, and a power cut may replace lines by zeros."""
        self._file.seek(0)
        lines: list[Any] = []
        for line in (self._file.read() or b"").decode(errors="replace").splitlines(keepends=True):
            if line.endswith("\n"):
                with suppress(ValueError):
                    lines.append(json.loads(line))
        return lines


_MISSING = "missing"
"""Key of the object that says which points are missing."""


class _PartlyWritten(Exception):
    """The disk took only the first lines."""

    def __init__(self, lines: int, error: OSError) -> None:
        super().__init__(f"{lines} lines fit: {error}")
        self.lines, self.error = lines, error


def _failed(path: Path, error: OSError) -> SpoolFailed:
    return SpoolFailed(
        f"cannot keep metrics in {path}: {error.strerror or error}. Make room on its disk, or move ML_ASSETS_HOME"
    )


class MetricSink:
    """Takes metrics without ever waiting for the tracker.

    Every `interval` seconds its thread moves new points to the spool, calls `deliver` on the spool in order, and
    empties it. If `deliver` fails, the points stay in the spool and the next try follows after a growing pause. So a
    hung or absent tracker delays nothing and loses nothing. A killed process loses at most the last half second. While
    the disk is full, points without room wait in memory.

    The thread calls `copy` every `copy_every` seconds, to keep a copy of the spool elsewhere.

    The steps of a metric only increase. A training that resumes from a checkpoint repeats the steps after it, and the
    sink drops their points. Points with `once_a_step=False` are never dropped.
    """

    def __init__(
        self,
        deliver: Callable[[Sequence[Point]], None],
        spool: Spool,
        interval: float = INTERVAL,
        copy: Callable[[], None] | None = None,
        copy_every: float = math.inf,
    ) -> None:
        self._deliver = deliver
        self._spool = spool
        self._seen: dict[str, int] = {}
        self._interval = interval
        self._copy = copy or (lambda: None)
        self._copy_every = copy_every
        self._next_copy = 0.0 if copy else math.inf
        self._queue: deque[tuple[list[tuple[str, float]], int, int, bool]] = deque()
        self._unkept: list[Point] = []
        """Points taken from the queue that are not in the spool, because its disk is full."""
        self._closing = threading.Event()
        self._spooling = threading.Lock()
        self._is_abandoned = False
        self.missing = ""
        """Points that could neither be delivered nor stored, for people; known after `close`."""
        self._pause = 0.0
        self._next_try = 0.0
        self._problems: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="metric-sink", daemon=True)
        self._thread.start()

    def log(
        self, values: Mapping[str, float], step: int, at: float | None = None, *, once_a_step: bool = True
    ) -> None:
        """Take the metrics of one step. Returns in about a microsecond, also if the tracker is away.

        `at`: time of the measurement in seconds since the epoch (UTC); default: now. The tracker stores a point only
        once if it arrives again with the same time, from any process. `once_a_step`: see `Point`.
        """
        time_ns = time.time_ns() if at is None else int(at * 1e9)
        # A deque's append is atomic and never waits, so the hot path takes no lock.
        self._queue.append(
            ([(name, float(value)) for name, value in values.items()], step, time_ns, once_a_step)
        )

    def close(self, timeout: float = 10.0) -> bool:
        """Try to deliver once more, for at most `timeout` seconds. Return True if all points are delivered, False if
        the rest is in the spool.

        Raise `SpoolFailed` if a part of the rest can neither be delivered nor stored; `missing` tells which.
        """
        self._closing.set()
        self._thread.join(timeout)
        with self._spooling:
            self._is_abandoned = True
            try:
                self._keep()
            except SpoolFailed:
                self.missing = _in_words(self._unkept)
                raise
        return self._spool.is_empty

    def _work(self) -> None:
        while not self._closing.wait(self._interval):
            self._flush(is_due=time.monotonic() >= self._next_try)
            if time.monotonic() >= self._next_copy:
                self._next_copy = time.monotonic() + self._copy_every
                self._copy_spool()
        self._flush(is_due=True)

    def _copy_spool(self) -> None:
        try:
            self._copy()
        except Exception as error:  # for the reason in `_flush`
            self._say(error)

    def _flush(self, *, is_due: bool) -> None:
        try:
            self._send(is_due=is_due)
        except Exception as error:  # nothing restarts this thread, so it must survive any error and try again
            self._say(error)
            self._pause = min(max(2 * self._pause, self._interval), LONGEST_PAUSE)
            self._next_try = time.monotonic() + self._pause

    def _send(self, *, is_due: bool) -> None:
        with self._spooling:
            if self._is_abandoned:
                return
            try:
                self._keep()
            except SpoolFailed as error:
                self._say(error)
            is_waiting = self._unkept or not self._spool.is_empty
            waiting = [*self._spool.points(), *self._unkept] if is_due and is_waiting else []
        if not waiting:
            return
        self._deliver(waiting)
        self._pause = 0.0
        with self._spooling:
            # After `close` gave up waiting, the spool may hold later points, too. The process that adopts it sends
            # all of them, and the tracker stores each once.
            if not self._is_abandoned:
                self._unkept.clear()
                self._spool.clear()

    def _say(self, error: Exception) -> None:
        """Log a problem only once. It may occur twice a second for hours."""
        if str(error) not in self._problems:
            self._problems.add(str(error))
            logging.getLogger(__name__).warning("metrics wait: %s", error)

    def _keep(self) -> None:
        """Move new points from the queue to the spool. If it raises `SpoolFailed`, those without room stay in
        memory."""
        self._unkept += self._drain()
        self._spool.append(self._unkept)

    def _drain(self) -> list[Point]:
        points: list[Point] = []
        for _ in range(len(self._queue)):
            values, step, time_ns, once = self._queue.popleft()
            new = [(name, value) for name, value in values if not once or step > self._seen.get(name, -1)]
            points += [Point(name, value, step, time_ns // 1_000_000, once) for name, value in new]
            if once:
                self._seen.update(dict.fromkeys((name for name, _ in new), step))
        return points


def _in_words(points: Sequence[Point]) -> str:
    names = sorted({point.name for point in points})
    steps = [point.step for point in points]
    return f"{counted(len(points), 'point')} of {name_some(names, 3)}, steps {min(steps)} to {max(steps)}"
