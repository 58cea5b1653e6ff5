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


NEAR = 3
"""Bytes whose vectors a place begins with: its own and the two before it. So the first steps learn which byte follows
which, before attention has learned where to look; a training here has about a hundred steps."""


class CausalAttention(nn.Module):
    """Causal self-attention, added to its input. Under tensor parallelism a rank computes some of the heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self._head_width = heads, width // heads
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.out.weight)  # a layer begins as the identity, so that a high rate does no harm

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
        nn.init.zeros_(self.down.weight)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """`[B, T, width]` float32, both."""
        change: torch.Tensor = self.down(functional.gelu(self.up(self.norm(values))))
        return values + change


class ByteModel(nn.Module):
    """Vectors of the last bytes and of the place, then attention and feed-forward layers in turn, then scores of all
    bytes."""

    tensor_plan = {  # noqa: RUF012
        **{f"layers.*.0.{part}": "colwise" for part in ("query", "key", "value")},
        "layers.*.0.out": "rowwise",
        "layers.*.1.up": "colwise",
        "layers.*.1.down": "rowwise",
    }

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(vocabulary, NEAR * width), nn.Embedding(TOKENS, width)
        self.layers = nn.ModuleList(
            nn.Sequential(CausalAttention(width, heads), FeedForward(width)) for _ in range(layers)
        )
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary))
        for table in (self.bytes, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, numeric: torch.Tensor, category: torch.Tensor, blob: torch.Tensor) -> torch.Tensor:
        """`[B, T]` int64 → `[B, T, vocabulary]` float32 scores of the byte after each. There are no columns.

        Padding may be read as any token: it stands behind all bytes, and attention looks back only.
        """
        tokens = blob.shape[1]
        near: torch.Tensor = self.bytes(blob.clamp(min=0)).unflatten(-1, (NEAR, -1))
        values: torch.Tensor = self.places(torch.arange(tokens, device=blob.device))
        for back in range(NEAR):  # a window begins with nothing before it
            values = values + functional.pad(near[:, : tokens - back, back], (0, 0, back, 0))
        for layer in self.layers:
            values = layer(values)
        scores: torch.Tensor = self.leave(values)
        return scores


def build(inputs: Any, *, width: int = 64, heads: int = 4, layers: int = 2) -> ByteModel:
    """Build the decoder (`inputs` is an `InputSpec`, whose `outputs` is the number of token ids)."""
    return ByteModel(inputs.outputs, width, heads, layers)
