"""Lease of a training: its launcher renews it, and every other launcher can see it expire.

Here: taking, renewing, recording the counts of attempts, giving back. All times are those of the API server, so the
clocks of launchers need not agree. Not here: removing the objects of a dead launcher (prune).
"""

import os
import socket
import threading
from contextlib import suppress
from datetime import datetime, timedelta
from uuid import uuid4

from resources.job.errors import ClusterRefused, ClusterUnavailable
from resources.launcher.kubernetes.cluster import AlreadyThere, Cluster, Document, Outdated

RENEWALS = 2
"""Renewals per lease duration. Each is retried until the next."""
_ATTEMPT, _FAILURES, _RUN = "ml-assets/attempt", "ml-assets/failures", "ml-assets/run"


class LeaseLost(Exception):
    """Another launcher leads this training now, or a pruner removed it."""


class Lease:
    """Lease of one training. While this object holds it, a thread renews it."""

    def __init__(
        self, cluster: Cluster, name: str, labels: dict[str, str], seconds: int, run_id: str = ""
    ) -> None:
        """Prepare the Lease `name`. `run_id`: the run that waits for the training; a pruner checks if it has ended."""
        self._cluster = cluster
        self._name = name
        self._labels = labels
        self._seconds = seconds
        self._run_id = run_id
        self._holder = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._document: Document | None = None
        self._turn = threading.Lock()
        self._over = threading.Event()
        self.lost = threading.Event()
        """Set when another launcher took the Lease or a pruner removed it."""

    def take(self) -> bool:
        """Take the Lease if it is free or has expired; return True if it is ours."""
        try:
            self._document = self._taken()
        except (AlreadyThere, Outdated):
            # A rival wrote it, or our own request whose answer was lost.
            found = self._cluster.get("lease", self._name)
            self._document = found if found is not None and _holder(found) == self._holder else None
        if self._document is None:
            return False
        self.lost.clear()
        self._over.clear()
        threading.Thread(target=self._keep_renewing, name=f"lease {self._name}", daemon=True).start()
        return True

    def _taken(self) -> Document | None:
        found = self._cluster.get("lease", self._name)
        if found is None:
            return self._cluster.create("lease", self._fresh())
        if has_run_out(found, self._cluster.now()):
            return self._cluster.replace("lease", self._renewed(found))
        return None

    @property
    def attempt(self) -> int:
        """Number of the newest attempt that a holder started; 0 before the first. Older attempts were given up."""
        return self._count(_ATTEMPT)

    @property
    def failures(self) -> int:
        """Number of failed attempts, which use budget."""
        return self._count(_FAILURES)

    def note(self, *, attempt: int, failures: int) -> None:
        """Write the counts into the Lease, for a launcher that takes over. After `LeaseLost` change nothing more."""
        with self._turn:
            if self._document is not None:
                notes = {_ATTEMPT: str(attempt), _FAILURES: str(failures)}
                self._document["metadata"].setdefault("annotations", {}).update(notes)
                self._write(self._cluster)
        if self.lost.is_set():
            raise LeaseLost

    def is_ours(self, cluster: Cluster) -> bool:
        """True if the API server says now that we hold it. `cluster` sets how long to retry."""
        found = cluster.get("lease", self._name)
        return found is not None and _holder(found) == self._holder

    def hand_over(self, patience_seconds: float) -> None:
        """Let the Lease expire within a second, so that the next launcher takes it at once. If the API server does not
        answer, the Lease expires by itself.
        """
        self._over.set()
        self._seconds = 1
        ignored = suppress(ClusterUnavailable, ClusterRefused)
        with self._turn, self._cluster.impatient(patience_seconds) as cluster, ignored:
            self._write(cluster)

    def give_back(self, patience_seconds: float) -> None:
        """Delete the Lease if it is still ours. If the API server does not answer, the Lease expires by itself."""
        self._over.set()
        with self._turn, self._cluster.impatient(patience_seconds) as cluster:
            if self._document is None or self.lost.is_set():
                return
            with suppress(ClusterUnavailable, ClusterRefused):
                if self.is_ours(cluster):
                    cluster.delete("lease", self._name)

    def _keep_renewing(self) -> None:
        pause = self._seconds / RENEWALS
        while not self._over.wait(pause):
            with self._turn, self._cluster.impatient(pause) as cluster:
                try:
                    self._write(cluster)
                except (ClusterUnavailable, ClusterRefused):
                    continue  # try again: meanwhile other launchers cannot take it either
            if self.lost.is_set():
                return

    def _write(self, cluster: Cluster) -> None:
        assert self._document is not None
        while not self.lost.is_set():
            try:
                written = cluster.replace("lease", self._renewed(self._document))
            except Outdated:
                found = cluster.get("lease", self._name)
                if found is not None and _holder(found) == self._holder:
                    # Our own write, whose answer was lost.
                    self._document["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
                    continue
                written = None
            if written is None:
                self.lost.set()
            else:
                self._document = written
            return

    def _fresh(self) -> Document:
        return self._renewed(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name, "labels": self._labels},
            }
        )

    def _renewed(self, document: Document) -> Document:
        spec = {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": self._seconds,
            "renewTime": self._cluster.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        meta: Document = document["metadata"]
        annotations = {name: value for name, value in meta.get("annotations", {}).items() if name != _RUN}
        if self._run_id:
            annotations[_RUN] = self._run_id
        return {**document, "metadata": {**meta, "annotations": annotations}, "spec": spec}

    def _count(self, name: str) -> int:
        assert self._document is not None
        return int(self._document["metadata"].get("annotations", {}).get(name, "0"))


def has_run_out(lease: Document, now: datetime, beyond_seconds: float = 0.0) -> bool:
    """True if the holder has not renewed the Lease for its whole duration plus `beyond_seconds`."""
    spec: Document = lease.get("spec", {})
    if not spec.get("renewTime"):
        return True
    renewed = datetime.fromisoformat(str(spec["renewTime"]))
    return now - renewed > timedelta(seconds=int(spec.get("leaseDurationSeconds", 0)) + beyond_seconds)


def is_led(lease: Document) -> bool:
    """True if a launcher wrote the Lease: it has a holder, a duration and the time of the last renewal."""
    return {"holderIdentity", "renewTime", "leaseDurationSeconds"} <= lease.get("spec", {}).keys()


def run_of(lease: Document) -> str:
    """Return the id of the run that waits for the training; empty if none does."""
    return str(lease["metadata"].get("annotations", {}).get(_RUN, ""))


def _holder(lease: Document) -> str:
    return str(lease.get("spec", {}).get("holderIdentity", ""))
