"""The gradient of a step: of the mean loss over the rows of the whole batch, equal on all ranks.

Two ways, by the job's `determinism`. Here: forward, backward, reduction. Not here: which rows (order), the arithmetic
of sums that any grouping leaves the same (exact), what the gradient is used for (loop).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (the annotations of torch are partial)

import time
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import distributed, nn

from ml_assets.training.batches import Batch
from ml_assets.training.exact import largest, quanta, round_to
from ml_assets.training.feed import Feed
from ml_assets.training.run import Run
from resources.launcher.errors import BadConfiguration


class Gradients(Protocol):
    """Fetches what a step reads, and leaves the step's gradient in the parameters."""

    alone_seconds: float
    """How long this rank took in the newest step before it first waited for others."""

    def fetch(self, step: int) -> Sequence[Batch]:
        """The rows of this rank."""
        ...

    def backward(self, step: int, batches: Sequence[Batch]) -> float:
        """This rank's part of the loss, summed over rows; all ranks have the same gradient afterwards."""
        ...


def gradients_of(run: Run, feed: Feed) -> Gradients:
    """What the job's `determinism` asks for. Raises `BadConfiguration` where the model cannot give it."""
    if run.job.settings.determinism == "bitwise":
        return ExactGradients(run, feed)
    return AveragedGradients(run, feed)


class AveragedGradients:
    """`tolerance`: all rows of a rank at once, averaged over the ranks during backward, whatever the layout."""

    def __init__(self, run: Run, feed: Feed) -> None:
        self._run, self._feed = run, feed
        self._spread = run.layout.spread()
        self.alone_seconds = 0.0

    def fetch(self, step: int) -> Sequence[Batch]:
        """See `Gradients`."""
        return [self._feed.merged(step)]

    def backward(self, step: int, batches: Sequence[Batch]) -> float:
        """See `Gradients`."""
        run, data = self._run, self._run.layout.data
        # Randomness depends on the place in the training alone, so that none of its state is stored.
        data.seed(run.job.seed, step, data.rank)
        [batch] = batches
        started = time.monotonic()
        numeric, *others = batch.inputs
        loss_sum = run.objective.loss(self._spread.module(run.model.preprocess(numeric), *others), batch)
        self.alone_seconds = time.monotonic() - started
        run.optimizer.zero_grad()
        # The average over ranks times their number: shares may differ by a row.
        (loss_sum * (data.world_size / run.order.batch_rows(step))).backward()
        return loss_sum.item()


class ExactGradients:
    """`bitwise`: lane by lane, as if each were a rank of its own, and summed so that the grouping does not matter.

    The bits are then the same for any number of ranks. It takes a pass for each lane, memory for one gradient a lane of
    this rank, and log2(lanes) of the 24 bits of the smaller gradients of a tensor.
    """

    def __init__(self, run: Run, feed: Feed) -> None:
        _refuse_running_statistics(run)
        self._run, self._feed = run, feed
        self._lanes = run.order.lanes_of(run.group.rank, run.group.world_size)
        self._parameters = [one for one in run.model.parameters() if one.requires_grad]
        size = sum(one.numel() for one in self._parameters)
        # One row a lane, and views of it with the shapes of the parameters: reduced at once, without a copy.
        self._flat = torch.zeros(len(self._lanes), size, device=run.group.device)
        self._sum = torch.zeros(size, device=run.group.device)
        self._whole = [self._flat[:, first:last] for first, last in _bounds(self._parameters)]
        self._of_lanes = [_views(lane, self._parameters) for lane in self._flat]
        self._of_sum = _views(self._sum, self._parameters)
        self.alone_seconds = 0.0

    def fetch(self, step: int) -> Sequence[Batch]:
        """See `Gradients`; one batch a lane."""
        return self._feed.by_lane(step)

    def backward(self, step: int, batches: Sequence[Batch]) -> float:
        """See `Gradients`."""
        run, group = self._run, self._run.group
        loss_sum, started = 0.0, time.monotonic()
        self._flat.zero_()
        for lane, batch, gradients in zip(self._lanes, batches, self._of_lanes, strict=True):
            if not len(batch):
                continue
            group.seed(run.job.seed, step, lane)
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient  # backward adds to it in place
            loss = run.objective.loss(run.model(*batch.inputs), batch)
            (loss / run.order.batch_rows(step)).backward()
            loss_sum += loss.item()
        self.alone_seconds = time.monotonic() - started
        self._reduce()
        return loss_sum

    def _reduce(self) -> None:
        beyond_none = largest(self._whole)
        distributed.all_reduce(beyond_none, distributed.ReduceOp.MAX)
        # An infinite gradient stays what it is: the loop stops there.
        for tensor, quantum in zip(self._whole, quanta(beyond_none, self._run.order.lanes), strict=True):
            round_to(tensor, quantum)
        torch.sum(self._flat, dim=0, out=self._sum)
        distributed.all_reduce(self._sum)
        for parameter, gradient in zip(self._parameters, self._of_sum, strict=True):
            parameter.grad = gradient


def _refuse_running_statistics(run: Run) -> None:
    for name, module in run.model.named_modules():
        if getattr(module, "running_mean", None) is not None:
            raise BadConfiguration(
                f"{name} ({type(module).__name__}) keeps running statistics of the rows a worker saw, which depend on "
                "the number of workers: determinism bitwise cannot hold. Use nn.LayerNorm or nn.GroupNorm, or "
                "determinism tolerance"
            )


def _bounds(parameters: Sequence[nn.Parameter]) -> list[tuple[int, int]]:
    bounds: list[tuple[int, int]] = []
    at = 0
    for parameter in parameters:
        bounds.append((at, at + parameter.numel()))
        at += parameter.numel()
    return bounds


def _views(flat: torch.Tensor, parameters: Sequence[nn.Parameter]) -> list[torch.Tensor]:
    """Parts of a row, shaped as the parameters."""
    return [
        flat[first:last].view_as(parameter)
        for parameter, (first, last) in zip(parameters, _bounds(parameters), strict=True)
    ]
