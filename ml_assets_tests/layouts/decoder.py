"""A small decoder-only transformer that continues text, byte by byte, and says how it can be cut and dealt out."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from ml_assets.data.snapshots.split_reader import InputSpec
from ml_assets_tests.layouts.residual_models import Block

BYTES = 256


class Attention(nn.Module):
    """Causal self-attention, added to the values it is given. A rank computes the heads whose rows it has."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)
        self._head_width = width // heads

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """`[B, T, width]` float32, both."""
        normed = self.norm(values)
        split = [
            part(normed).unflatten(-1, (-1, self._head_width)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        ]
        heads = functional.scaled_dot_product_attention(*split, is_causal=True)
        change: torch.Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return values + change


class Enter(nn.Module):
    """Tokens, and where each of them stands, as vectors."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(BYTES, width), nn.Embedding(tokens, width)

    def forward(self, numeric: torch.Tensor, category: torch.Tensor, blob: torch.Tensor) -> torch.Tensor:
        """`[B, T]` int64 → `[B, T, width]` float32; the rows' columns are not read."""
        values: torch.Tensor = self.tokens(blob)
        return values + self.places(torch.arange(blob.shape[1], device=blob.device))


class TextDecoder(nn.Module):
    """Tokens are the bytes of a row's blob."""

    tensor_plan = {  # noqa: RUF012
        **{f"blocks.*.0.{part}": "colwise" for part in ("query", "key", "value")},
        "blocks.*.0.out": "rowwise",
        "blocks.*.1.up": "colwise",
        "blocks.*.1.down": "rowwise",
    }
    pipeline_plan = ("enter", "blocks.*", "leave")

    def __init__(self, tokens: int, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.enter = Enter(tokens, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(Attention(width, heads), Block(width)) for _ in range(blocks)
        )
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, BYTES))

    def forward(self, numeric: torch.Tensor, category: torch.Tensor, blob: torch.Tensor) -> torch.Tensor:
        """`[B, T]` int64 → `[B, T, 256]` float32 scores of the byte after each."""
        values = self.enter(numeric, category, blob)
        for block in self.blocks:
            values = block(values)
        scores: torch.Tensor = self.leave(values)
        return scores


def read_bytes(content: bytes) -> NDArray[np.int64]:
    """`[T]`: the bytes as they are."""
    return np.frombuffer(content, dtype=np.uint8).astype(np.int64)


def decoder(
    inputs: InputSpec, tokens: int = 64, width: int = 32, heads: int = 4, blocks: int = 2
) -> TextDecoder:
    """Build a decoder of texts of `tokens` bytes."""
    return TextDecoder(tokens, width, heads, blocks)
