"""Checkpoints in the store alone: ranks upload their parts while they write them, without a file on the machine's disk.

    checkpoints/step-00000200/__0_0.distcp …    first, each from the rank that holds it
    checkpoints/step-00000200/commit.json       by rank 0, after all parts have arrived

A checkpoint is fetched for reading and its local copy deleted afterwards. An interrupted upload has no commit marker; a
damaged one fails its digest check. Neither counts. Not here: verification (checkpoints), S3 (mirror).
"""

import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ml_assets.model.training.attempt.attempts import ATTEMPTS, Attempt, read_attempts
from ml_assets.model.training.checkpoint.checkpoints import Checkpoints, folder_of, step_of
from ml_assets.model.training.checkpoint.commit import COMMIT, CheckpointDamaged, CommitMarker, kept
from ml_assets.model.training.checkpoint.mirror import Mirror
from resources.artifacts import ArtifactMissing, ArtifactsRefused
from resources.job.errors import StorageFailed
from resources.job.events import EVENTS
from resources.job.job import TrainingJob


def checkpoints_of(job: TrainingJob, folder: Path, mirror: Mirror | None) -> Checkpoints:
    """Return the checkpoints of `job`: in its folder, or in the store if there is a mirror, since a pod's disk is
    lost."""
    facts = (folder, job.settings.keep_checkpoints, job.fingerprint)
    return Checkpoints(*facts) if mirror is None else StoredCheckpoints(*facts, mirror)


class StoredCheckpoints(Checkpoints):
    """Checkpoints behind a `Mirror`. `folder` holds only what was fetched for reading."""

    def __init__(self, folder: Path, keep: int, fingerprint: str, mirror: Mirror) -> None:
        super().__init__(folder, keep, fingerprint)
        self.mirror = mirror
        self._best_steps: dict[int, int] = {}
        """Stored checkpoints with a commit marker: step → step of the best one at that time."""
        self._unfinished: set[int] = set()
        """Steps of stored checkpoints without a commit marker."""
        self._attempt: Attempt | None = None

    def steps(self) -> list[int]:
        """Return the steps with a committed checkpoint, newest first, as far as this process knows."""
        return sorted(self._best_steps, reverse=True)

    def begin(self, attempt: Attempt) -> None:
        """Make `attempt` the only one that stores. An older attempt that still runs, on a node that lost its network,
        ends at its next save. Raises `StorageFailed`."""
        super().begin(attempt)
        self.mirror.push([ATTEMPTS])
        self._attempt = attempt
        self.mirror.abort_uploads()

    def claim(self, step: int) -> None:
        """Raise `StorageFailed` if a later attempt has begun. Remove checkpoints of `step` or later, which the resume
        gave up, and checkpoints that never got a marker."""
        self._refuse_if_superseded()
        self._forget(self._unfinished | {old for old in self._best_steps if old >= step})

    def discard(self) -> None:
        """Do nothing: the store may have failed, and the next attempt removes the rest."""

    @contextmanager
    def create(self, step: int, name: str) -> Generator[IO[bytes]]:
        """See `Checkpoints`. Holds a few megabytes of the file in memory at a time."""
        with self.mirror.create(f"{folder_of(step)}/{name}") as file:
            yield file

    def count(self, step: int, sha256: Mapping[str, str], best_step: int) -> None:
        """See `Checkpoints`."""
        self._refuse_if_superseded()
        self.mirror.push([EVENTS])
        commit = CommitMarker(fingerprint=self._fingerprint, best_step=best_step, sha256=sha256)
        with self.create(step, COMMIT) as file:
            file.write(commit.to_bytes())
        self._best_steps[step] = best_step
        self._forget(self._best_steps.keys() - kept(self._best_steps, self.keep, self._began_from))

    def newest_good(self) -> int | None:
        """See `Checkpoints`."""
        self._look()
        return super().newest_good()

    def let_go(self, step: int) -> None:
        """See `Checkpoints`."""
        shutil.rmtree(self._path(step), ignore_errors=True)

    def _look(self) -> None:
        """List the stored checkpoints."""
        parts = [file.rpartition("/") for file in self.mirror.files()]
        found = {step for folder, _, _ in parts if (step := step_of(folder)) is not None}
        counted = {step for folder, _, name in parts if name == COMMIT and (step := step_of(folder))}
        self._unfinished = found - counted
        self._best_steps = {step: self._stored_best_step(step) for step in counted}

    def _stored_best_step(self, step: int) -> int:
        try:
            self.mirror.pull([f"{folder_of(step)}/{COMMIT}"])
        except (ArtifactMissing, ArtifactsRefused):  # damaged: it will not be used
            return 0
        return self._best_step(step)

    def _bring(self, step: int) -> None:
        """See `Checkpoints`. A file that is missing from the store, or refused by it, means a damaged checkpoint."""
        try:
            self.mirror.pull([folder_of(step)])
        except (ArtifactMissing, ArtifactsRefused) as error:
            raise CheckpointDamaged(str(error)) from error

    def _forget(self, steps: set[int]) -> None:
        if steps:
            # The marker first: a half-removed checkpoint must not count.
            self.mirror.remove([f"{folder_of(step)}/{COMMIT}" for step in steps])
            self.mirror.remove([folder_of(step) for step in steps])
            self._unfinished -= steps
            for step in steps & self._best_steps.keys():
                del self._best_steps[step]

    def _refuse_if_superseded(self) -> None:
        """Raise `StorageFailed` if a newer attempt exists. A pod on a node that lost its network may run beside its
        successor."""
        self.mirror.pull([ATTEMPTS])
        newest = read_attempts(self.mirror.folder)[-1]
        if newest != self._attempt:
            raise StorageFailed(
                f"attempt {newest.number} of this job runs on other machines: this older attempt ends and does not "
                "store its checkpoint"
            )
