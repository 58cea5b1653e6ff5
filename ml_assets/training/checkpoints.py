"""Checkpoints on disk: whole or absent, checked before use, the newest few and the best kept.

    checkpoints/step-00000200/__0_0.distcp …    the parts, one of each rank, and their index
    checkpoints/step-00000200/commit.json       SHA-256 of every file, written last

Everything that knows this layout is here. Not here: what is in the parts (parts), how ranks save together and
meanwhile train on (saving), a copy that outlives the machine (stored_checkpoints).
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from ml_assets.snapshots.reader import file_sha256
from ml_assets.training.attempts import Attempt
from ml_assets.training.parts import INDEX, State, read
from ml_assets.training.storage import storage_failed

COMMIT = "commit.json"
_FOLDER = "checkpoints"
_STEP = re.compile(r"step-(\d{8,})")

log = logging.getLogger(__name__)


class CheckpointDamaged(Exception):
    """A checkpoint is not what its commit marker says."""


class Checkpoints:
    """The checkpoints of one job in a folder that the ranks of this machine share. Any of them reads.

    To save one: `claim`, `open`, fill `writing`, `close`, `store`, `count`; each when all ranks are done with the
    one before (saving). Until it counts, the ones before are as they were. All raise `StorageFailed`.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder / _FOLDER
        self.keep = keep
        self.writing = self._folder / ".writing"
        """Where ranks write the parts of the one that is being saved."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def steps(self) -> list[int]:
        """Steps with a checkpoint, newest first; damaged ones included."""
        found = (_STEP.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def claim(self, step: int) -> None:
        """Rank 0, before anything of `step` is written. On one machine there is nobody to dispute it."""

    def open(self) -> None:
        """One rank of each machine: an empty `writing`, whatever a killed rank left there."""
        self.discard()
        try:
            self.writing.mkdir(parents=True)
        except OSError as error:
            raise storage_failed(error, "a checkpoint", self._folder) from error

    def discard(self) -> None:
        """One rank of each machine: remove what was not closed, which may be what filled the disk."""
        shutil.rmtree(self.writing, ignore_errors=True)

    def digests(self, names: Iterable[str]) -> dict[str, str]:
        """SHA-256 of files in `writing`."""
        try:
            return {name: file_sha256(self.writing / name) for name in names}
        except OSError as error:
            raise storage_failed(error, "a checkpoint", self._folder) from error

    def close(self, step: int, digests: Mapping[str, str], best_step: int) -> None:
        """One rank of each machine: what is in `writing` becomes the checkpoint of `step`, whose files over all
        machines are those of `digests`. When it returns, it survives a power cut.

        Afterwards only the newest `keep` and the one of `best_step` (0: none yet) are left here.
        """
        commit = {"best_step": best_step, "sha256": dict(digests)}
        try:
            _write(self.writing / COMMIT, json.dumps(commit).encode())
            _sync_folder(self.writing)
        except OSError as error:
            raise storage_failed(error, f"the checkpoint of step {step}", self._folder) from error
        for damaged in [old for old in self.steps() if old >= step]:  # else training had gone on from there
            shutil.rmtree(self._path(damaged))
        self.writing.rename(self._path(step))
        _sync_folder(self._folder)
        for old in self.steps()[self.keep :]:
            if old != best_step:
                shutil.rmtree(self._path(old))

    def store(self, step: int, names: Iterable[str]) -> None:
        """Every rank: have the files it wrote outlive its machine. On one machine they need not."""

    def count(self, step: int, best_step: int) -> None:
        """Rank 0: from now on the checkpoint of `step` counts. On one machine it does since it was closed."""

    def begin(self, attempt: Attempt) -> None:
        """Rank 0, before its first save in `attempt`. On one machine a lock keeps earlier attempts away."""

    def bring(self, step: int) -> None:
        """Have the checkpoint of `step` in this folder. On one machine it is."""

    def load(self, step: int) -> State:
        """The state after `step`, tensors on the CPU. Raises `CheckpointDamaged`."""
        self.check(step)
        return read(self._path(step))

    def newest_good(self) -> int | None:
        """Newest step whose checkpoint is whole, and whose best one is too; None where there is none."""
        for step in self.steps():
            try:
                if best_step := self.check(step):
                    self.check(best_step)
            except CheckpointDamaged as error:
                log.warning(
                    "the checkpoint of step %d cannot be used, trying the one before: %s", step, error
                )
            else:
                return step
        return None

    def check(self, step: int) -> int:
        """The step of the best checkpoint by then (0: none), if the one of `step` is whole. Raises
        `CheckpointDamaged`."""
        folder = self._path(step)
        try:
            commit = json.loads((folder / COMMIT).read_bytes())
            best_step, digests = int(commit["best_step"]), dict(commit["sha256"])
            changed = [name for name, digest in digests.items() if file_sha256(folder / name) != digest]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointDamaged(f"{folder}: {error}") from error
        if INDEX not in digests:
            raise CheckpointDamaged(f"{folder} was written by another version of this software")
        if changed:
            raise CheckpointDamaged(f"{', '.join(changed)} in {folder} differ from their digests")
        return best_step

    def _path(self, step: int) -> Path:
        return self._folder.parent / folder_of(step)


def folder_of(step: int) -> str:
    """Where the checkpoint of `step` lies in the job's folder."""
    return f"{_FOLDER}/step-{step:08d}"


def step_of(folder: str) -> int | None:
    """Inverse of `folder_of`; None for another folder."""
    parent, _, name = folder.rpartition("/")
    match = _STEP.fullmatch(name)
    return int(match[1]) if match and parent == _FOLDER else None


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
