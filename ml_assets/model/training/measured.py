"""Validation loss: of the model that trains, and at the end of a fresh model with the exported weights.

A model may compute with state that no weights file holds: a counter, a buffer with `persistent=False`, a queue, a plan
for `parallel` that differs from its forward. Then the loss that was shown is not the loss of the exported model. One
training showed 0.529, and its exported model had 49.4.

Here: the loss over the validation rows, the comparison, and the loss of some of them, which the exporter's process
computes again, with that of all rows if they have no blobs. Not here: the choice of the best step (loop), the files of
the result (entry).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)

import math
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.checkpoint.saving import exported_of
from ml_assets.model.training.data.batches import Batch, SplitReader, decode_of
from ml_assets.model.training.data.order import ShardSlice, contiguous
from ml_assets.model.training.data.preprocess import FullModel
from ml_assets.model.training.process.group import Agreement
from ml_assets.model.training.process.heartbeat import Heartbeat
from ml_assets.model.training.process.stop import StopRequest
from ml_assets.model.training.run import Run
from ml_assets.model.training.step.load import build_model
from ml_assets.model.training.step.memory import rows_at_once
from ml_assets.model.training.step.model_digests import digest_of, plain_digests
from ml_assets.model.training.step.objectives import Objective, objective_of
from resources.job.errors import Preempted, UnmeasuredModel
from resources.job.job import TrainingJob, TrainingResult
from resources.words import name_some

_ROUNDING = 1e-4
"""Accepted difference of two losses, relative, if both were computed in float32 from the same weights."""
_COARSE_ROUNDING = 0.05
"""The same if weights were rounded to 8 bits of mantissa for one of them."""
_LEAST = 1e-6
"""Accepted difference, absolute: losses near 0."""
_ON_ANOTHER_DEVICE = 0.01
"""The same if a GPU computed one of them, which may round factors of a product to 10 bits of mantissa (TF32)."""
_LEAST_ON_ANOTHER_DEVICE = 1e-4
_COMPARED = 256
"""Most validation rows, or lists, of `loss_of_some`. They are spread evenly over all: once they were the first rows,
and state that changed only later rows was registered."""
_ROWS_OF_EXPORTER = 4_096
"""Rows of a pass of the exporter's process."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Best weights of a training, and their loss in a fresh model."""

    weights: Mapping[str, torch.Tensor]
    """`state_dict` of the whole model on the CPU; only on rank 0."""
    loss: float
    """Validation loss, a mean over the rows."""
    seconds: float
    """Time of the measurement."""
    compared_units: int
    """Number of validation rows, or lists, in `compared_loss`."""
    compared_loss: float
    """Mean loss over them, computed on the CPU; only on rank 0."""


def validation_loss(
    run: Run, loss: Callable[[Batch], float], step: int, heartbeat: Heartbeat, stops: Callable[[], bool]
) -> float | None:
    """Return the mean of `loss` over the validation rows, each read by one rank. Collective call.

    `step` seeds models that draw random numbers in validation. Returns None if `stops` returned True in between.
    """
    group, data, reader = run.group, run.layout.data, run.validation
    # Summed by lane, as in training: a lane's sum belongs to one rank, and adding zeros to it rounds nothing. So the
    # loss, and the choice of the best step, do not depend on the number of ranks.
    sums = [0.0] * run.order.lanes
    # As many rows as in training, where memory must also hold gradients.
    pipe = run.layout.pipe
    batch_rows = pipe.rows if pipe is not None else rows_at_once(run.job.settings, group.world_size)
    work = [
        (lane, place, slices)
        for lane in run.order.lanes_of(data.rank, data.world_size)
        for place, slices in enumerate(contiguous(reader.shard_units, lane, run.order.lanes, batch_rows))
    ]
    with torch.inference_mode():
        for number in range(max(group.gather(len(work)))):
            if number < len(work):
                lane, place, slices = work[number]
                # A model may draw random numbers here, such as dropout that is always on. Without a seed, two world
                # sizes gave two best steps.
                data.seed(run.job.seed, step, lane, place)
                sums[lane] += loss(reader.take(slices))
            elif run.layout.is_sharded:  # an idle rank takes part with a row that does not count
                loss(reader.take([ShardSlice(0, np.zeros(1, np.int64))]))
            heartbeat.moved()
            if stops():
                return None
    return sum(data.sum(sums)) / sum(reader.shard_units)


