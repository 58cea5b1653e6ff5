"""Rank of `precision.py`: some steps of one job, with their duration and memory."""

import json
import resource
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ml_assets.data.snapshots.split_reader import InputSpec
from ml_assets.model.training.data.order import ShardSlice
from ml_assets.model.training.data.prefetcher import Prefetcher
from ml_assets.model.training.gradients import gradients_of
from ml_assets.model.training.process.group import join_group
from ml_assets.model.training.run import prepare
from resources.job.job import TrainingJob

WIDTH, BLOCKS = 128, 12
_UNTIMED = 2


class Block(nn.Module):
    """Two products with a norm and an activation, added to the input. No dropout, because losses are compared."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.GELU(),
            nn.Linear(2 * WIDTH, WIDTH),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[B, WIDTH]` to `[B, WIDTH]`."""
        return x + self.inner(x)


class Network(nn.Module):
    """The network: numbers in, residual layers, one number out."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.first = nn.Linear(columns, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """Map `[B, F]` float32 to `[B]`."""
        x = self.first(numeric)
        for block in self.blocks:
            x = block(x)
        return self.last(x).squeeze(1)


def model(inputs: InputSpec) -> nn.Module:
    """Return the network for the columns of the snapshot."""
    return Network(len(inputs.numeric))


def main(folder: str, steps: str) -> None:
    """Train, and write the measurements to a file."""
    job = TrainingJob.from_json((Path(folder) / "job.json").read_text())
    with join_group(job.settings) as group:
        run = prepare(job, Path(folder), group)
        losses: list[float] = []
        with Prefetcher(run.order, run.train, group.rank, group.world_size, 0) as prefetcher:
            gradients = gradients_of(run, prefetcher)
            run.model(*run.validation.take([ShardSlice(0, np.arange(2))]).inputs).sum().backward()
            before, began = _megabytes(), 0.0  # after all libraries have started
            for step in range(_UNTIMED + int(steps)):
                if step == _UNTIMED:
                    began = time.perf_counter()
                loss = gradients.backward(step, gradients.fetch(step))
                run.optimizer.step()
                losses.append(group.sum([loss])[0] / run.order.batch_units(step))
            seconds = time.perf_counter() - began
        if group.is_first:
            told = {
                "steps_per_second": int(steps) / seconds,
                "megabytes": _megabytes() - before,
                "loss": statistics.mean(losses[-5:]),
            }
            (Path(folder) / "told.json").write_text(json.dumps(told))


def _megabytes() -> float:
    """Return the largest memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


if __name__ == "__main__":
    main(*sys.argv[1:])
