"""Rows as tensors: gathered from memory-mapped shards, without a loader in the way.

Here: one gather per batch and column group. Not here: which rows (order), the files (snapshots.reader).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch and safetensors are partial)

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ml_assets.snapshots.reader import Rows, Snapshot, SplitName
from ml_assets.training.order import Piece


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Some rows on the device that trains."""

    numeric: torch.Tensor
    """`[B, F]` float32, NaN where missing."""
    category: torch.Tensor
    """`[B, C]` int64."""
    label: torch.Tensor
    """`[B]` float32."""
    row: NDArray[np.int64]
    """`[B]`: which rows of the feature table these are."""

    def __len__(self) -> int:
        return len(self.row)


class SplitReader:
    """Gathers batches from the shards of one split."""

    def __init__(self, snapshot: Snapshot, split: SplitName, device: torch.device) -> None:
        self._shards: list[Rows] = [snapshot.map(shard) for shard in snapshot.shards_of(split)]
        self._device = device
        self.shard_rows: tuple[int, ...] = tuple(len(rows) for rows in self._shards)

    def take(self, pieces: Sequence[Piece]) -> Batch:
        """The rows of `pieces`, in order."""
        shards = [(self._shards[piece.shard], piece.rows) for piece in pieces]
        numeric = _joined([shard.numeric.take(rows, axis=0) for shard, rows in shards])
        category = _joined([shard.category.take(rows, axis=0) for shard, rows in shards])
        label = _joined([shard.label.take(rows) for shard, rows in shards])
        return Batch(
            numeric=torch.from_numpy(numeric).to(self._device),
            category=torch.from_numpy(category).to(self._device, torch.int64),
            label=torch.from_numpy(label).to(self._device),
            row=_joined([shard.row.take(rows) for shard, rows in shards]),
        )


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
