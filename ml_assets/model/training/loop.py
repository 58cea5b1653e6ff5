"""Training loop: fetch, forward and backward, reduce, check for finite values, clip, step, log, save.

Here: the order of operations in a step and of epochs, the learning rate of a step, and the choice of the best weights.
Not here: the choice of rows (data.order), agreement on a gradient (gradients), the validation loss (measured), the
content of a checkpoint (run, checkpoint.saving), start and end (entry).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch and safetensors are partial)

import math
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import NoReturn

import numpy as np

from ml_assets.model.training.attempt.pace import pace_of
from ml_assets.model.training.data.prefetcher import Prefetcher
from ml_assets.model.training.data.rowlog import RowLog
from ml_assets.model.training.gradients import Gradients, gradients_of
from ml_assets.model.training.measured import Exported, measure_exported, validation_loss
from ml_assets.model.training.process.group import Agreement, Group, PeerFailed
from ml_assets.model.training.process.heartbeat import Heartbeat
from ml_assets.model.training.process.stop import StopRequest
from ml_assets.model.training.run import Run
from ml_assets.model.training.step.model_digests import refuse_differences
from ml_assets.model.training.telemetry.event_log import emit
from ml_assets.model.training.telemetry.machine import gpu_figures
from ml_assets.model.training.telemetry.meter import Meter
from resources.job.errors import Diverged, Preempted, StorageFailed


def learning_rate(step: int, total_steps: int, peak: float, warmup_fraction: float) -> float:
    """Return the rate of one cycle (linear warm-up to `peak`, cosine decay towards 0) at `step` of 0 … `total_steps` -
    1.

    After Smith & Topin, "Super-Convergence" (2017), with a cosine for the second half.
    """
    warmup = round(total_steps * warmup_fraction)
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, total_steps - warmup)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))


def fit(run: Run, rows: RowLog, stop: StopRequest, heartbeat: Heartbeat) -> Exported:
    """Train `run` from its current step to the end; return the best weights, measured in a fresh model.

    Raises `Diverged` before a non-finite number reaches the weights, `Preempted` after a checkpoint if any rank was
    asked to stop, and `UnmeasuredModel` if the fresh model has another validation loss than the trained one.
    """
    data = run.layout.data
    dropout = run.job.settings.category_dropout
    with Prefetcher(
        run.order, run.train, data.rank, data.world_size, run.progress.step, dropout
    ) as prefetcher:
        try:
            _fit(run, gradients_of(run, prefetcher), rows, stop, heartbeat)
        except Diverged:
            # All ranks end here. The checkpoint in progress is as good as earlier ones, so finish it.
            with suppress(StorageFailed, PeerFailed):
                run.wait_until_saved()
            raise
    heartbeat.rest()
    run.wait_until_saved()
    return measure_exported(run, stop, heartbeat)


def _fit(run: Run, gradients: Gradients, rows: RowLog, stop: StopRequest, heartbeat: Heartbeat) -> None:
    settings, group, order, progress = run.job.settings, run.group, run.order, run.progress
    started = time.monotonic() - progress.seconds
    saved_step = progress.step
    pace = pace_of(run.job, run.folder, group, progress.step)
    meter, agreement = Meter(run.mfu_of_a_row, run.train.rows / order.units), Agreement(group)

    def save() -> None:
        nonlocal saved_step
        heartbeat.rest()  # may wait for the store, which has its own timeout
        with pace.saving():
            run.save(rows)
        heartbeat.moved()
        saved_step = progress.step

    def leave() -> NoReturn:
        if saved_step < progress.step:
            save()
        heartbeat.rest()
        run.wait_until_saved()
        raise Preempted(f"stopped on request: saved a checkpoint at step {progress.step}")

    heartbeat.begin()
    while True:
        # Validation also comes first after a resume. It listens for a stop request, which need not wait for its end.
        if progress.step > progress.validated_step and progress.step % order.steps_per_epoch == 0:
            agreement.change_pace()
            is_better = _validate(
                run, heartbeat, lambda: agreement.step(stops=stop.requested, saves=False)[0]
            )
            if is_better is None:
                leave()
            agreement.change_pace()
            if is_better and saved_step < progress.step:
                save()
            pace.leave_out()
        if run.is_finished:
            break
        step = progress.step
        with meter.waiting_for_data():
            batches = gradients.fetch(step)
        if run.layout.is_first_copy:
            rows.write(step, np.concatenate([batch.row for batch in batches]))
        loss_sum = gradients.backward(step, batches)

        # All ranks have the same gradient. It is not finite if any rank's loss is not finite (objectives).
        norm = run.layout.clip(settings.clip_norm)
        if not math.isfinite(norm):
            rank, its_loss = _worst(loss_sum, group)
            raise Diverged(
                f"at step {step} the loss was {its_loss:g} on rank {rank}, the gradient norm of all ranks "
                f"{norm:g}; the last checkpoint is kept. Lower learning_rate, or look for extreme values in that batch"
            )

        rate = learning_rate(step, run.total_steps, settings.learning_rate, settings.warmup_fraction)
        for parameter_group in run.optimizer.param_groups:
            parameter_group["lr"] = rate
        run.optimizer.step()
        progress.step += 1
        if run.average is not None:
            run.average.update(progress.step)
        progress.seconds = time.monotonic() - started
        heartbeat.step(progress.step)

        meter.add(loss_sum, order.batch_units(step), norm, gradients.alone_seconds)
        if progress.step % settings.log_every_steps == 0:
            figures = meter.read(group.gather, run.layout.data.sum) | gpu_figures(group.device)
            if group.is_first:
                epoch = progress.step / order.steps_per_epoch
                emit("metrics", progress.step, learning_rate=rate, epoch=epoch, **figures)

        # After a failed save the next save is due at once: it raises the error on all ranks.
        pace.stepped(progress.step, is_saving=run.saver.is_saving)
        stops, due = agreement.step(stops=stop.requested, saves=run.saver.has_failed or pace.is_due)
        if stops:
            leave()
        most = settings.most_steps_unsaved
        if due or (most is not None and progress.step % most == 0):
            save()


def _worst(loss: float, group: Group) -> tuple[int, float]:
    """Return the first rank with a non-finite loss (else rank 0) and that loss; the same on all ranks."""
    losses = group.sum([loss if rank == group.rank else 0.0 for rank in range(group.world_size)])
    return next(((rank, one) for rank, one in enumerate(losses) if not math.isfinite(one)), (0, losses[0]))


def _validate(run: Run, heartbeat: Heartbeat, stops: Callable[[], bool]) -> bool | None:
    """Validate the current weights, or their average. Return True if their loss is the best so far.

    Returns None if `stops` returned True in between; all ranks call it equally often.
    """
    group, progress = run.group, run.progress
    if run.job.settings.determinism == "bitwise":
        refuse_differences(
            run.model,
            group,
            f"after step {progress.step} workers hold different weights: the model computes with something that "
            "differs between processes, so that determinism bitwise cannot hold. Use determinism tolerance",
        )
    buffers, data = run.model.core.buffers, run.layout.data
    data.copy_from_first(buffers())  # of batch norms: validate the values that would be saved
    run.model.eval()
    with nullcontext() if run.average is None else run.average.in_model():
        if run.average is not None:
            data.copy_from_first(buffers())
        loss = validation_loss(run, run.loss, progress.step, heartbeat, stops)
    if loss is None:
        return None
    run.model.train()
    if not math.isfinite(loss):
        raise Diverged(
            f"after step {progress.step} the validation loss was {loss:g}; the last checkpoint is kept. "
            "Lower learning_rate, or look for extreme values in the validation rows"
        )
    progress.validated_step = progress.step
    is_better = loss < progress.best_loss
    if is_better:
        progress.best_step, progress.best_loss = progress.step, loss
    if group.is_first:
        epoch = progress.step // run.order.steps_per_epoch
        emit(
            "epoch", progress.step, epoch=epoch, validation_loss=loss, best_validation_loss=progress.best_loss
        )
    return is_better
