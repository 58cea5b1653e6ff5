"""A model of the readings that learns slowly, until the test lets its pods hurry.

Workers import it in their pods. So a training lasts as long as a test needs it, on a machine of any speed.
"""

import time
from pathlib import Path

import torch
from torch import nn

from ml_assets.data.snapshots.split_reader import InputSpec
from ml_assets_tests.components import readings_pipeline

MOUNT = "/opt/hurry"
"""Folder of the pods: a folder of the test on the node."""
NOW = "now"
"""File in it that ends the slowness."""


class Unhurried(nn.Module):
    """The model of the readings; each pass of its training takes `pace` seconds."""

    def __init__(self, model: nn.Module, pace: float) -> None:
        super().__init__()
        self.model = model
        self._pace = pace

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """`[B, F]` float32 and `[B, C]` int64 → `[B]` float32."""
        if self.training and torch.is_grad_enabled() and not Path(MOUNT, NOW).exists():
            time.sleep(self._pace)
        output: torch.Tensor = self.model(numeric, category)
        return output


def build(inputs: InputSpec, *, pace: float, start: float = 18.0) -> nn.Module:
    """Return the model; its levels begin at `start`."""
    return Unhurried(readings_pipeline.build(inputs, start=start), pace)
