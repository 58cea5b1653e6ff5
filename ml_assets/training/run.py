"""One training in this process: what it is made of, and its state saved and restored.

Here: putting a job's parts together, what goes into a checkpoint. Not here: the steps (loop), how a
checkpoint lies on disk (checkpoints), the files a finished job leaves (result).
"""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from ml_assets.snapshots.reader import ShardChanged, open_snapshot, verify
from ml_assets.training.batches import SplitReader
from ml_assets.training.checkpoints import Checkpoints
from ml_assets.training.group import Group
from ml_assets.training.load import build_model
from ml_assets.training.mirror import Mirror
from ml_assets.training.objectives import Objective, objective_of
from ml_assets.training.order import Order
from ml_assets.training.preprocess import FullModel
from ml_assets.training.rowlog import RowLog
from ml_assets.training.stored_checkpoints import StoredCheckpoints
from resources.launcher.errors import BadConfiguration, InputChanged
from resources.launcher.job import TrainingJob


@dataclass(kw_only=True)
class Progress:
    """Where a training stands, besides weights and optimizer."""

    step: int = 0
    """Optimizer steps done: also the position in the data and in the schedule."""
    best_step: int = 0
    """Step after which the validation loss was lowest; 0 before the first validation."""
    best_loss: float = math.inf
    """That loss, a mean over the validation rows."""
    seconds: float = 0.0
    """Time in the loop up to `step`, over all attempts."""


@dataclass(kw_only=True)
class Run:
    """A training, ready to step."""

    job: TrainingJob
    folder: Path
    group: Group
    order: Order
    train: SplitReader
    validation: SplitReader
    model: FullModel
    objective: Objective
    optimizer: torch.optim.Optimizer
    checkpoints: Checkpoints
    progress: Progress
    mirror: Mirror | None = None
    """Where the folder does not outlive this machine: what does."""

    @property
    def total_steps(self) -> int:
        """Steps of all epochs; training may stop earlier."""
        return self.job.settings.epochs * self.order.steps_per_epoch

    @property
    def is_finished(self) -> bool:
        """All epochs done, or `patience` epochs without a better validation loss."""
        since_best = self.progress.step - self.progress.best_step
        patience = self.job.settings.patience * self.order.steps_per_epoch
        return self.progress.step >= self.total_steps or (
            self.progress.best_step > 0 and since_best >= patience
        )

    def save(self, rows: RowLog) -> None:
        """Checkpoint after the current step; ranks are replicas, so rank 0 writes for all.

        It counts only with the rows that each rank has learned from, so those are stored first. Where any of it
        fails, on any rank, all of them stop.
        """
        self.store_rows(rows)
        self.group.all_succeed(self._write_checkpoint)

    def store_rows(self, rows: RowLog) -> None:
        """Let the row logs of all ranks outlive their machines."""
        if (mirror := self.mirror) is not None:
            self.group.all_succeed(lambda: mirror.push([rows.cut()]))

    def _write_checkpoint(self) -> None:
        if not self.group.is_first:
            return
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": dataclasses.asdict(self.progress),
        }
        self.checkpoints.save(self.progress.step, state, self.progress.best_step)

    def resume(self) -> None:
        """Go on from the newest good checkpoint, every rank from the same; without any, from the start."""
        newest = self.checkpoints.newest_good() if self.group.is_first else None
        step = self.group.from_first(newest or 0)
        if step:
            self.group.all_succeed(lambda: self._bring(step))
            state = self.checkpoints.load(step)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.progress = Progress(**state["progress"])

    def _bring(self, step: int) -> None:
        if self.group.local_rank == 0:  # for all ranks of this machine
            self.checkpoints.bring(step)


def prepare(job: TrainingJob, folder: Path, group: Group, mirror: Mirror | None = None) -> Run:
    """Open and check the inputs, build the model. Raises `InputChanged` or `BadConfiguration`."""
    settings = job.settings
    try:
        snapshot = open_snapshot(Path(job.snapshot), job.snapshot_digest)
        used = snapshot.shards_of("train") + snapshot.shards_of("validation")
        # Each rank of this machine its part: reading is what takes time.
        verify(snapshot, used[group.local_rank :: group.local_ranks])
        train = SplitReader(snapshot, "train", group.device)
        validation = SplitReader(snapshot, "validation", group.device)
    except ShardChanged as error:
        raise InputChanged(str(error)) from error
    order = Order(
        shard_rows=train.shard_rows,
        global_batch=settings.global_batch,
        seed=job.seed,
        lanes=settings.workers,
    )
    if order.rows < group.world_size:
        raise BadConfiguration(
            f"{order.rows} training rows are fewer than the {group.world_size} workers: lower `workers`"
        )
    objective = objective_of(job.objective)
    model = build_model(job, snapshot.inputs).to(group.device)
    return Run(
        job=job,
        folder=folder,
        group=group,
        order=order,
        train=train,
        validation=validation,
        model=model,
        objective=objective,
        optimizer=torch.optim.AdamW(
            model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        ),
        checkpoints=Checkpoints(folder, settings.keep_checkpoints)
        if mirror is None
        else StoredCheckpoints(folder, settings.keep_checkpoints, mirror),
        progress=Progress(),
        mirror=mirror,
    )
