"""Model that drills train: small, with dropout, which is hard to repeat exactly, and able to diverge on request."""

import math
import time

import torch
from torch import nn

from ml_assets.snapshots.split_reader import InputSpec


class DrillModel(nn.Module):
    """Model of one embedding per category, dropout, and two linear layers."""

    def __init__(self, inputs: InputSpec, pace: float, nan_after: int | None) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, 2) for size in inputs.cardinalities)
        width = len(inputs.numeric) + 2 * len(inputs.categorical)
        self.head = nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
        self._pace, self._nan_after = pace, nan_after
        self._seen, self._steps = math.nan, 0

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """Map `[B, F]` float32 and `[B, C]` int64 to `[B]` float32 logits."""
        embedded = [embedding(category[:, i]) for i, embedding in enumerate(self.embeddings)]
        output: torch.Tensor = self.head(torch.cat([numeric, *embedded], dim=1)).squeeze(1)
        if self.training and torch.is_grad_enabled():
            time.sleep(self._pace)
            # Count steps by the weight they change: the calls per step depend on the number of workers.
            seen = next(self.head.parameters())[0, 0].item()
            if seen != self._seen:
                self._seen, self._steps = seen, self._steps + 1
            if self._nan_after is not None and self._steps > self._nan_after:
                output = output * torch.nan
        return output


def drill_model(inputs: InputSpec, *, pace: float = 0.0, nan_after: int | None = None) -> DrillModel:
    """Return the drill's model. `pace`: least seconds of a pass, so that there is time for damage. `nan_after`: number
    of steps of a process after which it returns NaN."""
    return DrillModel(inputs, pace, nan_after)
