"""The training loop: fetch, forward and backward, reduce, finite?, clip, step, log, save.

Here: the order of things within a step, validation at the end of an epoch. Not here: which rows (order),
what a checkpoint is (run, checkpoints), starting and ending (entry).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch and safetensors are partial)

import math
import time
from contextlib import suppress

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from ml_assets.training.events import emit
from ml_assets.training.group import PeerFailed
from ml_assets.training.meter import Meter
from ml_assets.training.order import contiguous
from ml_assets.training.rowlog import RowLog
from ml_assets.training.run import Run
from ml_assets.training.schedule import learning_rate
from ml_assets.training.stop import StopRequest
from resources.launcher.errors import Diverged, Preempted, StorageFailed

_VALIDATION_ROWS = 8192
"""Rows of a validation batch on each rank."""


def fit(run: Run, rows: RowLog, stop: StopRequest) -> None:
    """Train `run` from where it stands until it is finished; the best weights are then in a checkpoint.

    Raises `Diverged` before a number that is not finite reaches the weights, `Preempted` after a checkpoint
    when any rank was asked to stop.
    """
    try:
        _fit(run, rows, stop)
    except Diverged:
        # All ranks end here; the checkpoint that is being written is as good as those before.
        with suppress(StorageFailed, PeerFailed):
            run.wait_until_saved()
        raise
    run.wait_until_saved()


def _fit(run: Run, rows: RowLog, stop: StopRequest) -> None:
    job, settings, group, order, progress = run.job, run.job.settings, run.group, run.order, run.progress
    replica = DistributedDataParallel(run.model.core)
    parameters = list(run.model.parameters())
    started = time.monotonic() - progress.seconds
    last_save = time.monotonic()
    meter = Meter()

    while not run.is_finished:
        step = progress.step
        # Randomness depends on the place in the training alone, so that none of its state is stored.
        group.seed(job.seed, step)

        with meter.waiting_for_data():
            batch = run.train.take(order.share(step, group.rank, group.world_size))
            rows.write(step, batch.row)

        output = replica(run.model.preprocess(batch.numeric), batch.category)
        loss_sum = run.objective.loss_sum(output, batch.label)
        run.optimizer.zero_grad()
        # DDP averages gradients over the ranks during backward; shares may differ by a row, so the factor
        # makes that average the gradient of the mean over the rows of the whole batch.
        (loss_sum * (group.world_size / order.batch_rows(step))).backward()

        # After a save that failed the next one is due at once: it says why, on all ranks.
        is_due = group.is_first and (
            run.saver.has_failed or time.monotonic() - last_save > 60 * settings.checkpoint_minutes
        )
        batch_loss, stops, due = group.sum([loss_sum.item(), stop.requested, is_due])
        norm = clip_grad_norm_(parameters, settings.clip_norm).item()
        if not (math.isfinite(batch_loss) and math.isfinite(norm)):
            raise Diverged(
                f"at step {step} the loss was {batch_loss:g}, the gradient norm {norm:g}; the last "
                "checkpoint is kept. Lower learning_rate, or look for extreme values in that batch"
            )

        rate = learning_rate(step, run.total_steps, settings.learning_rate, settings.warmup_fraction)
        for parameter_group in run.optimizer.param_groups:
            parameter_group["lr"] = rate
        run.optimizer.step()
        progress.step += 1
        progress.seconds = time.monotonic() - started

        meter.add(batch_loss, order.batch_rows(step), norm)
        if group.is_first and progress.step % settings.metric_steps == 0:
            epoch = progress.step / order.steps_per_epoch
            emit("metrics", progress.step, learning_rate=rate, epoch=epoch, **meter.read())

        is_better = progress.step % order.steps_per_epoch == 0 and _validate(run)
        if is_better or stops or due or progress.step % settings.checkpoint_steps == 0:
            run.save(rows)
            last_save = time.monotonic()
        if stops:
            run.wait_until_saved()
            raise Preempted(f"asked to stop: saved at step {progress.step}")


def _validate(run: Run) -> bool:
    """Loss over the validation rows, each read by one rank; True where it is the best so far."""
    group, progress, reader = run.group, run.progress, run.validation
    group.copy_from_first(run.model.core.buffers())  # of batch norms: judge the weights that would be saved
    run.model.eval()
    loss_sum = 0.0
    with torch.inference_mode():
        for pieces in contiguous(reader.shard_rows, group.rank, group.world_size, _VALIDATION_ROWS):
            batch = reader.take(pieces)
            loss_sum += run.objective.loss_sum(run.model(batch.numeric, batch.category), batch.label).item()
    run.model.train()
    loss = group.sum([loss_sum])[0] / sum(reader.shard_rows)
    if not math.isfinite(loss):
        raise Diverged(
            f"after step {progress.step} the validation loss was {loss:g}; the last checkpoint is kept. "
            "Lower learning_rate, or look for extreme values in the validation rows"
        )
    is_better = loss < progress.best_loss
    if is_better:
        progress.best_step, progress.best_loss = progress.step, loss
    if group.is_first:
        epoch = progress.step // run.order.steps_per_epoch
        emit(
            "epoch", progress.step, epoch=epoch, validation_loss=loss, best_validation_loss=progress.best_loss
        )
    return is_better
