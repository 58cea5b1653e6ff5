"""A small network for weekly demand."""

from typing import Any

import torch
from torch import nn

TYPICAL_UNITS = 100.0
"""The network works near one; the answer is in units."""


class Demand(nn.Module):
    """Embeddings and numbers, which arrive imputed and standardised, through two hidden layers to units."""

    category_plan = ("embeddings.*",)

    def __init__(self, inputs: Any, hidden: int, embedding: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(n, embedding) for n in inputs.cardinalities)
        width = len(inputs.numeric) + embedding * len(inputs.cardinalities)
        self.layers = nn.Sequential(
            nn.Linear(width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """Units `[B]` of `numeric [B, F]` float32 and `category [B, C]` int64."""
        looked_up = [table(category[:, i]) for i, table in enumerate(self.embeddings)]
        return TYPICAL_UNITS * self.layers(torch.cat([numeric, *looked_up], dim=1)).squeeze(1)


def build(inputs: Any, *, hidden: int = 32, embedding: int = 4) -> Demand:
    """Build the model for the columns of a snapshot (`inputs` is its `InputSpec`)."""
    return Demand(inputs, hidden, embedding)
