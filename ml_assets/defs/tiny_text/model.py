"""A small decoder-only transformer over bytes, and the function that reads a window as bytes."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

TOKENS = 256
"""Tokens of a row: the windows of `features`, of which `decode` may use nothing, since a bundle holds it alone."""


def decode(content: bytes) -> np.ndarray:
    """`[256]` int64: the bytes of a window, with -1 behind the last one. Raises `ValueError` for a longer text."""
    if len(content) > TOKENS:
        raise ValueError(f"the text has {len(content)} bytes, and the model reads {TOKENS}: divide it")
    tokens = np.full(TOKENS, -1, dtype=np.int64)
    tokens[: len(content)] = np.frombuffer(content, dtype=np.uint8)
    return tokens


class CausalAttention(nn.Module):
    """Causal self-attention, added to its input. Under tensor parallelism a rank computes some of the heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self._head_width = heads, width // heads
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """`[B, T, width]` float32, both."""
        normed = self.norm(values)
        query, key, value = (
            part(normed).unflatten(-1, (-1, self._head_width)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        change: torch.Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return values + change


class FeedForward(nn.Module):
    """Two layers, added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """`[B, T, width]` float32, both."""
        change: torch.Tensor = self.down(functional.gelu(self.up(self.norm(values))))
        return values + change


class ByteModel(nn.Module):
    """Bytes and their places as vectors, then attention and feed-forward layers in turn, then scores of all bytes."""

    tensor_plan = {  # noqa: RUF012
        **{f"layers.*.0.{part}": "colwise" for part in ("query", "key", "value")},
        "layers.*.0.out": "rowwise",
        "layers.*.1.up": "colwise",
        "layers.*.1.down": "rowwise",
    }

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(vocabulary, width), nn.Embedding(TOKENS, width)
        self.layers = nn.ModuleList(
            nn.Sequential(CausalAttention(width, heads), FeedForward(width)) for _ in range(layers)
        )
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary))
        for table in (self.bytes, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, numeric: torch.Tensor, category: torch.Tensor, blob: torch.Tensor) -> torch.Tensor:
        """`[B, T]` int64 → `[B, T, vocabulary]` float32 scores of the byte after each. There are no columns.

        What -1 is read as does not matter: it stands behind all bytes, and attention looks back only.
        """
        values: torch.Tensor = self.bytes(blob.clamp(min=0))
        values = values + self.places(torch.arange(blob.shape[1], device=blob.device))
        for layer in self.layers:
            values = layer(values)
        scores: torch.Tensor = self.leave(values)
        return scores


def build(inputs: Any, *, width: int = 128, heads: int = 4, layers: int = 3) -> ByteModel:
    """Build the decoder (`inputs` is an `InputSpec`, whose `outputs` is the number of token ids)."""
    return ByteModel(inputs.outputs, width, heads, layers)
