"""Output of a training's pods: their logs as lines, each event once, and the pace of the training.

A connection may end at any time: the API server restarts, the kubelet rotates the file, a proxy gives up. The next
connection begins some seconds before the last line. Lines that were read before are dropped by time stamp and text.

From the events follows if a restart with more pods pays: the remaining time of a training against the time of another
start. Not here: the search for room (capacity), the request to the pods to end (attempt).
"""

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from resources.job.events import TrainingEvent
from resources.launcher.kubernetes.cluster import Cluster
from resources.launcher.kubernetes.pod_state import Pod
from resources.launcher.protocol import Output

_STEPPING = ("metrics", "epoch", "system")
"""Events whose step is complete when they are reported."""


@dataclass(frozen=True, kw_only=True)
class RestartEstimate:
    """Remaining work of an attempt."""

    left_seconds: float
    """Seconds until the last step of all epochs, at the current pace."""
    restart_seconds: float
    """Least seconds without a step if another attempt replaces this one: the time of the last save, plus the time from
    the placement of the pods to the first step."""

    def pays(self, nodes: int, grown: int) -> bool:
        """True if `grown` nodes would finish earlier than `nodes`, at best: twice the nodes, twice the speed."""
        return self.left_seconds * (1 - nodes / grown) > self.restart_seconds

    def why_not(self, nodes: int, grown: int) -> str:
        """Return a clause that explains why a restart does not pay."""
        return (
            f"the remaining {self.left_seconds:.0f} s would become {self.left_seconds * nodes / grown:.0f} s with "
            f"{grown} pods at best, and a restart takes {self.restart_seconds:.0f} s"
        )


class Pace:
    """Speed and start-up time of an attempt, measured from its events."""

    def __init__(self, began: TrainingEvent | None = None) -> None:
        """Measure from `began`, the attempt's `started` event; None if it is unknown."""
        self._steps = 0 if began is None else int(began.values.get("steps", 0))
        """Steps of the whole training; 0 if unknown, as for a script."""
        self._marks = [] if began is None else [began]
        """Events of the start, of the first reported step and of the last one."""
        self._ready_at = None if began is None else began.time
        self._save_seconds = 0.0
        self.saved_at: float | None = None
        """Begin of the attempt's last complete save, in seconds since the epoch; None before the first."""

    def hear(self, event: TrainingEvent) -> None:
        """Take another event of the attempt."""
        if event.kind == "recovered":  # reported at the first step, which may take long
            self._ready_at = event.time
        elif event.kind == "checkpoint":
            self._save_seconds = float(event.values.get("checkpoint_duration_ms", 0.0)) / 1000
            self.saved_at = event.time - self._save_seconds
        elif event.kind in _STEPPING and (not self._marks or event.step > self._marks[-1].step):
            self._marks = [*self._marks[:2], event]

    def estimate(self, placed: float) -> RestartEstimate | None:
        """Return the remaining work; None while it is unknown. `placed`: time at which all pods had a node, in seconds
        since the epoch.
        """
        left = self._left_seconds()
        if left is None:
            return None
        starting = 0.0 if self._ready_at is None else max(0.0, self._ready_at - placed)
        return RestartEstimate(left_seconds=left, restart_seconds=self._save_seconds + starting)

    def _left_seconds(self) -> float | None:
        if not self._steps:
            return math.inf if self._marks else None
        if len(self._marks) < 2:
            return None
        before, last = self._marks[
            -2:
        ]  # leaves out the first steps, which are slow, once there are later ones
        return (self._steps - last.step) * (last.time - before.time) / (last.step - before.step)


OVERLAP_SECONDS = 10
"""Seconds of log that are read again after a break. The clocks of node and API server may differ by as much."""
_REMEMBERED = timedelta(seconds=3 * OVERLAP_SECONDS)
SILENCE_SECONDS = 30.0
"""Seconds without a line after which the connection is opened again. It may be dead."""
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.3, 60.0
"""Seconds until a log is requested again: at first, and after many failures. A node that did not answer got three
requests a second for each of its pods."""
_STOOD_SECONDS = 2.0
"""Seconds after which a connection counts as having stood: the next one may follow soon."""
_AT_ONCE = 1000
FOLLOWED, FAILED = 32, 32
"""Logs that are read per attempt: those of the pods with the lowest numbers, which include the pod that reports the
events, and those of other failed pods. A thousand connections would add little: the status of a failed pod also holds
its last lines."""
_LAST_TRIES = 3
"""Tries to read the log of a pod that has ended. The log may be lost with its node."""


