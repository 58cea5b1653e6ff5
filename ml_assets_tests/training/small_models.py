"""Model functions of the tests: small, with what makes training hard to repeat (dropout), and made to fail."""

import zlib
from typing import Any

import numpy as np
import torch
from torch import nn

from ml_assets.data.snapshots.split_reader import InputSpec
from ml_assets.extras.drills.drill_model import drill_model


def tiny(inputs: InputSpec, **hyperparameters: Any) -> nn.Module:
    """The model of the drills, with its `pace` and `nan_after`."""
    return drill_model(inputs, **hyperparameters)


class Blocks(nn.Module):
    """Numbers only, through some blocks with dropout."""

    def __init__(self, width: int, dropout: float = 0.0, hidden: int = 64, count: int = 2) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(_block(width, hidden, dropout) for _ in range(count)))
        self.head = nn.Linear(width, 1)

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """`[B, F]` float32 → `[B]` float32."""
        output: torch.Tensor = self.head(self.blocks(numeric)).squeeze(1)
        return output


def _block(width: int, hidden: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, hidden),
        nn.LayerNorm(hidden),
        nn.GELU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.GELU(),
        nn.Linear(hidden, width),
    )


def blocks(inputs: InputSpec, dropout: float = 0.0, count: int = 2) -> nn.Module:
    """A model with blocks."""
    return Blocks(len(inputs.numeric), dropout, count=count)


def wide(inputs: InputSpec) -> nn.Module:
    """Some megabytes of weights, which are more than one message."""
    return Blocks(len(inputs.numeric), hidden=600)


class Hungry(Blocks):
    """Wants more memory than there is, once it learns."""

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """Never comes back."""
        if self.training and torch.is_grad_enabled():
            torch.empty(2**60, dtype=torch.int8)
        return super().forward(numeric, category)


def hungry(inputs: InputSpec) -> nn.Module:
    """A model that needs too much memory."""
    return Hungry(len(inputs.numeric))


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

    def forward(self, numeric: torch.Tensor, category: torch.Tensor, blob: torch.Tensor) -> torch.Tensor:
        """`[B, T]` int64 → `[B, T, 256]` scores."""
        return self.scores(blob)


def read_tokens(content: bytes) -> np.ndarray:
    """`[T]`: bytes are tokens, compressed; whatever comes after the end is filling."""
    tokens = zlib.decompressobj().decompress(content)
    return np.frombuffer(tokens, dtype=np.uint8).astype(np.int64)


class SeesAll(TokenPairs):
    """Adds the scores of all tokens of the row, also of later ones."""

    def forward(self, numeric: torch.Tensor, category: torch.Tensor, blob: torch.Tensor) -> torch.Tensor:
        """`[B, T]` int64 → `[B, T, 256]` scores."""
        scores: torch.Tensor = self.scores(blob)
        return scores + scores.mean(dim=1, keepdim=True)


class SeesAllLater(TokenPairs):
    """Adds the scores of all tokens by a weight that begins at 0, as the last layer of a residual branch often does."""

    def __init__(self) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.zeros(1))

    def forward(self, numeric: torch.Tensor, category: torch.Tensor, blob: torch.Tensor) -> torch.Tensor:
        """`[B, T]` int64 → `[B, T, 256]` scores."""
        scores: torch.Tensor = self.scores(blob)
        return scores + self.share * scores.mean(dim=1, keepdim=True)


def sees_all(inputs: InputSpec) -> nn.Module:
    """A text model that cheats."""
    return SeesAll()


def sees_all_later(inputs: InputSpec) -> nn.Module:
    """A text model that cheats from its second step on."""
    return SeesAllLater()


def sees_all_faintly(inputs: InputSpec) -> nn.Module:
    """A text model that cheats behind a gate of 1e-5, as LayerScale begins."""
    model = SeesAllLater()
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.constant_(parameter, 1e-5)
    return model


def token_pairs(inputs: InputSpec) -> nn.Module:
    """The smallest text model."""
    return TokenPairs()
