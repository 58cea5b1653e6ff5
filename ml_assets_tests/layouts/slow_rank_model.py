"""A model that one worker is slow at, and that says what a row costs."""

import os
import time

import torch

from ml_assets.data.snapshots.split_reader import InputSpec
from ml_assets.extras.drills.drill_model import DrillModel

SLOW_RANK = 1


class SlowRankModel(DrillModel):
    """The drills' model; the slow rank takes `seconds` more for each pass that it learns from."""

    flops_per_row = 500.0

    def __init__(self, inputs: InputSpec, seconds: float) -> None:
        super().__init__(inputs, pace=0.0, nan_after=None)
        self._seconds = seconds if os.environ.get("RANK") == str(SLOW_RANK) else 0.0

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """Compute what the model of the drills computes."""
        if self.training and torch.is_grad_enabled():
            time.sleep(self._seconds)
        return super().forward(numeric, category)


def slow_rank_model(inputs: InputSpec, *, pace: float) -> SlowRankModel:
    """`pace`: seconds that the slow rank takes more for each pass."""
    return SlowRankModel(inputs, pace)
