"""Checkpoints on disk: whole or absent, checked before use, the newest few and the best kept.

    checkpoints/step-00000200/__0_0.distcp …    the parts, one of each rank, and their index
    checkpoints/step-00000200/commit.json       the marker, written last

Everything that knows this layout is here. Not here: the marker, which ones stay (commit), what is in the parts (parts),
how ranks save together and meanwhile train on (saving), a place that outlives the machine (stored_checkpoints).
"""

import logging
import os
import re
import shutil
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ml_assets.snapshots.split_reader import file_sha256
from ml_assets.training.attempt.attempts import Attempt
from ml_assets.training.attempt.storage import storage_failed
from ml_assets.training.checkpoint.commit import COMMIT, CheckpointDamaged, CommitMarker, kept
from ml_assets.training.checkpoint.parts import INDEX, Like, State, read
from resources.files import sync_folder

_FOLDER = "checkpoints"
_STEP = re.compile(r"step-(\d{8,})")

log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one job in a folder that its ranks share. Any of them reads.

    To save one: `claim`, `create` every file, `count`; each when all ranks are done with the one before (saving).
    Until it counts, the ones before are as they were. All raise `StorageFailed`.
    """

    def __init__(self, folder: Path, keep: int, fingerprint: str) -> None:
        """`fingerprint` of the job: a checkpoint of another one is none."""
        self._folder = folder / _FOLDER
        self._fingerprint = fingerprint
        self._began_from = 0
        self.keep = keep
        self.writing = self._folder / ".writing"
        """Folder of the parts of the checkpoint that is being saved."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def steps(self) -> list[int]:
        """Steps with a checkpoint, newest first; damaged ones included."""
        found = (_STEP.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def begin(self, attempt: Attempt) -> None:
        """Rank 0, before its first save in `attempt`."""
        self._began_from = attempt.from_step

    def claim(self, step: int) -> None:
        """Rank 0, before anything of `step` is written: an empty `writing`, whatever a killed rank left there."""
        self.discard()
        try:
            self.writing.mkdir(parents=True)
        except OSError as error:
            raise storage_failed(error, f"the checkpoint of step {step}", self._folder) from error

    def discard(self) -> None:
        """Rank 0: remove what was not to count, which may be what filled the disk."""
        shutil.rmtree(self.writing, ignore_errors=True)

    @contextmanager
    def create(self, step: int, name: str) -> Generator[IO[bytes]]:
        """Any rank: a file of the checkpoint of `step`, to be written in order. When the block ends, it survives a
        power cut."""
        try:
            with (self.writing / name).open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise storage_failed(error, f"the checkpoint of step {step}", self._folder) from error

    def count(self, step: int, sha256: Mapping[str, str], best_step: int) -> None:
        """Rank 0: from now on what was created counts as the checkpoint of `step`, if its files have these digests.

        Afterwards only those are left that `commit.kept` names.
        """
        commit = CommitMarker(fingerprint=self._fingerprint, best_step=best_step, sha256=sha256)
        with self.create(step, COMMIT) as file:
            file.write(commit.to_bytes())
        try:
            sync_folder(self.writing)
            for damaged in [
                old for old in self.steps() if old >= step
            ]:  # else training had gone on from there
                shutil.rmtree(self._path(damaged))
            self.writing.rename(self._path(step))
            sync_folder(self._folder)
        except OSError as error:
            raise storage_failed(error, f"the checkpoint of step {step}", self._folder) from error
        best_steps = {old: self._best_step(old) for old in self.steps()}
        for old in best_steps.keys() - kept(best_steps, self.keep, self._began_from):
            shutil.rmtree(self._path(old))

    def let_go(self, step: int) -> None:
        """One rank of each machine: what was brought is not needed here any more."""

    def load(self, step: int, like: Like | None = None) -> State:
        """The state after `step`, or what `parts.read` gives of it, examined before. Raises `CheckpointDamaged`."""
        self.examine(step)
        return self.read(step, like)

    def read(self, step: int, like: Like | None = None) -> State:
        """As `load`, where a rank of this machine has just examined it for all of them."""
        return read(self._path(step), like)

    def newest_good(self) -> int | None:
        """Newest step whose checkpoint is whole, and whose best one is too; it is examined, and here then. None where
        there is none."""
        for step in self.steps():
            try:
                best_step = self.examine(step)
                if best_step not in (0, step):
                    self.examine(best_step)
                    self.let_go(best_step)  # until the result is made of it
            except CheckpointDamaged as error:
                log.warning(
                    "the checkpoint of step %d cannot be used, trying the one before: %s", step, error
                )
                self.let_go(step)
            else:
                return step
        return None

    def examine(self, step: int) -> int:
        """One rank of each machine: have the checkpoint of `step` here, whole. The step of the best one by then (0:
        none).

        Every byte of it is hashed, of several files at once. Raises `CheckpointDamaged`.
        """
        self._bring(step)
        folder = self._path(step)
        commit = CommitMarker.read(folder)
        if commit.fingerprint != self._fingerprint:
            raise CheckpointDamaged(
                f"{folder} is of training {commit.fingerprint[:12]}, not of {self._fingerprint[:12]}: to begin with "
                "the weights of another one, register it and name it in init_from"
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
        """Have the checkpoint of `step` in this folder. On one machine it is."""

    def _best_step(self, step: int) -> int:
        """Return the best step that the marker of `step` names; 0 where it cannot be read."""
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
    """Inverse of `folder_of`; None for another folder."""
    parent, _, name = folder.rpartition("/")
    match = _STEP.fullmatch(name)
    return int(match[1]) if match and parent == _FOLDER else None
