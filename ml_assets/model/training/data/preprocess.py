"""Preprocessing as part of the model, so that training and serving compute the same.

Here: filling missing numbers as a torch module, and the whole model (that module and the pipeline's own). Not here:
standardising numbers, which takes float64 (features.encoding, and the bundle's graph), and category ids.
"""

import torch
from torch import nn

from ml_assets.data.snapshots.split_reader import InputSpec


class Preprocess(nn.Module):
    """Replaces missing values by `fill`."""

    fill: torch.Tensor

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__()
        self.register_buffer("fill", torch.tensor(inputs.fill, dtype=torch.float32))

    def forward(self, numeric: torch.Tensor) -> torch.Tensor:
        """Map `[B, F]` float32 with NaN where missing to `[B, F]` float32 without NaN."""
        return torch.where(torch.isnan(numeric), self.fill, numeric)


class FullModel(nn.Module):
    """Fill and the pipeline's model: standardised numbers, ids and blobs in, the objective's input out."""

    def __init__(self, inputs: InputSpec, core: nn.Module) -> None:
        super().__init__()
        self.preprocess = Preprocess(inputs)
        self.core = core

    def forward(
        self, numeric: torch.Tensor, category: torch.Tensor, blob: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Map `[B, F]` float32, `[B, C]` int64, and `[B, ...]` if rows have blobs, to the model's output.

        `[B]` float32: logits for `binary`, values for `regression`, logarithms for `count`. Scores: `[B, classes]` for
        `multiclass`, `[B, T, V]` for `next_token`.
        """
        others = (category,) if blob is None else (category, blob)
        output: torch.Tensor = self.core(self.preprocess(numeric), *others)
        return output
