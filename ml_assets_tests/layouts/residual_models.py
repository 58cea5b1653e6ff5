"""Model functions of the tests of layouts: with blocks, some layers that can be cut, and nothing random."""

import torch
from torch import nn
from torch.nn import functional

from ml_assets.data.snapshots.split_reader import InputSpec


class Block(nn.Module):
    """Residual block: adds its output to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """`[…, width]` float32, both."""
        change: torch.Tensor = self.down(functional.gelu(self.up(self.norm(values))))
        return values + change


class Enter(nn.Module):
    """Numbers and categories of a row as one vector."""

    def __init__(self, inputs: InputSpec, width: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, width) for size in inputs.cardinalities)
        self.numbers = nn.Linear(len(inputs.numeric), width)

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """`[B, F]` float32, `[B, C]` int64 → `[B, width]` float32."""
        values: torch.Tensor = self.numbers(numeric)
        for place, embedding in enumerate(self.embeddings):
            values = values + embedding(category[:, place])
        return values


class Residual(nn.Module):
    """Residual network over rows of numbers and categories."""

    tensor_plan = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}  # noqa: RUF012
    pipeline_plan = ("enter", "blocks.*", "leave")

    def __init__(self, inputs: InputSpec, width: int, blocks: int) -> None:
        super().__init__()
        self.enter = Enter(inputs, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.leave = nn.Sequential(nn.Linear(width, 1), nn.Flatten(0))

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """`[B, F]` float32, `[B, C]` int64 → `[B]` float32 logits."""
        values: torch.Tensor = self.enter(numeric, category)
        for block in self.blocks:
            values = block(values)
        logits: torch.Tensor = self.leave(values)
        return logits


def residual(inputs: InputSpec, width: int = 12, blocks: int = 2) -> Residual:
    """`width` is divisible by 2 and 3, and 4 times as many are what tensor parallelism cuts."""
    return Residual(inputs, width, blocks)
