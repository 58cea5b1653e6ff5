"""GPUs that the pods of a Job hold, from their placement on a node until they end.

Here: the reading that the launcher reports as an event. Not here: hours and cost made from it
(`ml_assets.model.steps.live_report`).
"""

from collections.abc import Iterable
from datetime import datetime

from resources.job.events import TrainingEvent
from resources.launcher.kubernetes.pod_state import Pod


class Reservation:
    """GPU seconds of one Job. A pod that waits for a node holds nothing; a pod that loads its image holds its GPUs."""

    def __init__(self, job: str, gpus: int) -> None:
        """`job`: uid of the Job. `gpus`: GPUs of each pod."""
        self._job = job
        self._gpus = gpus
        self._since: dict[str, datetime] = {}
        self._until: dict[str, datetime] = {}
        self._told: tuple[int, int] | None = None

    def changed(self, pods: Iterable[Pod], now: datetime) -> TrainingEvent | None:
        """Take the pods of the Job as they are at `now` (UTC); return a reading if pods got a node or ended since.

        A reading holds the GPU seconds so far and the GPUs that are held. If the launcher dies, the reader adds
        the time up to the workers' last sign of life.
        """
        present: set[str] = set()
        for pod in pods:
            present.add(pod.uid)
            if not pod.is_scheduled:
                continue
            since = self._since.setdefault(pod.uid, pod.placed or pod.created)
            if pod.has_ended:
                self._until.setdefault(pod.uid, max(since, pod.trainer.ended or now))
        for uid in self._since.keys() - present:
            self._until.setdefault(uid, now)
        state = (len(self._since), len(self._until))
        if not self._gpus or not self._since or state == self._told:
            return None
        self._told = state
        return self._reading(now)

    def _reading(self, now: datetime) -> TrainingEvent:
        seconds = sum(
            (self._until.get(uid, now) - since).total_seconds() for uid, since in self._since.items()
        )
        held = len(self._since) - len(self._until)
        values = {"job": self._job, "gpus": held * self._gpus, "gpu_seconds": max(0.0, seconds) * self._gpus}
        return TrainingEvent(kind="reserved", step=0, time=now.timestamp(), values=values)
