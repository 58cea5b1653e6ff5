"""Model functions of the tests: small, with what makes training hard to repeat (dropout), and made to fail."""

from typing import Any

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
