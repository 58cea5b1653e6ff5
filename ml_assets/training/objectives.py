"""What training minimises, by the name a pipeline's configuration gives.

An objective is the loss of a row and what a raw output means. Adding one is adding an entry here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from resources.launcher.errors import BadConfiguration


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A loss, and the meaning of the model's output."""

    loss_sum: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """(output `[B]`, label `[B]`) → scalar, summed over rows: the loop divides by the rows of all ranks."""
    prediction: Callable[[torch.Tensor], torch.Tensor]
    """Output `[B]` → what people read `[B]`: a probability or a value."""


def _cross_entropy(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(output, label, reduction="sum")


def _squared_error(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(output, label, reduction="sum")


def _unchanged(output: torch.Tensor) -> torch.Tensor:
    return output


OBJECTIVES: dict[str, Objective] = {
    "binary": Objective(loss_sum=_cross_entropy, prediction=torch.sigmoid),
    "regression": Objective(loss_sum=_squared_error, prediction=_unchanged),
}


def objective_of(name: str) -> Objective:
    """The objective called `name`, or `BadConfiguration` naming those there are."""
    try:
        return OBJECTIVES[name]
    except KeyError:
        raise BadConfiguration(f"objective {name!r} is unknown: use one of {sorted(OBJECTIVES)}") from None
