"""Predictions of shadows, made in a thread after the answer, and only logged.

A shadow costs no request any time but that of the processor it uses. The queue is bounded: requests that find no room
are dropped and counted.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, Full, Queue

from ml_assets.use.serving.raw_rows import Prediction, RawRow, predict_many
from ml_assets.use.serving.served import ServedVersion

LENGTH = 1_000
"""Requests that wait at most."""


@dataclass(frozen=True, slots=True)
class ShadowJob:
    """One request for the shadows of its model."""

    versions: Sequence[ServedVersion]
    rows: Sequence[RawRow]
    note: Callable[[ServedVersion, Sequence[Prediction] | Exception, int], None]
    """Record `(version, predictions or the error, nanoseconds)`."""


class ShadowQueue:
    """Queue of jobs and the thread that does them, between `start` and `stop`."""

    def __init__(self) -> None:
        self._jobs: Queue[ShadowJob] = Queue(LENGTH)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="shadows", daemon=True)
        self.dropped = 0
        """Requests that found no room."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Do the jobs that wait, then end the thread."""
        self._over.set()
        self._thread.join()

    def add(self, job: ShadowJob) -> None:
        """Let the thread do a job, or drop and count it. Never waits."""
        try:
            self._jobs.put_nowait(job)
        except Full:
            self.dropped += 1

    def _work(self) -> None:
        while not (self._over.is_set() and self._jobs.empty()):
            try:
                job = self._jobs.get(timeout=0.2)
            except Empty:
                continue
            for version in job.versions:
                began = time.perf_counter_ns()
                try:
                    predictions: Sequence[Prediction] | Exception = predict_many(version.runtime, job.rows)
                except Exception as error:  # a broken shadow must not end the thread
                    predictions = error
                job.note(version, predictions, time.perf_counter_ns() - began)