class Lines:
    """Filter for new lines of a log. Compares time stamp and text with the lines of the last 30 seconds."""

    def __init__(self) -> None:
        self._order: deque[tuple[datetime, str]] = deque()
        self._seen: set[str] = set()
        self._newest: datetime | None = None

    def new(self, line: str) -> str | None:
        """Return the text of a line with a time stamp; None if it was seen before or is not a line of the pod."""
        stamp, _, text = line.partition(" ")
        try:
            moment = datetime.fromisoformat(stamp)
        except ValueError:
            return None  # a message of the kubelet about the log
        if line in self._seen:
            return None
        if self._newest is not None and moment < self._newest - _REMEMBERED:
            return None
        self._newest = max(moment, self._newest or moment)
        self._seen.add(line)
        self._order.append((moment, line))
        while self._order[0][0] < self._newest - _REMEMBERED:
            self._seen.discard(self._order.popleft()[1])
        return text

    def since_seconds(self, now: datetime) -> int | None:
        """Return how many seconds back the next connection must begin; None for the beginning of the log."""
        if self._newest is None:
            return None
        return max(1, math.ceil((now - self._newest).total_seconds()) + OVERLAP_SECONDS)


def worth_reading(pods: Iterable[Pod], read: Collection[str]) -> list[Pod]:
    """Return the pods of one attempt whose log to read next. `read`: uids of the pods whose log is read already."""
    begun = [pod for pod in pods if pod.has_started]
    first = [pod for pod in begun if pod.index < FOLLOWED]
    failed = [pod for pod in begun if pod.index >= FOLLOWED and pod.exit_code]
    failed.sort(key=lambda pod: pod.uid not in read)
    return [pod for pod in [*first, *failed[:FAILED]] if pod.uid not in read]


class LogTail:
    """Logs of a training's pods, over all attempts. A thread per log reads it."""

    def __init__(self, cluster: Cluster, take: Callable[[Pod, str], None]) -> None:
        self._cluster = cluster
        self._take = take
        self._lines: queue.SimpleQueue[tuple[Pod, str]] = queue.SimpleQueue()
        self._logs: dict[str, _PodLog] = {}

    def look(self, pods: Iterable[Pod]) -> None:
        """Start reading the logs of pods that have started. Mark the logs of ended pods as complete."""
        pods = list(pods)
        for pod in worth_reading(pods, self._logs.keys()):
            self._logs[pod.uid] = _PodLog(self._cluster, pod, self._lines)
        for pod in pods:
            if pod.has_ended and pod.uid in self._logs:
                self._logs[pod.uid].ended.set()

    def deliver(self, seconds: float) -> None:
        """Pass received lines to `take`, in this thread. Wait up to `seconds` for the first line.

        Takes about 1,000 lines at most, so that a flood of lines does not delay the next look at the pods.
        """
        try:
            self._take(*self._lines.get(timeout=seconds))
            for _ in range(_AT_ONCE):
                self._take(*self._lines.get_nowait())
        except queue.Empty:
            return

    def finish(self, seconds: float) -> None:
        """Read the logs of all ended pods to their end and deliver them. Wait up to `seconds` per log."""
        for log in self._logs.values():
            if log.ended.is_set():
                log.thread.join(seconds)
        while not self._lines.empty():
            self.deliver(0)

    def stop(self) -> None:
        """Stop reading."""
        for log in self._logs.values():
            log.stopped.set()
            log.ended.set()


class _PodLog:
    def __init__(self, cluster: Cluster, pod: Pod, lines: "queue.SimpleQueue[tuple[Pod, str]]") -> None:
        self._cluster = cluster
        self._pod = pod
        self._lines = lines
        self.ended = threading.Event()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._read, name=f"log of {pod.name}", daemon=True)
        self.thread.start()

    def _read(self) -> None:
        lines = Lines()
        tries = _LAST_TRIES
        pause = _PAUSE_SECONDS
        while not self.stopped.is_set() and tries:
            began = time.monotonic()
            # Read the flag before connecting: if it is set, the end of this connection is the end of the log.
            is_last = self.ended.is_set()
            tries -= is_last
            try:
                since = lines.since_seconds(self._cluster.now())
                for line in self._cluster.log(self._pod.name, self._pod.trainer.name, since, SILENCE_SECONDS):
                    if (text := lines.new(line)) is not None:
                        self._lines.put((self._pod, text))
                    if self.stopped.is_set():
                        return
                if is_last:
                    return
            except ConnectionError:
                pass
            if is_last or time.monotonic() - began > _STOOD_SECONDS:
                pause = _PAUSE_SECONDS
            (self.stopped if is_last else self.ended).wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


class PodsOutput(Output):
    """Output of pods. A log may be read twice and the artifacts repeat the events, so each event is passed on once."""

    def __init__(
        self, folder: Path, on_event: Callable[[TrainingEvent], None], on_log: Callable[[str], None]
    ) -> None:
        super().__init__(folder, on_event, on_log)
        self._told: set[int] = set()
        self.events: list[TrainingEvent] = []
        """Events of the current attempt."""
        self.pace = Pace()
        """Pace of the current attempt."""

    def begin(self) -> None:
        """Begin another attempt: reset its events and its pace."""
        super().begin()
        self.events, self.pace = [], Pace()

    def tell(self, events: Iterable[TrainingEvent]) -> None:
        """Pass on those events that were not passed on before."""
        for event in events:
            identity = hash(event.to_line())
            if identity in self._told:
                continue
            self._told.add(identity)
            self.events.append(event)
            if event.kind == "started":
                self.pace = Pace(event)
            else:
                self.pace.hear(event)
            super().tell([event])
