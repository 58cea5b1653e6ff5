"""Preprocessing as part of the model, so that training and serving compute the same; and category dropout.

Here: filling missing numbers as a torch module, and the whole model (that module and the pipeline's own). Not here:
standardising numbers, which takes float64 (features.encoding, and the bundle's graph), and category ids.

Category dropout: in training, a small share of the categories is replaced by the unknown id. Without it, the embedding
of the unknown id keeps its random initial weights, and a category that training never saw gets an arbitrary answer.
With it, the model learns an answer for an uninformative category. Seed, epoch, row and column alone decide if a value
is dropped, so world size, lanes and resumes change nothing.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ml_assets.data.snapshots.split_reader import InputSpec, Rows


class Preprocess(nn.Module):
    """Replaces missing values by `fill`, unless the pipeline's model reads them itself."""

    fill: torch.Tensor

    def __init__(self, inputs: InputSpec, leaves_missing: bool = False) -> None:
        super().__init__()
        self.register_buffer("fill", torch.tensor(inputs.fill, dtype=torch.float32))
        self._leaves_missing = leaves_missing

    def forward(self, numeric: torch.Tensor) -> torch.Tensor:
        """Map `[B, F]` float32 with NaN where missing to `[B, F]` float32, without NaN if it fills."""
        return numeric if self._leaves_missing else torch.where(torch.isnan(numeric), self.fill, numeric)


class FullModel(nn.Module):
    """Fill and the pipeline's model: standardised numbers, ids and blobs in, the objective's input out.

    A model with the attribute `reads_missing = True` gets the numbers with NaN where one is missing.
    """

    def __init__(self, inputs: InputSpec, core: nn.Module) -> None:
        super().__init__()
        self.preprocess = Preprocess(inputs, leaves_missing=getattr(core, "reads_missing", False))
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


UNKNOWN = 0
"""Equal to the constant in features.encoding, which workers do not import."""


def drop_categories(
    category: NDArray[np.integer], row: NDArray[np.int64], share: float, seed: int, epoch: int
) -> None:
    """Set about `share` of the ids `category` `[B, C]` to unknown, in place. Each epoch draws others.

    `row` `[B]` holds their row numbers in the table.
    """
    if share and category.size:
        category[_chance(row, category.shape[1], seed, epoch) < share] = UNKNOWN


def with_dropped(rows: Rows, share: float, seed: int, epoch: int) -> Rows:
    """Return `rows` with the dropout of `epoch`: for scripts, which read a whole split."""
    category = rows.category.copy()
    drop_categories(category, rows.row, share, seed, epoch)
    return replace(rows, category=category)


def _chance(row: NDArray[np.int64], columns: int, seed: int, epoch: int) -> NDArray[np.float64]:
    """Return `[B, C]` numbers, uniform in [0, 1): SplitMix64 (Steele, Lea, Flood 2014) of each value's position."""
    begin = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)
    place = row.astype(np.uint64)[:, None] * np.uint64(columns) + np.arange(columns, dtype=np.uint64)
    mixed = begin + place * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
