"""The model that drills train: small, with dropout, which makes a training hard to repeat, and able to go wrong."""

import math
import time

import torch
from torch import nn

from ml_assets.snapshots.split_reader import InputSpec


class DrillModel(nn.Module):
    """An embedding a category, dropout, two linear layers."""

    def __init__(self, inputs: InputSpec, pace: float, nan_after: int | None) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, 2) for size in inputs.cardinalities)
        width = len(inputs.numeric) + 2 * len(inputs.categorical)
        self.head = nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
        self._pace, self._nan_after = pace, nan_after
        self._seen, self._steps = math.nan, 0

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """`[B, F]` float32, `[B, C]` int64 → `[B]` float32 logits."""
        embedded = [embedding(category[:, i]) for i, embedding in enumerate(self.embeddings)]
        output: torch.Tensor = self.head(torch.cat([numeric, *embedded], dim=1)).squeeze(1)
        if self.training and torch.is_grad_enabled():
            time.sleep(self._pace)
            # Steps, by the weight they change: how often a worker calls the model depends on how many there are.
            seen = next(self.head.parameters())[0, 0].item()
            if seen != self._seen:
                self._seen, self._steps = seen, self._steps + 1
            if self._nan_after is not None and self._steps > self._nan_after:
                output = output * torch.nan
        return output


def drill_model(inputs: InputSpec, *, pace: float = 0.0, nan_after: int | None = None) -> DrillModel:
    """`pace`: seconds a pass takes at least, so that there is time to do damage; `nan_after`: steps of a process
    until it yields NaN."""
    return DrillModel(inputs, pace, nan_after)
