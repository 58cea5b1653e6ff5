"""A small network that scores the films of a page.

Here: the shape of the model. Not here: filling and scaling (the platform does both before `forward`), and how it is
trained (defs.yaml).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

LARGEST = 4.0
"""Standard deviations from the mean at which a number is cut off."""


class Scores(nn.Module):
    """A linear score of the numbers, plus what layers of the widths `hidden` add.

    The linear part orders films by their means and the user's taste from the first steps on. The layers learn when
    which of them counts: a taste says little after three ratings.
    """

    def __init__(self, inputs: Any, hidden: Sequence[int], dropout: float) -> None:
        super().__init__()
        width = len(inputs.numeric)
        self.linear = nn.Linear(width, 1)
        layers: list[nn.Module] = []
        for outputs in hidden:
            layers += [nn.Dropout(dropout), nn.Linear(width, outputs), nn.ReLU()]
            width = outputs
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """Scores `[B]` of `numeric [B, F]` float32; `category` has no columns."""
        del category
        numeric = numeric.clamp(-LARGEST, LARGEST)
        return (self.linear(numeric) + self.layers(numeric)).squeeze(1)


def build(inputs: Any, *, hidden: Sequence[int] = (64, 32), dropout: float = 0.2) -> Scores:
    """Build the model for the columns of a snapshot (`inputs` is its `InputSpec`).

    `hidden` are the widths of the layers, whose inputs drop a share `dropout`.
    """
    return Scores(inputs, hidden, dropout)
