"""The logs of pods as one stream of lines: each line once, whatever breaks in between.

A connection may end at any time (the API server restarts, the kubelet rotates the file, a proxy gives up). The
next one begins some seconds earlier than what was read last, and what was read before is left out by its time
stamp. Not here: what a line means (output).
"""

import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta

from resources.launcher.kubernetes.cluster import Cluster
from resources.launcher.kubernetes.pod_state import Pod

OVERLAP_SECONDS = 10
"""Asked for again after a break: the clocks of node and API server may differ by as much."""
_REMEMBERED = timedelta(seconds=3 * OVERLAP_SECONDS)
SILENCE_SECONDS = 30.0
"""A connection that says nothing for so long is made anew: it may be dead."""
_PAUSE_SECONDS = 0.3
_AT_ONCE = 1000
FOLLOWED, FAILED = 32, 32
"""Logs that are read of one attempt: of the pods with the lowest numbers, among them the one that tells the events, and
of others that failed. A thousand connections would tell little more; last lines are in a failed pod's status, too."""
_LAST_TRIES = 3
"""For the log of a pod that has ended: it may be gone with its node."""


class Lines:
    """Filter for new lines of a log: those not seen, by time stamp and text, in the last seconds."""

    def __init__(self) -> None:
        self._order: deque[tuple[datetime, str]] = deque()
        self._seen: set[str] = set()
        self._newest: datetime | None = None

    def new(self, line: str) -> str | None:
        """The text of a line of `timestamps=true`, None where it was seen before or is no line of the pod."""
        stamp, _, text = line.partition(" ")
        try:
            moment = datetime.fromisoformat(stamp)
        except ValueError:
            return None  # said by the kubelet, about the log
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
        """Return the seconds by which the next connection has to reach back; None for the beginning."""
        if self._newest is None:
            return None
        return max(1, math.ceil((now - self._newest).total_seconds()) + OVERLAP_SECONDS)


def worth_reading(pods: Iterable[Pod], read: Collection[str]) -> list[Pod]:
    """Pods of one attempt whose log is to be begun with; `read` are the uids of those whose is."""
    begun = [pod for pod in pods if pod.has_started]
    first = [pod for pod in begun if pod.index < FOLLOWED]
    failed = [pod for pod in begun if pod.index >= FOLLOWED and pod.exit_code]
    failed.sort(key=lambda pod: pod.uid not in read)
    return [pod for pod in [*first, *failed[:FAILED]] if pod.uid not in read]


class LogTail:
    """The logs of a training's pods, over all its attempts, each read by a thread of its own."""

    def __init__(self, cluster: Cluster, take: Callable[[Pod, str], None]) -> None:
        self._cluster = cluster
        self._take = take
        self._lines: queue.SimpleQueue[tuple[Pod, str]] = queue.SimpleQueue()
        self._logs: dict[str, _PodLog] = {}

    def look(self, pods: Iterable[Pod]) -> None:
        """Begin with the logs of pods that have started, bring those of ended pods to their end."""
        pods = list(pods)
        for pod in worth_reading(pods, self._logs.keys()):
            self._logs[pod.uid] = _PodLog(self._cluster, pod, self._lines)
        for pod in pods:
            if pod.has_ended and pod.uid in self._logs:
                self._logs[pod.uid].ended.set()

    def deliver(self, seconds: float) -> None:
        """Give the lines that came to `take`, in this thread; wait up to `seconds` for the first. Of a flood
        some stay for the next time, so that the pods are looked at, too."""
        try:
            self._take(*self._lines.get(timeout=seconds))
            for _ in range(_AT_ONCE):
                self._take(*self._lines.get_nowait())
        except queue.Empty:
            return

    def finish(self, seconds: float) -> None:
        """Read the logs of all pods that have ended to the end, and deliver them."""
        for log in self._logs.values():
            if log.ended.is_set():
                log.thread.join(seconds)
        while not self._lines.empty():
            self.deliver(0)

    def stop(self) -> None:
        """Read no more."""
        for log in self._logs.values():
            log.stopped.set()


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
        while not self.stopped.is_set() and tries:
            # Seen before the connection is made: then whatever it ends with is the end.
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
            self.stopped.wait(_PAUSE_SECONDS)
