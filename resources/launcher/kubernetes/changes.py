"""Notice of changes to the objects of an attempt: one open request (watch) for each kind, in place of polls.

A change only rings. The watcher of the attempt then reads the objects, so an event that is lost, late or sent twice
changes nothing. Two polls a second for each of 200 trainings were 800 requests a second. Only of a pod that was removed
before the watcher read it, the last state is that of the watch.
"""

import queue
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from resources.job.errors import ClusterRefused
from resources.launcher.kubernetes.cluster import Cluster, Document, Kind
from resources.launcher.kubernetes.pod_state import Pod

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
"""Seconds until a watch that ended is opened again; at most, after several failures. Opening rings."""
_UNWATCHED_SECONDS = 2.0
"""Seconds between two reads of objects that the launcher's role may not watch, as after an upgrade of the image before
that of the chart. Each time it tries to watch again, so an upgrade of the chart is noticed."""


class Changes:
    """Watches of an attempt's objects, each in a thread, while the `with` block runs."""

    def __init__(
        self, cluster: Cluster, selectors: Mapping[Kind, tuple[str, str]], say: Callable[[str], None]
    ) -> None:
        """`selectors`: kind → label selector and field selector of the objects. `say`: write a line to the log."""
        self.pods: dict[str, Pod] = {}
        """Newest state of each pod by its uid, as the watch has told it. Pods that were removed stay."""
        self._cluster = cluster
        self._selectors = selectors
        self._say = say
        self._unsaid = queue.SimpleQueue[str]()
        """Lines of the watches, which `taken` says in the thread of the caller."""
        self._rung = threading.Event()
        self._over = threading.Event()
        self._failed: Exception | None = None

    def __enter__(self) -> Self:
        self._rung.set()
        for kind, selectors in self._selectors.items():
            watch = threading.Thread(
                target=self._watch, args=(kind, *selectors), name=f"watch of {kind}", daemon=True
            )
            watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def taken(self) -> bool:
        """Return True if the objects may have changed since the last call, and at the first. Raise what ended a
        watch.
        """
        if self._failed is not None:
            raise self._failed
        while not self._unsaid.empty():
            self._say(self._unsaid.get())
        if not self._rung.is_set():
            return False
        self._rung.clear()  # before the read, which sees all that rang until now
        return True

    def _watch(self, kind: Kind, labels: str, fields: str) -> None:
        pause = _FIRST_PAUSE
        is_refused = False
        while not self._over.is_set():
            try:
                for document in self._cluster.changes(kind, labels, fields):
                    pause = _FIRST_PAUSE
                    if kind == "pod":
                        self._hear(document)
                    self._rung.set()
                    if self._over.is_set():
                        return
            except ConnectionError:
                self._rung.set()  # without a watch the objects are read once in each pause
                pause = min(2 * pause, _LONGEST_PAUSE)
            except ClusterRefused as error:
                self._rung.set()
                pause = _UNWATCHED_SECONDS
                if not is_refused:
                    is_refused = True
                    self._unsaid.put(
                        f"each {kind} is read every {pause:g} s, because it may not be watched: {error}"
                    )
            except Exception as error:
                # Raised by `taken`: a launcher without a watch and without a word would wait for ever.
                self._failed = error
                return
            self._over.wait(pause)

    def _hear(self, document: Document) -> None:
        """Keep the state of a pod. The first document of a watch is empty: what the one before told of pods that had
        not ended may be old."""
        if not document:
            self.pods = {uid: pod for uid, pod in self.pods.items() if pod.has_ended}
        elif "uid" in document.get("metadata", {}):  # an error of the server has none
            self.pods[document["metadata"]["uid"]] = Pod.of(document)
