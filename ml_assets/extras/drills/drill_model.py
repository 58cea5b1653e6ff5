"""Model that drills train: small, with dropout, which is hard to repeat exactly, and able to diverge on request."""

import time

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ml_assets.data.snapshots.split_reader import InputSpec


class DrillModel(nn.Module):
    """Model of one embedding per category, dropout, and two linear layers."""

    category_plan = ("embeddings.*",)
    steps: torch.Tensor
    """Optimizer steps, in a buffer so that a resume continues to count; only with `nan_after`."""

    def __init__(self, inputs: InputSpec, pace: float, nan_after: int | None) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, 2) for size in inputs.cardinalities)
        width = len(inputs.numeric) + 2 * len(inputs.categorical)
        self.head = nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
        self._pace, self._nan_after = pace, nan_after
        if nan_after is not None:
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
            # Not in `forward`: its calls per step depend on the number of workers.
            register_optimizer_step_post_hook(self._count)

    def _count(self, *_: object) -> None:
        self.steps += 1

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """Map `[B, F]` float32 and `[B, C]` int64 to `[B]` float32 logits."""
        embedded = [embedding(category[:, i]) for i, embedding in enumerate(self.embeddings)]
        output: torch.Tensor = self.head(torch.cat([numeric, *embedded], dim=1)).squeeze(1)
        if self.training and torch.is_grad_enabled():
            time.sleep(self._pace)
            if self._nan_after is not None and self.steps >= self._nan_after:
                output = output * torch.nan
        return output


def drill_model(inputs: InputSpec, *, pace: float = 0.0, nan_after: int | None = None) -> DrillModel:
    """Return the drill's model. `pace`: least seconds of a pass, so that there is time for damage. `nan_after`: number
    of steps after which it returns NaN."""
    return DrillModel(inputs, pace, nan_after)
