"""Model functions of the tests: small, with what makes training hard to repeat (dropout), and made to fail."""

import time

import torch
from torch import nn

from ml_assets.snapshots.reader import InputSpec


class Tiny(nn.Module):
    """One embedding per category, dropout, one linear layer."""

    def __init__(self, inputs: InputSpec, pace: float, nan_after: int | None) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, 2) for size in inputs.cardinalities)
        width = len(inputs.numeric) + 2 * len(inputs.categorical)
        self.head = nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
        self.pace = pace
        self.nan_after = nan_after
        self.steps = 0

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        embedded = [embedding(category[:, i]) for i, embedding in enumerate(self.embeddings)]
        output = self.head(torch.cat([numeric, *embedded], dim=1)).squeeze(1)
        if self.training and torch.is_grad_enabled():
            self.steps += 1
            time.sleep(self.pace)
            if self.nan_after is not None and self.steps > self.nan_after:
                output = output * torch.nan
        return output


def tiny(inputs: InputSpec, *, pace: float = 0.0, nan_after: int | None = None) -> Tiny:
    """`pace`: seconds a step takes at least; `nan_after`: steps of a process until it yields NaN."""
    return Tiny(inputs, pace, nan_after)


def two_columns(inputs: InputSpec) -> nn.Module:
    """Gives two numbers a row, which is one too many."""
    return nn.Bilinear(len(inputs.numeric), len(inputs.categorical), 2)


def no_parameters(inputs: InputSpec) -> nn.Module:
    """Gives a model without anything to learn."""
    return nn.Identity(len(inputs.numeric))


def no_module(inputs: InputSpec) -> str:
    """Gives something that is no model."""
    return f"{len(inputs.numeric)} columns"
