"""Gradient of a step: of the mean loss over the rows of the whole batch, equal on all ranks.

The job's `determinism` selects the method. Here: forward, backward, reduction. Not here: the choice of rows
(data.order), sums with the same bits for any grouping (parallel.reduction), the use of the gradient (loop).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (the annotations of torch are partial)

import time
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from ml_assets.model.training.data.batches import Batch
from ml_assets.model.training.data.prefetcher import Prefetcher
from ml_assets.model.training.parallel.pipeline import Pipe
from ml_assets.model.training.parallel.reduction import halve, largest, low_quanta, quanta, split_off
from ml_assets.model.training.run import Run
from ml_assets.model.training.step.memory import passes
from ml_assets.model.training.step.precision import LossScale, computing
from ml_assets.model.training.step.preflight import (
    ROWS,
    Fixed,
    fewest_rows,
    leaving_no_trace,
    refuse_changed,
    some_rows,
)
from resources.job.training_settings import Precision


class Gradients(Protocol):
    """Fetches the rows of a step, and leaves the step's gradient in the parameters."""

    alone_seconds: float
    """Seconds of the newest step until this rank first waited for another rank."""

    def fetch(self, step: int) -> Sequence[Batch]:
        """Return the rows of this rank."""
        ...

    def backward(self, step: int, batches: Sequence[Batch]) -> float:
        """Return this rank's part of the loss, summed over rows; afterwards all ranks hold the same gradient."""
        ...


def gradients_of(run: Run, prefetcher: Prefetcher) -> Gradients:
    """Return the method that the job's `determinism` and layout select. Raises `BadConfiguration` if the model does not
    allow it.
    """
    if run.job.settings.determinism == "bitwise":
        return ExactGradients(run, prefetcher)
    if run.layout.pipe is not None:
        return PipelinedGradients(run, prefetcher, run.layout.pipe)
    return AveragedGradients(run, prefetcher)


class AveragedGradients:
    """`tolerance`: a rank's rows in `gradient_accumulation_steps` passes; the last pass averages over the ranks. For
    any layout without a pipeline."""

    def __init__(self, run: Run, prefetcher: Prefetcher) -> None:
        settings, progress = run.job.settings, run.progress
        self._run, self._prefetcher = run, prefetcher
        self._spread = run.layout.spread()
        replica, process_group = self._spread.module, run.group.process_group
        # FSDP casts shards when it gathers them.
        self._precision: Precision = "fp32" if run.layout.is_sharded else settings.precision
        if isinstance(replica, DistributedDataParallel):
            self._order_buckets()
            if settings.gradient_compression == "bf16":
                halve(replica, process_group)
            if run.power_sgd is not None:
                run.power_sgd.attach(replica, process_group, progress.step)
        self._passes = passes(settings, run.group.world_size)
        self._scale = (
            LossScale(run.optimizer, run.group.device, progress) if settings.precision == "fp16" else None
        )
        self.alone_seconds = 0.0

    def _order_buckets(self) -> None:
        """Run a pass that does not count, so that DDP rebuilds its buckets before the first step.

        DDP reorders its buckets after the first pass of each attempt. With three or more ranks, another order sums in
        another order: a resumed training had other bits than an uninterrupted one.
        """
        run = self._run
        if run.group.world_size < 3:
            return
        rows = min(fewest_rows(run.job, run.order, run.group.world_size), ROWS)
        with leaving_no_trace(run.model):
            self._loss_sum(some_rows(run.validation, max(rows, 1))).backward()

    def fetch(self, step: int) -> Sequence[Batch]:
        """See `Gradients`; one batch per pass."""
        return self._prefetcher.merged(step).in_passes(self._passes)

    def backward(self, step: int, batches: Sequence[Batch]) -> float:
        """See `Gradients`."""
        loss_sum = self._accumulate(step, batches)
        while self._scale is not None and not self._scale.fits():
            loss_sum = self._accumulate(step, batches)
        return loss_sum.item()

    def _accumulate(self, step: int, batches: Sequence[Batch]) -> torch.Tensor:
        run, data = self._run, self._run.layout.data
        # Randomness depends only on the position in the training, so no generator state is stored.
        data.seed(run.job.seed, step, data.rank)
        # DDP averages over ranks, so multiply by their number: the ranks' shares may differ by a row.
        weight = data.world_size / run.order.batch_units(step)
        run.optimizer.zero_grad()
        started = time.monotonic()
        loss_sums: list[torch.Tensor] = []
        for batch in batches[:-1]:
            with self._spread.accumulating():
                loss_sum = self._loss_sum(batch)
                self._backward(loss_sum * weight)
            loss_sums.append(loss_sum.detach())
        loss_sum = self._loss_sum(batches[-1])
        self.alone_seconds = time.monotonic() - started
        self._backward(loss_sum * weight)
        return torch.stack([*loss_sums, loss_sum.detach()]).sum()

    def _loss_sum(self, batch: Batch) -> torch.Tensor:
        run = self._run
        with computing(self._precision, run.group.device):
            numeric, *others = batch.inputs
            output = self._spread.module(run.model.preprocess(numeric), *others)
        return run.objective.loss(output.float(), batch)

    def _backward(self, loss: torch.Tensor) -> None:
        (loss if self._scale is None else self._scale(loss)).backward()


