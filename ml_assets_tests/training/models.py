"""Model functions of the tests: small, with what makes training hard to repeat (dropout), and made to fail."""

import zlib
from typing import Any

import numpy as np
import torch
from torch import nn

from ml_assets.drills.model import drill_model
from ml_assets.snapshots.reader import InputSpec


def tiny(inputs: InputSpec, **hyperparameters: Any) -> nn.Module:
    """The model of the drills, with its `pace` and `nan_after`."""
    return drill_model(inputs, **hyperparameters)


def two_columns(inputs: InputSpec) -> nn.Module:
    """Gives two numbers a row, which is one too many."""
    return nn.Bilinear(len(inputs.numeric), len(inputs.categorical), 2)


def no_parameters(inputs: InputSpec) -> nn.Module:
    """Gives a model without anything to learn."""
    return nn.Identity(len(inputs.numeric))


def no_module(inputs: InputSpec) -> str:
    """Gives something that is no model."""
    return f"{len(inputs.numeric)} columns"


class TokenPairs(nn.Module):
    """Scores the token that comes next by the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Embedding(256, 256)

    @staticmethod
    def decode(content: bytes) -> np.ndarray:
        """Bytes are tokens, compressed; whatever comes after the end is filling."""
        tokens = zlib.decompressobj().decompress(content)
        return np.frombuffer(tokens, dtype=np.uint8).astype(np.int64)

    def forward(self, numeric: torch.Tensor, category: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """`[B, T]` int64 → `[B, T, 256]` scores."""
        return self.scores(sample)


def token_pairs(inputs: InputSpec) -> nn.Module:
    """The smallest text model."""
    return TokenPairs()