def measure_exported(run: Run, stop: StopRequest, heartbeat: Heartbeat) -> Exported:
    """Measure a fresh model with the best weights on the validation rows. Collective call, after the last step.

    Frees the optimizer's state, as each device needs room for the whole model. Raises `UnmeasuredModel` if the loss
    differs from the best one of the training by more than rounding, `Preempted` if any rank was asked to stop.
    """
    group, progress, began = run.group, run.progress, time.monotonic()
    run.model.zero_grad(set_to_none=True)
    run.layout.local_optimizer.state.clear()
    weights = run.io_group.all_succeed(lambda: _best_weights(run) if group.is_first else {})
    heartbeat.moved()  # the model's function may never return
    fresh = run.io_group.all_succeed(lambda: _fresh(run, weights)).to(group.device)
    group.copy_from_first(value.data for value in (*fresh.parameters(), *fresh.buffers()))
    agreement = Agreement(group)
    loss = validation_loss(
        run,
        lambda batch: _loss(fresh, run.objective, batch),
        progress.best_step,
        heartbeat,
        lambda: agreement.step(stops=stop.requested, saves=False)[0],
    )
    if loss is None:
        raise Preempted(
            "stopped on request while the exported weights were measured: the next attempt repeats it"
        )
    agreement.change_pace()  # no answer stays on its way
    if not _is_same(progress.best_loss, loss, _rounding(run)):
        raise UnmeasuredModel(_why(run, fresh, loss))
    rows = rows_at_once(run.job.settings, group.world_size)
    units = min(_COMPARED, sum(run.validation.shard_units))
    if run.validation.has_blobs:  # a CPU takes long for pictures and texts
        units = min(units, rows)
    compared = math.nan
    if group.is_first:
        compared = loss_of_some(fresh.cpu(), run.objective, run.validation, units, rows)
    heartbeat.rest()
    return Exported(
        weights=weights,
        loss=loss,
        seconds=time.monotonic() - began,
        compared_units=units,
        compared_loss=compared,
    )


