"""From raw numbers to what a model reads, as part of the model: what is trained is what is served.

Here: filling and scaling as a torch module, and the whole model (that module and the pipeline's own). Not
here: fitting the values (features.encoding), category ids (they come encoded).
"""

import torch
from torch import nn

from ml_assets.snapshots.reader import InputSpec


class Preprocess(nn.Module):
    """Missing values become `fill`, then `(value - mean) / scale`."""

    fill: torch.Tensor
    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__()
        for name in ("fill", "mean", "scale"):
            self.register_buffer(name, torch.tensor(getattr(inputs, name), dtype=torch.float32))

    def forward(self, numeric: torch.Tensor) -> torch.Tensor:
        """`[B, F]` float32 with NaN where missing → `[B, F]` float32 without."""
        filled = torch.where(torch.isnan(numeric), self.fill, numeric)
        return (filled - self.mean) / self.scale


class FullModel(nn.Module):
    """Preprocessing and the pipeline's model: raw numbers, ids and samples in, what the objective reads out."""

    def __init__(self, inputs: InputSpec, core: nn.Module) -> None:
        super().__init__()
        self.preprocess = Preprocess(inputs)
        self.core = core

    def forward(
        self, numeric: torch.Tensor, category: torch.Tensor, sample: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`[B, F]` float32, `[B, C]` int64, and `[B, ...]` where rows have samples → `[B]` float32: logits for
        `binary`, values for `regression`; `[B, T, V]` scores for `next_token`."""
        others = (category,) if sample is None else (category, sample)
        output: torch.Tensor = self.core(self.preprocess(numeric), *others)
        return output
