"""Run of one training in this process: its parts, and saving and restoring its state.

Here: assembling the parts of a job, and the order in which a checkpoint becomes complete. Not here: the steps (loop),
the content of a checkpoint and writing it (checkpoint.saving), its files (checkpoint.checkpoints), the files of a
finished job (entry).
"""

import dataclasses
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ml_assets.data.snapshots.split_reader import InputSpec, ShardChanged, open_snapshot, verify
from ml_assets.model.training.attempt.same_code import refuse_other_code
from ml_assets.model.training.average import WeightAverage
from ml_assets.model.training.checkpoint.checkpoints import Checkpoints, checkpoints_of
from ml_assets.model.training.checkpoint.initial import begin_with
from ml_assets.model.training.checkpoint.mirror import Mirror
from ml_assets.model.training.checkpoint.parts import State
from ml_assets.model.training.checkpoint.saving import (
    Saved,
    Saver,
    like_of,
    refuse_infinite,
    restore,
    state_of,
)
from ml_assets.model.training.data.batches import Batch, SplitReader, decode_of
from ml_assets.model.training.data.order import RowOrder, ShardSlice
from ml_assets.model.training.data.preprocess import FullModel
from ml_assets.model.training.data.rowlog import RowLog
from ml_assets.model.training.data.streaming import ShardSource
from ml_assets.model.training.parallel.layouts import Layout, lay_out, refuse_unfit
from ml_assets.model.training.parallel.reduction import PowerSgd
from ml_assets.model.training.process.group import Group
from ml_assets.model.training.step.load import build_model, check_output, refuse_chance
from ml_assets.model.training.step.memory import checkpoint_activations
from ml_assets.model.training.step.model_digests import (
    begin_alike,
    refuse_other_machine,
    refuse_other_numbers,
)
from ml_assets.model.training.step.objectives import Objective, objective_of
from ml_assets.model.training.step.precision import compile_core, refuse_unable
from ml_assets.model.training.step.preflight import preflight
from ml_assets.model.training.telemetry.event_log import emit
from ml_assets.model.training.telemetry.meter import mfu_of_a_row
from resources.job.errors import BadConfiguration, InputChanged
from resources.job.job import TrainingJob


@dataclass(kw_only=True)
class Progress:
    """Position of a training, apart from weights and optimizer."""

    step: int = 0
    """Optimizer steps done; also the position in the data and in the schedule."""
    validated_step: int = 0
    """Step of the last validation."""
    best_step: int = 0
    """Step after which the validation loss was lowest; 0 before the first validation."""
    best_loss: float = math.inf
    """Validation loss at the best step, a mean over the rows."""
    seconds: float = 0.0
    """Time in the loop up to `step`, over all attempts."""
    loss_scale: float = 2.0**16
    """Factor of the loss under fp16. Halving it finds a fitting factor within a few steps."""
    loss_scale_steps: int = 0
    """Steps since the last change of the factor."""
    preflight_digest: int = 0
    """Digest of the numbers of `preflight`. Not a position: it tells whether a resume computes as before."""