class PipelinedGradients:
    """`tolerance` with a pipeline: this rank has some of the layers, and each pass of a step goes through all
    stages."""

    def __init__(self, run: Run, prefetcher: Prefetcher, pipe: Pipe) -> None:
        self._run, self._prefetcher, self._pipe = run, prefetcher, pipe
        self.alone_seconds = 0.0
        """Always 0: a stage waits for the previous stage from the start."""

    def fetch(self, step: int) -> Sequence[Batch]:
        """See `Gradients`."""
        return [self._prefetcher.merged(step)]

    def backward(self, step: int, batches: Sequence[Batch]) -> float:
        """See `Gradients`."""
        run, data = self._run, self._run.layout.data
        data.seed(run.job.seed, step, data.rank)
        run.optimizer.zero_grad()
        [batch] = batches
        weight = data.world_size / run.order.batch_units(step)
        return self._pipe.backward(
            run.model_inputs(batch), run.objective.target(batch), run.objective.loss_sum, weight
        )


class ExactGradients:
    """`bitwise`: lane by lane, as if each lane were a rank, with sums that do not depend on the grouping.

    The bits are the same for any number of ranks. It costs a pass per lane, memory for a gradient per lane of this rank
    and for two more, and twice the bytes of an ordinary all-reduce.
    """

    def __init__(self, run: Run, prefetcher: Prefetcher) -> None:
        self._run, self._prefetcher = run, prefetcher
        self._lanes = run.order.lanes_of(run.group.rank, run.group.world_size)
        self._parameters = [one for one in run.model.parameters() if one.requires_grad]
        size = sum(one.numel() for one in self._parameters)
        # A row per lane, with views in the shapes of the parameters: all are reduced at once, without a copy.
        self._flat = torch.zeros(len(self._lanes), size, device=run.group.device)
        self._sums = torch.zeros(2, size, device=run.group.device)
        """High and low parts (parallel.reduction), summed together."""
        bounds = _bounds(self._parameters)
        self._whole = [self._flat[:, first:last] for first, last in bounds]
        self._low_parts = [self._sums[1, first:last] for first, last in bounds]
        self._of_lanes = [_views(lane, self._parameters) for lane in self._flat]
        self._of_sum = _views(self._sums[0], self._parameters)
        self._fixed = Fixed(run.model)
        self.alone_seconds = 0.0

    def fetch(self, step: int) -> Sequence[Batch]:
        """See `Gradients`; one batch per lane."""
        return self._prefetcher.by_lane(step)

    def backward(self, step: int, batches: Sequence[Batch]) -> float:
        """See `Gradients`."""
        run, group = self._run, self._run.group
        loss_sum, started = 0.0, time.monotonic()
        self._flat.zero_()
        self._fixed.remember()
        for lane, batch, gradients in zip(self._lanes, batches, self._of_lanes, strict=True):
            if not len(batch):
                continue
            group.seed(run.job.seed, step, lane)
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient  # backward adds to it in place
            with computing(run.job.settings.precision, group.device):
                output = run.model(*batch.inputs)
            loss = run.objective.loss(output.float(), batch)
            (loss / run.order.batch_units(step)).backward()
            loss_sum += loss.item()
        self.alone_seconds = time.monotonic() - started
        refuse_changed(self._fixed.changes())
        self._reduce()
        return loss_sum

    def _reduce(self) -> None:
        beyond_none = largest(self._whole)
        distributed.all_reduce(beyond_none, distributed.ReduceOp.MAX)
        lanes = self._run.order.lanes
        high = quanta(beyond_none, lanes)
        low = low_quanta(high, lanes)
        # An infinite gradient stays infinite, and the loop stops.
        highs, lows = self._sums
        for tensor, part, of_high, of_low in zip(self._whole, self._low_parts, high, low, strict=True):
            torch.sum(split_off(tensor, of_high, of_low), dim=0, out=part)
        torch.sum(self._flat, dim=0, out=highs)
        distributed.all_reduce(self._sums)
        highs += lows
        for parameter, gradient in zip(self._parameters, self._of_sum, strict=True):
            parameter.grad = gradient


def _bounds(parameters: Sequence[nn.Parameter]) -> list[tuple[int, int]]:
    bounds: list[tuple[int, int]] = []
    at = 0
    for parameter in parameters:
        bounds.append((at, at + parameter.numel()))
        at += parameter.numel()
    return bounds


def _views(flat: torch.Tensor, parameters: Sequence[nn.Parameter]) -> list[torch.Tensor]:
    """Return parts of a row, shaped as the parameters."""
    return [
        flat[first:last].view_as(parameter)
        for parameter, (first, last) in zip(parameters, _bounds(parameters), strict=True)
    ]
