"""Checkpoints of a training as a list, with the reasons for which they stay.

Not here: their layout, saving and loading (`ml_assets.model.training.checkpoint.checkpoints`).
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from resources.artifacts import ArtifactMissing, Artifacts, read_artifact
from resources.job.events import EVENTS, TrainingEvent, folder_of_training, read_events


@dataclass(frozen=True, kw_only=True)
class ListedCheckpoint:
    """Checkpoint of a job in the artifacts."""

    step: int
    epoch: int | None
    """Epoch that had ended last; None before the first, and if a script does not report it."""
    loss: float | None
    """Validation loss of that epoch."""
    bytes: int
    at: datetime
    """Moment of its commit, UTC."""
    kept: tuple[str, ...]
    """Reasons for which it was not deleted: `newest`, `best`, `resumed`."""


def listed(artifacts: Artifacts, model: str, fingerprint: str) -> list[ListedCheckpoint]:
    """Return the committed checkpoints of a training, newest first.

    Raises `ArtifactsError`, `CheckpointGone`, and `CheckpointUnusable` if the job of the training was altered.
    """
    # It imports torch, which takes seconds at the first call.
    from ml_assets.model.training.checkpoint.checkpoints import (
        COMMIT,
        CommitMarker,
        folder_of,
        reasons_to_keep,
        step_of,
    )
    from ml_assets.model.training.checkpoint.restored import job_of

    name = folder_of_training(model, fingerprint)
    sizes: dict[int, int] = {}
    files, changed = artifacts.files(name), artifacts.changed(name)
    for file, size in files.items():
        if (step := step_of(file.rpartition("/")[0])) is not None:
            sizes[step] = sizes.get(step, 0) + size
    best: dict[int, int] = {}
    for step in [one for one in sizes if f"{folder_of(one)}/{COMMIT}" in files]:
        try:
            marker = read_artifact(artifacts, f"{name}/{folder_of(step)}", COMMIT)
            best[step] = CommitMarker.from_bytes(marker).best_step
        except (ArtifactMissing, ValueError, TypeError):  # deleted meanwhile, or damaged
            continue
    if not best:
        return []
    events = read_events(artifacts.pull(name, [EVENTS])) if EVENTS in files else []
    keep = job_of(artifacts, model, fingerprint).settings.keep_checkpoints
    reasons = reasons_to_keep(best, keep, [one.step for one in events if one.kind == "resumed"])
    return [
        ListedCheckpoint(
            step=step,
            bytes=sizes[step],
            at=changed[f"{folder_of(step)}/{COMMIT}"],
            kept=tuple(reason for reason, steps in reasons.items() if step in steps),
            **_of_epoch(events, step),
        )
        for step in sorted(best, reverse=True)
    ]


def _of_epoch(events: list[TrainingEvent], step: int) -> dict[str, Any]:
    """Return number and validation loss of the epoch that had ended at a step."""
    ended = [one for one in events if one.kind == "epoch" and one.step <= step]
    values = max(ended, key=lambda one: one.step).values if ended else {}
    epoch, loss = values.get("epoch"), values.get("validation_loss")
    return {"epoch": None if epoch is None else int(epoch), "loss": None if loss is None else float(loss)}
