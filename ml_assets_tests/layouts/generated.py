"""Models made from a list of words: what a generator can build, `bitwise` keeps or refuses.

Each word is a part that reads and gives `[B, WIDTH]`. Here also: which words a model may not have under `bitwise`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from ml_assets.snapshots.reader import InputSpec

WIDTH = 6


class Residual(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.part(values)


class Attention(nn.Module):
    """Of the rows' values to each other's, as tokens of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.attention = nn.Linear(1, 4), nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)
        self.down = nn.Linear(4, 1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        tokens = self.up(values.unsqueeze(-1))
        seen, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return self.down(seen).squeeze(-1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(1, 3, batch_first=True), nn.Linear(3, WIDTH)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.out(self.gru(values.unsqueeze(-1))[0][:, -1])


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.convolution(values.unsqueeze(1)).squeeze(1)


class Noise(nn.Module):
    """Random numbers of torch and numpy."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return values
        return values + 0.01 * torch.randn_like(values) * float(np.random.random())


class Tied(nn.Module):
    """One matrix, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Linear(WIDTH, WIDTH)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.tanh(values @ self.matrix.weight) @ self.matrix.weight.T


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.matrix(values))


class RunningMean(nn.Module):
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * values.detach().mean(dim=0)
        return values - self.mean


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        return values * (1 + 0.1 / (1 + self.calls))


class MaxNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2, WIDTH, max_norm=0.5)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.table((values[:, 0] > 0).long())


FINE: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()),
    "wide": lambda: nn.Sequential(nn.Linear(WIDTH, 40), nn.GELU(), nn.Linear(40, WIDTH)),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "group norm": lambda: nn.GroupNorm(2, WIDTH),
    "dropout": lambda: nn.Dropout(0.3),
    "residual": lambda: Residual(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.SiLU())),
    "attention": Attention,
    "recurrent": Recurrent,
    "convolution": Convolution,
    "noise": Noise,
    "tied": Tied,
    "frozen": Frozen,
    "weight norm": lambda: weight_norm(nn.Linear(WIDTH, WIDTH)),
}
STATEFUL: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "spectral norm": lambda: spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "running mean": RunningMean,
    "counter": Counter,
    "max norm": MaxNorm,
}
"""A forward pass in training changes them."""


class Generated(nn.Module):
    """Numbers and embedded categories as `[B, WIDTH]`, through the parts, to one number."""

    def __init__(self, inputs: InputSpec, parts: Sequence[str], scale: float) -> None:
        super().__init__()
        self.enter = nn.Linear(len(inputs.numeric), WIDTH)
        self.tables = nn.ModuleList(nn.Embedding(size, WIDTH) for size in inputs.cardinalities)
        self.parts = nn.Sequential(*((FINE | STATEFUL)[part]() for part in parts))
        self.leave = nn.Linear(WIDTH, 1)
        self._scale = scale

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """`[B, F]` float32, `[B, C]` int64 → `[B]` float32."""
        values = self.enter(numeric)
        for place, table in enumerate(self.tables):
            values = values + table(category[:, place])
        return self._scale * self.leave(self.parts(values)).squeeze(1)


def generated(inputs: InputSpec, **hyperparameters: Any) -> nn.Module:
    """Return the model of the list `parts`; `scale` makes gradients large or small."""
    return Generated(inputs, **hyperparameters)
