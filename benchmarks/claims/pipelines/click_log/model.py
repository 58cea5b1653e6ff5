"""A network of embeddings and one hidden layer for clicks."""

from typing import Any

import torch
from torch import nn


class Clicks(nn.Module):
    """Embeddings and numbers, which arrive imputed and standardised, through a hidden layer to log odds."""

    def __init__(self, inputs: Any, hidden: int, embedding: int) -> None:
        super().__init__()
        tables = [nn.Embedding(n, embedding) for n in inputs.cardinalities]
        for table in tables:
            nn.init.normal_(table.weight, std=0.05)
        self.embeddings = nn.ModuleList(tables)
        width = len(inputs.numeric) + embedding * len(inputs.cardinalities)
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """Log odds `[B]` of `numeric [B, F]` float32 and `category [B, C]` int64."""
        looked_up = [table(category[:, i]) for i, table in enumerate(self.embeddings)]
        return self.layers(torch.cat([numeric, *looked_up], dim=1)).squeeze(1)


def build(inputs: Any, *, hidden: int = 64, embedding: int = 4) -> Clicks:
    """Build the model for the columns of a snapshot (`inputs` is its `InputSpec`)."""
    return Clicks(inputs, hidden, embedding)
