"""Checkpoints on disk: whole or absent, checked before use, the newest few and the best kept.

    checkpoints/step-00000200/state.pt       model, optimizer, progress
    checkpoints/step-00000200/commit.json    SHA-256 of the file, written last

Everything that knows this layout is here. Not here: when to save and what the state means (loop), a copy
that outlives the machine (stored_checkpoints).
"""

import hashlib
import io
import json
import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch

from ml_assets.training.attempts import Attempt
from ml_assets.training.storage import storage_failed

STATE = "state.pt"
COMMIT = "commit.json"
_FOLDER = "checkpoints"
_STEP = re.compile(r"step-(\d{8,})")

log = logging.getLogger(__name__)


class CheckpointDamaged(Exception):
    """A checkpoint is not what its commit marker says."""


class Checkpoints:
    """The checkpoints of one job. Rank 0 saves; any rank reads."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder / _FOLDER
        self.keep = keep
        self._folder.mkdir(parents=True, exist_ok=True)

    def steps(self) -> list[int]:
        """Steps with a checkpoint, newest first; damaged ones included."""
        found = (_STEP.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def save(self, step: int, state: dict[str, Any], best_step: int) -> None:
        """Write the state after `step`; when it returns, the checkpoint survives a power cut.

        Afterwards only the newest `keep` and the one of `best_step` (0: none yet) are left. Raises
        `StorageFailed` where there is no space; then the ones before are as they were.
        """
        buffer = io.BytesIO()
        torch.save(state, buffer)
        content = buffer.getvalue()
        commit = {"best_step": best_step, "sha256": {STATE: hashlib.sha256(content).hexdigest()}}
        writing = self._folder / ".writing"
        shutil.rmtree(writing, ignore_errors=True)  # what a killed rank left
        try:
            writing.mkdir(parents=True)
            _write(writing / STATE, content)
            _write(writing / COMMIT, json.dumps(commit).encode())
            _sync_folder(writing)
        except OSError as error:
            shutil.rmtree(writing, ignore_errors=True)  # may be what filled the disk
            raise storage_failed(error, f"the checkpoint of step {step}", self._folder) from error
        for damaged in [old for old in self.steps() if old >= step]:  # else training had gone on from there
            shutil.rmtree(self._path(damaged))
        writing.rename(self._path(step))
        _sync_folder(self._folder)
        for old in self.steps()[self.keep :]:
            if old != best_step:
                shutil.rmtree(self._path(old))

    def begin(self, attempt: Attempt) -> None:
        """Rank 0, before its first save in `attempt`. On one machine a lock keeps earlier attempts away."""

    def bring(self, step: int) -> None:
        """Have the checkpoint of `step` in this folder. On one machine it is."""

    def load(self, step: int) -> dict[str, Any]:
        """The state after `step`, tensors on the CPU. Raises `CheckpointDamaged`."""
        content, _ = self._checked(step)
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)

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
        return self._checked(step)[1]

    def _checked(self, step: int) -> tuple[bytes, int]:
        folder = self._path(step)
        try:
            commit = json.loads((folder / COMMIT).read_bytes())
            content = (folder / STATE).read_bytes()
            digest, best_step = str(commit["sha256"][STATE]), int(commit["best_step"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointDamaged(f"{folder}: {error}") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise CheckpointDamaged(f"{folder / STATE} differs from its digest")
        return content, best_step

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
