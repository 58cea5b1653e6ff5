"""A small network for weekly demand."""

from typing import Any

TYPICAL_UNITS = 100.0
"""The network works near one; the answer is in units."""


def build(inputs: Any, *, hidden: int = 32, embedding: int = 4) -> Any:
    """`torch.nn.Module` with `forward(numeric [B, F] float32, category [B, C] int64) -> [B]`.

    `inputs` is the snapshot's `InputSpec`; numeric columns arrive imputed and standardised.
    """
    import torch
    from torch import nn

    class Demand(nn.Module):
        def __init__(self) -> None:
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
            looked_up = [table(category[:, i]) for i, table in enumerate(self.embeddings)]
            return TYPICAL_UNITS * self.layers(torch.cat([numeric, *looked_up], dim=1)).squeeze(1)

    return Demand()