@dataclass(kw_only=True)
class Run:
    """Training, ready to step."""

    job: TrainingJob
    folder: Path
    group: Group
    io_group: Group
    """The same ranks, for waits on disks and stores. During a save, only the saver uses it."""
    order: RowOrder
    train: SplitReader
    validation: SplitReader
    inputs: InputSpec
    """Columns of the snapshot, from which the model's function builds a model."""
    model: FullModel
    objective: Objective
    dtypes: dict[str, torch.dtype]
    """dtype of each value of the whole model's `state_dict`."""
    layout: Layout
    checkpoints: Checkpoints
    mfu_of_a_row: float | None
    """See mfu. Computed from the whole model, since a rank may keep only a part of it."""
    progress: Progress
    power_sgd: PowerSgd | None
    """PowerSGD's state; None unless gradients are sent that way."""
    average: WeightAverage | None
    """Moving average of the weights, which validation and the export use; None: they use the weights."""
    mirror: Mirror | None = None
    """Durable copy of the folder; None if the folder itself outlives this machine."""
    saver: Saver = field(init=False)
    """Set by `resume`."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Optimizer that steps all parameters."""
        return self.layout.optimizer

    @property
    def total_steps(self) -> int:
        """Steps of all epochs; training may stop earlier."""
        return self.job.settings.epochs * self.order.steps_per_epoch

    @property
    def is_finished(self) -> bool:
        """True after all epochs, or after `patience` epochs without a better validation loss."""
        since_best = self.progress.step - self.progress.best_step
        patience = self.job.settings.patience * self.order.steps_per_epoch
        return self.progress.step >= self.total_steps or (
            self.progress.best_step > 0 and since_best >= patience
        )

    def model_inputs(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Return the inputs of the pipeline's own model."""
        numeric, *others = batch.inputs
        return self.model.preprocess(numeric), *others

    def loss(self, batch: Batch) -> float:
        """Return the model's current loss, summed over the rows."""
        if (pipe := self.layout.pipe) is not None:
            return pipe.loss(self.model_inputs(batch), self.objective.target(batch), self.objective.loss_sum)
        return self.objective.loss(self.model(*batch.inputs).float(), batch).item()

    def save(self, rows: RowLog) -> None:
        """Begin a checkpoint after the current step; training may continue when this returns.

        It is committed only after the row logs of all ranks are stored, so those come first. If a write fails on any
        rank, all ranks stop, at the next `save` or in `wait_until_saved`.
        """
        step, mirror = self.progress.step, self.mirror
        part = rows.cut() if mirror is not None else ""

        def first(state: State) -> None:
            refuse_infinite(state, step)
            if mirror is not None:
                mirror.push([part])

        self.saver.begin(step, self._state(), self.progress.best_step, first, _tell)

    def wait_until_saved(self) -> None:
        """Wait until the last checkpoint is committed. Raises the errors of `Saver.wait`."""
        self.saver.wait()

    def store_rows(self, rows: RowLog) -> None:
        """Store the row logs of all ranks where they outlive their machines."""
        if (mirror := self.mirror) is not None:
            self.io_group.all_succeed(lambda: mirror.push([rows.cut()]))

    def resume(self) -> None:
        """Resume from the newest good checkpoint, the same on every rank; without a checkpoint, start at step 0."""
        newest = self.checkpoints.newest_good() if self.group.is_first else None
        step = self.io_group.from_first(newest or 0)
        if step:
            self.io_group.all_succeed(lambda: self._examine(step))
            like = like_of(self.model, self.layout.local_optimizer)
            state = self.io_group.all_succeed(lambda: self.checkpoints.read(step, like))
            if self.group.local_rank == 0:
                self.checkpoints.let_go(step)
            restore(state, self.model, self.layout.local_optimizer)
            if self.power_sgd is not None:
                self.power_sgd.restore(state.get("compression", {}))
            if self.average is not None:
                self.average.restore(state)
            now, self.progress = self.progress.preflight_digest, Progress(**state["progress"])
            refuse_other_machine(now, self.progress.preflight_digest, step)
        self.saver = Saver(
            self.checkpoints,
            self.io_group,
            self.layout.share,
            self.job.settings.checkpoint_storage,
            pinned=self.group.device.type == "cuda",
        )
        self.optimizer.register_step_post_hook(self._after_step)

    def _after_step(self, *_: Any) -> None:
        self.saver.make_memory(self._state)  # after the first step, since an optimizer has no state before

    def _state(self) -> State:
        remembered = None if self.power_sgd is None else self.power_sgd.memory(self.group)
        average = None if self.average is None else self.average.state()
        progress = dataclasses.asdict(self.progress)
        return state_of(self.model, self.layout.local_optimizer, progress, remembered, average)

    def _examine(self, step: int) -> None:
        """Verify a checkpoint, on one rank of each machine. Rank 0 has verified it already, while it looked for it."""
        if self.group.local_rank == 0 and not self.group.is_first:
            self.checkpoints.examine(step)


def _tell(saved: Saved) -> None:
    emit(
        "checkpoint",
        saved.step,
        checkpoint_duration_ms=1000 * saved.seconds,
        blocked_ms=1000 * saved.blocked_seconds,
        best_step=saved.best_step,
    )


def prepare(
    job: TrainingJob,
    folder: Path,
    group: Group,
    mirror: Mirror | None = None,
    bounded: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Run:
    """Open and check the inputs, build the model and lay it out on the ranks. Collective call.

    Runs the pipeline's own functions within `bounded`, since they may never return.

    Raises `InputChanged` or `BadConfiguration` on each rank that fails, and `PeerFailed` on the others.
    """
    io_group = group.io_group()
    is_pod = mirror is not None

    def make() -> _Made:
        refuse_other_code(job, is_pod=is_pod)
        made = _make(job, folder, group, bounded)
        refuse_other_code(job, is_pod=is_pod)  # again: it may have been edited just before the import
        return made

    made = io_group.all_succeed(make)
    begin_alike(made.model, group, is_bitwise=job.settings.determinism == "bitwise")
    refuse_other_numbers(made.preflight_digest, group)
    dtypes = {name: value.dtype for name, value in made.model.state_dict().items()}
    layout = lay_out(made.model, made.model.core, group, job.settings)
    warmup = int(job.settings.warmup_fraction * job.settings.epochs * made.order.steps_per_epoch)
    return Run(
        job=job,
        folder=folder,
        group=group,
        io_group=io_group,
        order=made.order,
        train=made.train,
        validation=made.validation,
        inputs=made.inputs,
        model=made.model,
        objective=made.objective,
        dtypes=dtypes,
        layout=layout,
        mfu_of_a_row=made.mfu_of_a_row,
        checkpoints=checkpoints_of(job, folder, mirror),
        progress=Progress(preflight_digest=made.preflight_digest),
        power_sgd=PowerSgd(made.model, job.seed, warmup)
        if job.settings.gradient_compression == "powersgd"
        else None,
        average=None
        if job.settings.average is None
        else WeightAverage(made.model, job.settings.average.decay),
        mirror=mirror,
    )


class _Made(NamedTuple):
    """Parts of a run that a rank builds by itself."""

    train: SplitReader
    validation: SplitReader
    order: RowOrder
    objective: Objective
    inputs: InputSpec
    model: FullModel
    mfu_of_a_row: float | None
    preflight_digest: int


def _make(
    job: TrainingJob, folder: Path, group: Group, bounded: Callable[[], AbstractContextManager[None]]
) -> _Made:
    settings = job.settings
    refuse_unable(settings.precision, group.device)
    try:
        snapshot = open_snapshot(Path(job.snapshot), job.snapshot_digest, job.schema_hash)
        source = ShardSource.read(snapshot.folder)
        here = snapshot.shards_of("validation") + (snapshot.shards_of("train") if source is None else ())
        # Each rank of this machine verifies a part, since reading takes the time.
        verify(snapshot, here[group.local_rank :: group.local_ranks])
        order = RowOrder(
            shard_units=tuple(shard.units for shard in snapshot.shards_of("train")),
            global_batch=settings.global_batch,
            lanes=settings.lane_count,
            seed=job.seed,
        )
        with bounded():
            model = build_model(job, snapshot.inputs)
            if settings.determinism == "bitwise":
                refuse_chance(job, snapshot.inputs)
        mfu = mfu_of_a_row(model.core, settings, group)
        decode = decode_of(job, snapshot.inputs)
        readers = max(1, group.world_size // settings.parallel.model_workers)  # with different rows
        streamed = source and source.open(snapshot, -(-order.lanes // readers), group.local_ranks)
        threads = settings.decode_threads
        train = SplitReader(snapshot, "train", group.device, decode, streamed, threads)
        validation = SplitReader(snapshot, "validation", group.device, decode, decode_threads=threads)
    except ShardChanged as error:
        raise InputChanged(str(error)) from error
    if order.units < group.world_size:
        raise BadConfiguration(
            f"{order.units} training {train.unit_words} are fewer than the {group.world_size} workers: lower `workers`"
        )
    if job.initial_weights:
        begin_with(model, job, folder)
    model.to(group.device)
    if decode is not None:
        two = validation.take([ShardSlice(0, np.zeros(2, dtype=np.int64))])
        check_output(job, model, two, snapshot.inputs.outputs)
    objective = objective_of(job.objective)
    if (
        settings.activation_checkpointing != "none"
    ):  # before the preflight, whose passes must fit into memory, too
        checkpoint_activations(model.core, settings.activation_checkpointing, is_compiled=settings.compile)
    with bounded():
        preflight_digest = preflight(job, model, objective, order, validation, group)
    if settings.compile:
        compile_core(model.core, group.device, folder)
    refuse_unfit(model.core, group, settings)
    return _Made(train, validation, order, objective, snapshot.inputs, model, mfu, preflight_digest)
