"""Checkpoints that outlive the machines: written there, then stored by `Mirror`, the commit marker last.

    checkpoints/step-00000200/__0_0.distcp …    first, each by the rank that wrote it
    checkpoints/step-00000200/commit.json       by rank 0, when all have arrived

A machine has the parts its ranks wrote, and the marker; `bring` adds the others. A checkpoint that was cut off or
damaged on the way does not count: its marker is missing, or a digest differs. Not here: what the files hold
(checkpoints).
"""

import logging
from collections.abc import Iterable
from pathlib import Path

from ml_assets.training.attempts import ATTEMPTS, Attempt, read_attempts
from ml_assets.training.checkpoints import COMMIT, CheckpointDamaged, Checkpoints, folder_of, step_of
from ml_assets.training.mirror import Mirror
from resources.artifacts import ArtifactMissing, ArtifactsRefused
from resources.launcher.errors import StorageFailed
from resources.launcher.protocol import EVENTS

log = logging.getLogger(__name__)


class StoredCheckpoints(Checkpoints):
    """`Checkpoints` with a durable copy of each. What only lies here does not count: it may not be there for
    the other nodes, nor for the next attempt."""

    def __init__(self, folder: Path, keep: int, mirror: Mirror) -> None:
        super().__init__(folder, keep)
        self.mirror = mirror
        self._stored: set[int] = set()
        self._attempt: Attempt | None = None

    def begin(self, attempt: Attempt) -> None:
        """From now on `attempt` is the one that stores; an older one that still runs, on a node that was cut
        off, ends at its next save. Raises `StorageFailed`."""
        self.mirror.push([ATTEMPTS])
        self._attempt = attempt

    def claim(self, step: int) -> None:
        """Refuse where a later attempt has begun; remove what was given up as damaged, of `step` or later."""
        self._refuse_if_superseded()
        self._forget([old for old in self._stored if old >= step])

    def store(self, step: int, names: Iterable[str]) -> None:
        """Push the files that this rank wrote."""
        self.mirror.push([f"{folder_of(step)}/{name}" for name in names])

    def count(self, step: int, best_step: int) -> None:
        """Push the marker; afterwards only the newest `keep` and the one of `best_step` are left there."""
        self.mirror.push([EVENTS], last=f"{folder_of(step)}/{COMMIT}")
        self._stored.add(step)
        kept = {*sorted(self._stored, reverse=True)[: self.keep], best_step}
        self._forget(sorted(self._stored - kept))

    def newest_good(self) -> int | None:
        """Newest stored step whose checkpoint is whole, and whose best one is too; both are here then."""
        files = self.mirror.files()
        steps = (step_of(file.rpartition("/")[0]) for file in files)
        self._stored = {step for step in steps if step is not None}
        for step in sorted(self._stored, reverse=True):
            try:
                self.bring(step)
                if best_step := self.check(step):
                    self.bring(best_step)
                    self.check(best_step)
            except (CheckpointDamaged, ArtifactMissing, ArtifactsRefused) as error:
                log.warning(
                    "the stored checkpoint of step %d cannot be used, trying the one before: %s", step, error
                )
            else:
                return step
        return None

    def bring(self, step: int) -> None:
        """Have the whole checkpoint of `step` here. Raises what `Mirror.pull` raises."""
        folder = folder_of(step)
        self.mirror.pull([folder, f"{folder}/{COMMIT}"])

    def _forget(self, steps: list[int]) -> None:
        if steps:
            # The marker first: half a checkpoint must not count.
            self.mirror.remove([f"{folder_of(step)}/{COMMIT}" for step in steps])
            self.mirror.remove([folder_of(step) for step in steps])
            self._stored -= set(steps)

    def _refuse_if_superseded(self) -> None:
        """A pod on a node that was cut off may live on while its successor trains."""
        self.mirror.pull([ATTEMPTS])
        newest = read_attempts(self.mirror.folder)[-1]
        if newest != self._attempt:
            raise StorageFailed(
                f"attempt {newest.number} of this job has begun meanwhile, on other machines: this one ends, "
                "its checkpoint is not stored"
            )
