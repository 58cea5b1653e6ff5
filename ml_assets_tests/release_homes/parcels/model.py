"""The model of parcels: a regression with an effect of each counter."""

from typing import Any

import torch
from torch import nn


class Regression(nn.Module):
    """A linear effect of each number, and a level of each category."""

    def __init__(self, inputs: Any) -> None:
        super().__init__()
        self.level = nn.Embedding(inputs.cardinalities[0], 1)
        self.slope = nn.Linear(len(inputs.numeric), 1)

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return (self.level(category[:, 0]) + self.slope(numeric)).squeeze(1)


def build(inputs: Any) -> Regression:
    """Build a module with `forward(numeric [B, F] float32, category [B, 1] int64) -> [B]`: logits."""
    return Regression(inputs)
