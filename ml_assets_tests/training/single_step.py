"""One training step of a small job in this process, for tests of what a setting does to gradients."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.data.prefetcher import Prefetcher
from ml_assets.model.training.gradients import gradients_of
from ml_assets.model.training.process.group import Group
from ml_assets.model.training.run import Run, prepare
from ml_assets_tests.training.small_jobs import small_job


@dataclass(frozen=True, kw_only=True)
class Step:
    """State after a step."""

    loss: float
    """Summed over the rows of this rank."""
    gradients: dict[str, torch.Tensor]
    """Gradients by parameter name."""
    passes: int
    run: Run


def one_step(snapshot: Snapshot, folder: Path, group: Group, model: str = "blocks", **changes: Any) -> Step:
    """Gradients of the first step of `small_job`, as `group` computes them; nothing is learned from them."""
    job = small_job(snapshot, model, workers=group.world_size, **changes)
    run = prepare(job, folder, group)
    data = run.layout.data
    with Prefetcher(run.order, run.train, data.rank, data.world_size, 0) as prefetcher:
        gradients = gradients_of(run, prefetcher)
        batches = gradients.fetch(0)
        loss = gradients.backward(0, batches)
    found = {
        name: _whole(parameter.grad).clone()
        for name, parameter in run.model.named_parameters()
        if parameter.grad is not None
    }
    return Step(loss=loss, gradients=found, passes=len(batches), run=run)


def _whole(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
