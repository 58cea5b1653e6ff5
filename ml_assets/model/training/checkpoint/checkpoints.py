"""Checkpoints on disk and in the store: complete or absent, verified before use; the newest few and the best are kept.

    checkpoints/step-00000200/__0_0.distcp …    the parts, one per rank, and their index
    checkpoints/step-00000200/commit.json       the commit marker, written last
    {"fingerprint": "…", "best_step": 200, "sha256": {".metadata": "…", "__0_0.distcp": "…"}}

With a store, ranks upload their parts while they write them, without a file on the machine's disk: first each part from
the rank that holds it, then the marker by rank 0. A checkpoint is fetched for reading and its local copy deleted
afterwards. An interrupted upload has no commit marker; a damaged one fails its digest check. Neither counts.

Here: everything that knows this layout. Not here: the content of the parts (parts), saving while training goes on
(saving), S3 (mirror).
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Collection, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Self, cast

from ml_assets.data.snapshots.split_reader import file_sha256
from ml_assets.model.training.attempt.attempts import ATTEMPTS, Attempt, read_attempts
from ml_assets.model.training.checkpoint.mirror import Mirror
from ml_assets.model.training.checkpoint.parts import INDEX, Like, State, read
from resources.artifacts import ArtifactMissing, ArtifactsRefused
from resources.files import sync
from resources.job.errors import InputChanged, StorageFailed, storage_failed
from resources.job.events import EVENTS
from resources.job.job import TrainingJob

log = logging.getLogger(__name__)

COMMIT = "commit.json"


class CheckpointDamaged(Exception):
    """A checkpoint differs from its commit marker."""


@dataclass(frozen=True, kw_only=True)
class CommitMarker:
    """Content of a checkpoint's commit marker."""

    fingerprint: str
    """Fingerprint of the training."""
    best_step: int
    """Step of the best checkpoint at that time; 0: none yet."""
    sha256: Mapping[str, str]
    """Name of each file of all ranks → 64 hex digits."""

    def to_bytes(self) -> bytes:
        """Return the content of the marker file."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the marker in `folder`. Raises `CheckpointDamaged`, also for a marker of another version of this
        software."""
        try:
            return cls.from_bytes((folder / COMMIT).read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointDamaged(f"{folder}: {error}") from error

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Inverse of `to_bytes`. Raises `ValueError` or `TypeError` for another document."""
        facts: dict[str, Any] = json.loads(content)
        _require_types(**facts)  # a flipped bit may leave valid JSON
        return cls(**facts)


def _require_types(fingerprint: Any, best_step: Any, sha256: Any) -> None:
    """Raise `ValueError` unless these facts of a marker are a text, a step, and digests of files of one folder."""
    is_step = isinstance(best_step, int) and not isinstance(best_step, bool) and best_step >= 0
    if not (is_step and isinstance(fingerprint, str) and isinstance(sha256, dict) and sha256):
        raise ValueError("not a fingerprint, a step and digests of files")
    for name, digest in cast(dict[str, Any], sha256).items():
        # A script's checkpoint may have folders.
        if name == COMMIT or {*name.split("/")} & {"", ".", ".."} or not isinstance(digest, str):
            raise ValueError(f"{name!r} is not a file of a checkpoint, or has no digest")


def reasons_to_keep(
    best_steps: Mapping[int, int], keep: int, began_from: Collection[int]
) -> Mapping[str, set[int]]:
    """Return reason → the checkpoints that stay for it.

    `newest`: the newest `keep`; `best`: the best checkpoint of each of those; `resumed`: those from which attempts
    began (`began_from`).

    `best_steps`: step of each existing checkpoint → step of the best one at that time (0: none yet).
    """
    newest = sorted(best_steps, reverse=True)[:keep]
    found = {
        "newest": set(newest),
        "best": {best_steps[step] for step in newest},
        "resumed": set(began_from),
    }
    return {reason: steps & best_steps.keys() for reason, steps in found.items()}


def kept(best_steps: Mapping[int, int], keep: int, began_from: int) -> set[int]:
    """Return the checkpoints that stay while an attempt runs that began from `began_from`."""
    reasons = reasons_to_keep(best_steps, keep, [began_from])
    return {step for steps in reasons.values() for step in steps}


_FOLDER = "checkpoints"
_STEP = re.compile(r"step-(\d{8,})")


class Checkpoints:
    """Checkpoints of one job in a folder that its ranks share. Any rank can read.

    To save a checkpoint: `claim`, `create` every file, `count`. Saving starts each after all ranks finished the
    previous call. Until `count`, earlier checkpoints stay as they were. All methods raise `StorageFailed`.
    """

    def __init__(self, folder: Path, keep: int, fingerprint: str, *, begins_at: int = 0) -> None:
        """`fingerprint` is the job's: a checkpoint of another fingerprint is refused.

        A training that begins at the step `begins_at` has a checkpoint of it from its start.
        """
        self._begins_at = begins_at
        self._folder = folder / _FOLDER
        self._fingerprint = fingerprint
        self._began_from = 0
        self.keep = keep
        self.writing = self._folder / ".writing"
        """Folder of the parts while a checkpoint is being saved."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, newest first, damaged ones included."""
        found = (_STEP.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def begin(self, attempt: Attempt) -> None:
        """Note the running attempt. Rank 0 calls it before the first save in `attempt`."""
        self._began_from = attempt.from_step

    def claim(self, step: int) -> None:
        """Make `writing` an empty folder, whatever a killed rank left there. Rank 0 calls it before any write of
        `step`."""
        self.discard()
        try:
            self.writing.mkdir(parents=True)
        except OSError as error:
            raise storage_failed(error, f"the checkpoint of step {step}", self._folder) from error

    def discard(self) -> None:
        """Remove an uncommitted checkpoint: it may have filled the disk. Rank 0 calls it."""
        shutil.rmtree(self.writing, ignore_errors=True)

    @contextmanager
    def create(self, step: int, name: str) -> Generator[IO[bytes]]:
        """Open a file of the checkpoint of `step`, for writing in order. Any rank calls it. After the block, the file
        survives a power cut."""
        try:
            with (self.writing / name).open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise storage_failed(error, f"the checkpoint of step {step}", self._folder) from error

    def count(self, step: int, sha256: Mapping[str, str], best_step: int) -> None:
        """Commit the created files as the checkpoint of `step`, with their digests. Rank 0 calls it.

        Afterwards it removes all checkpoints that `commit.kept` does not name.
        """
        commit = CommitMarker(fingerprint=self._fingerprint, best_step=best_step, sha256=sha256)
        with self.create(step, COMMIT) as file:
            file.write(commit.to_bytes())
        try:
            sync(self.writing)
            for damaged in [
                old for old in self.steps() if old >= step
            ]:  # damaged, since otherwise the attempt would have resumed there
                shutil.rmtree(self._path(damaged))
            self.writing.rename(self._path(step))
            sync(self._folder)
        except OSError as error:
            raise storage_failed(error, f"the checkpoint of step {step}", self._folder) from error
        best_steps = {old: self._best_step(old) for old in self.steps()}
        for old in best_steps.keys() - kept(best_steps, self.keep, self._began_from):
            shutil.rmtree(self._path(old))

    def let_go(self, step: int) -> None:
        """Release the local copy of a checkpoint. One rank of each machine calls it."""

    def load(self, step: int, like: Like | None = None) -> State:
        """Verify and return the state after `step`; `like` as in `parts.read`. Raises `CheckpointDamaged`."""
        self.examine(step)
        return self.read(step, like)

    def read(self, step: int, like: Like | None = None) -> State:
        """Return the state after `step` without verification: a rank of this machine has just verified it."""
        return read(self._path(step), like)

    def newest_good(self) -> int | None:
        """Return the newest step whose checkpoint and best checkpoint are both intact; None if there is none. Both are
        verified, and the newest one is then on this machine.

        Raises `InputChanged` if a training that begins at a later step than 0 has none: to begin at step 0 would make
        another training of it.
        """
        for step in self.steps():
            if step < self._begins_at:  # its best weights until then
                continue
            try:
                best_step = self.examine(step)
                if best_step not in (0, step):
                    self.examine(best_step)
                    self.let_go(best_step)  # not needed here until the result is made from it
            except CheckpointDamaged as error:
                log.warning(
                    "the checkpoint of step %d cannot be used, trying the previous checkpoint: %s",
                    step,
                    error,
                )
                self.let_go(step)
            else:
                return step
        if self._begins_at:
            raise InputChanged(
                f"the state of step {self._begins_at}, with which this training begins, is gone from {self._folder} or "
                "damaged: delete that folder, then restore it once more from the training that it comes from"
            )
        return None

    def examine(self, step: int) -> int:
        """Fetch and verify the checkpoint of `step`; return the step of the best checkpoint at that time (0: none). One
        rank of each machine calls it.

        Hashes every byte, several files at once. Raises `CheckpointDamaged`.
        """
        self._bring(step)
        folder = self._path(step)
        commit = CommitMarker.read(folder)
        if commit.fingerprint != self._fingerprint:
            raise CheckpointDamaged(
                f"{folder} belongs to training {commit.fingerprint[:12]}, not to {self._fingerprint[:12]}: to start "
                "from the weights of another training, register its model and name it in init_from"
            )
        if INDEX not in commit.sha256:
            raise CheckpointDamaged(f"{folder} was written by another version of this software")
        try:
            with ThreadPoolExecutor() as threads:
                found = list(threads.map(file_sha256, [folder / name for name in commit.sha256]))
        except OSError as error:
            raise CheckpointDamaged(f"{folder}: {error}") from error
        wanted = commit.sha256.items()
        if changed := [name for (name, digest), one in zip(wanted, found, strict=True) if one != digest]:
            raise CheckpointDamaged(f"{', '.join(changed)} in {folder} differ from their digests")
        return commit.best_step

    def _bring(self, step: int) -> None:
        """Fetch the checkpoint of `step` into this folder. On a single machine it is already there."""

    def _best_step(self, step: int) -> int:
        """Return the best step that the marker of `step` names; 0 if the marker cannot be read."""
        try:
            return CommitMarker.read(self._path(step)).best_step
        except CheckpointDamaged:
            return 0

    def _path(self, step: int) -> Path:
        return self._folder.parent / folder_of(step)


def folder_of(step: int) -> str:
    """Return the path of the checkpoint of `step` below the job's folder."""
    return f"{_FOLDER}/step-{step:08d}"


def step_of(folder: str) -> int | None:
    """Return the step of a checkpoint's folder, the inverse of `folder_of`; None for any other folder."""
    parent, _, name = folder.rpartition("/")
    match = _STEP.fullmatch(name)
    return int(match[1]) if match and parent == _FOLDER else None


def checkpoints_of(job: TrainingJob, folder: Path, mirror: Mirror | None) -> Checkpoints:
    """Return the checkpoints of `job`: in its folder, or in the store if there is a mirror, since a pod's disk is
    lost."""
    facts = (folder, job.settings.keep_checkpoints, job.fingerprint)
    begins_at = 0 if job.restored is None else job.restored.step
    if mirror is None:
        return Checkpoints(*facts, begins_at=begins_at)
    return StoredCheckpoints(*facts, mirror, begins_at=begins_at)


class StoredCheckpoints(Checkpoints):
    """Checkpoints behind a `Mirror`. `folder` holds only what was fetched for reading."""

    def __init__(
        self, folder: Path, keep: int, fingerprint: str, mirror: Mirror, *, begins_at: int = 0
    ) -> None:
        super().__init__(folder, keep, fingerprint, begins_at=begins_at)
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