def loss_of_some(
    model: FullModel, objective: Objective, reader: SplitReader, units: int, at_once: int | None = None
) -> float:
    """Return the mean loss of `model`, on the CPU in evaluation mode, over `units` of its validation rows or lists,
    spread evenly over all.

    A pass takes `at_once` of them; by default as many as have `_ROWS_OF_EXPORTER` rows, on average.
    """
    total = sum(reader.shard_units)
    at_once = at_once or max(1, _ROWS_OF_EXPORTER * total // reader.rows)
    places = np.arange(units, dtype=np.int64) * total // units
    begins = np.cumsum([0, *reader.shard_units])
    loss = 0.0
    with torch.inference_mode():
        for start in range(0, units, at_once):
            some = places[start : start + at_once]
            of_shard = np.searchsorted(begins, some, side="right") - 1
            slices = [
                ShardSlice(int(shard), some[of_shard == shard] - begins[shard])
                for shard in np.unique(of_shard)
            ]
            loss += _loss(model, objective, reader.gather(reader.rows_of(slices)))
    return loss / units


def refuse_other_export(
    job: TrainingJob, snapshot: Snapshot, model: FullModel, result: TrainingResult
) -> None:
    """Raise `UnmeasuredModel` if `model`, which the exporter's process built, has another loss than in the workers.

    State of a class, of a Python module or of a process reaches a fresh model in the worker, but not in this process.
    """
    if not result.compared_units:
        raise UnmeasuredModel(
            f"the result of {job.model} {job.partition} has no measurement of the exported weights: delete its folder "
            "among the artifacts and launch the training again"
        )
    reader = SplitReader(snapshot, "validation", torch.device("cpu"), decode_of(job, snapshot.inputs))
    objective, every = objective_of(job.objective), sum(reader.shard_units)
    rows = rows_at_once(job.settings, result.world_size)
    found = loss_of_some(model, objective, reader, result.compared_units, rows)
    if not _is_same(result.compared_loss, found, _ROUNDING):
        raise UnmeasuredModel(_of_process(job, result.compared_loss, result.compared_units, found))
    if reader.has_blobs:  # decoding all of them may take longer than the training
        return
    found = loss_of_some(model, objective, reader, every)
    is_coarse = any(one.is_floating_point() and one.itemsize < 4 for one in model.parameters())
    rounding = _COARSE_ROUNDING if is_coarse else _ON_ANOTHER_DEVICE
    if not _is_same(result.best_validation_loss, found, rounding, _LEAST_ON_ANOTHER_DEVICE):
        raise UnmeasuredModel(_of_process(job, result.best_validation_loss, every, found))


def _of_process(job: TrainingJob, loss: float, units: int, found: float) -> str:
    return (
        f"the exported weights have loss {loss:.6g} over {units:,} validation rows in the worker, but {found:.6g} in "
        f"this process: the model of {job.model_function} computes with state of its process (a class attribute, a "
        "global variable, a file, random numbers). Keep such state in a persistent buffer (register_buffer), or remove "
        "it"
    )


def _is_same(one: float, other: float, rounding: float, least: float = _LEAST) -> bool:
    return math.isclose(one, other, rel_tol=rounding, abs_tol=least)


def _loss(model: FullModel, objective: Objective, batch: Batch) -> float:
    return objective.loss(model(*batch.inputs).float(), batch).item()


def _best_weights(run: Run) -> dict[str, torch.Tensor]:
    best = run.progress.best_step
    weights = exported_of(run.checkpoints.load(best))
    run.checkpoints.let_go(best)
    # The checkpoint may hold rounded values.
    return {name: value.to(run.dtypes.get(name, value.dtype)).contiguous() for name, value in weights.items()}


def _fresh(run: Run, weights: Mapping[str, torch.Tensor]) -> FullModel:
    """Return the model as the exporter builds it; on rank 0 with `weights`."""
    model = build_model(run.job, run.inputs)
    if weights:
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise UnmeasuredModel(
                f"a fresh model of {run.job.model_function} cannot load the weights of the trained one: {error}. "
                "Create every layer and buffer when the model is built"
            ) from error
    return model.eval()


def _rounding(run: Run) -> float:
    settings = run.job.settings
    casts_shards = run.layout.is_sharded and settings.precision != "fp32"
    return _COARSE_ROUNDING if casts_shards or settings.checkpoint_storage == "bf16" else _ROUNDING


def _why(run: Run, fresh: FullModel, loss: float) -> str:
    package = run.job.model_function.partition(".")[0]

    def lost(model: FullModel, only: Container[str] | None = None) -> dict[str, bytes]:
        kept = model.state_dict().keys()
        buffers = {name: digest_of(one) for name, one in model.named_buffers() if name not in kept}
        return plain_digests(model, package, only) | buffers

    if run.job.settings.parallel.model_workers > 1:
        cause = (
            "tensor_plan or pipeline_plan does not compute what forward computes, or the model keeps state"
        )
    else:
        as_built = lost(fresh)
        trained = lost(run.model, as_built)  # without what FSDP adds
        names = [name for name, digest in as_built.items() if trained.get(name, digest) != digest]
        cause = (
            f"the model computes with state that no weights file holds ({name_some(names) or 'not found'})"
        )
    return (
        f"the trained model had validation loss {run.progress.best_loss:.6g} after step {run.progress.best_step}, but "
        f"a fresh model of {run.job.model_function} with its exported weights has {loss:.6g}: {cause}. Keep such state "
        "in a persistent buffer (register_buffer), remove it, or set training.average for an average of the weights"
    )
