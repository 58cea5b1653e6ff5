"""A small network over embeddings and numbers.

Here: the shape of the model. Not here: filling and scaling (the platform does both before `forward`), and
how it is trained (defs.yaml).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

LARGEST = 5.0
"""Standard deviations from the mean at which a number is cut off: no single day's storm may reach further."""


class Delay(nn.Module):
    """Embeddings and clamped numbers through layers of the widths `hidden` to one logit, or a score for each class."""

    category_plan = ("embeddings.*",)

    def __init__(self, inputs: Any, hidden: Sequence[int], dropout: float, embedding: int) -> None:
        super().__init__()
        tables = [nn.Embedding(size, min(embedding, (size + 1) // 2)) for size in inputs.cardinalities]
        for table in tables:
            nn.init.normal_(table.weight, std=0.1)
        self.embeddings = nn.ModuleList(tables)
        self.embedding_dropout = nn.Dropout(dropout)
        width = len(inputs.numeric) + sum(table.embedding_dim for table in tables)
        layers: list[nn.Module] = []
        for outputs in hidden:
            layers += [nn.Linear(width, outputs), nn.ReLU(), nn.Dropout(dropout)]
            width = outputs
        self.layers = nn.Sequential(*layers, nn.Linear(width, inputs.outputs))
        matrices = [layer.weight for layer in self.layers if isinstance(layer, nn.Linear)]
        self.flops_per_row = 6 * sum(matrix.numel() for matrix in matrices)  # for the figure mfu

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """Logits `[B]`, or scores `[B, classes]`, of `numeric [B, F]` float32 and `category [B, C]` int64."""
        looked_up = [table(category[:, i]) for i, table in enumerate(self.embeddings)]
        known = self.embedding_dropout(torch.cat(looked_up, dim=1))
        return self.layers(torch.cat([numeric.clamp(-LARGEST, LARGEST), known], dim=1)).squeeze(1)


def build(
    inputs: Any, *, hidden: Sequence[int] = (128, 64), dropout: float = 0.3, embedding: int = 8
) -> Delay:
    """Build the model for the columns of a snapshot (`inputs` is its `InputSpec`).

    `hidden` are the widths of the layers, `embedding` the largest width of an embedding; both the embeddings and the
    layers drop a share `dropout` of their outputs.
    """
    return Delay(inputs, hidden, dropout, embedding)
