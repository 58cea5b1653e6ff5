"""Rows as tensors: gathered from memory-mapped shards, without a loader in the way.

Here: one gather per shard, batch and column group. Not here: which rows (order), gathering ahead of the step that
needs them (feed), the files (snapshots.reader).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch and safetensors are partial)

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from ml_assets.snapshots.reader import Rows, Snapshot, SplitName
from ml_assets.training.order import Piece


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Some rows."""

    numeric: torch.Tensor
    """`[B, F]` float32, NaN where missing."""
    category: torch.Tensor
    """`[B, C]` int64."""
    label: torch.Tensor
    """`[B]` float32."""
    row: NDArray[np.int64]
    """`[B]`: which rows of the feature table these are; always in host memory."""

    def __len__(self) -> int:
        return len(self.row)

    def to(self, device: torch.device) -> Self:
        """The same rows on `device`. From pinned memory the copy goes on while the host does other things."""
        return type(self)(
            numeric=self.numeric.to(device, non_blocking=True),
            category=self.category.to(device, non_blocking=True),
            label=self.label.to(device, non_blocking=True),
            row=self.row,
        )

    def split(self, sizes: Sequence[int]) -> list[Self]:
        """These rows in parts of `sizes`, in order; views, nothing is copied."""
        parts: list[Self] = []
        first = 0
        for size in sizes:
            part = slice(first, first := first + size)
            parts.append(
                type(self)(
                    numeric=self.numeric[part],
                    category=self.category[part],
                    label=self.label[part],
                    row=self.row[part],
                )
            )
        return parts


class SplitReader:
    """Gathers batches from the shards of one split, for `device`."""

    def __init__(self, snapshot: Snapshot, split: SplitName, device: torch.device) -> None:
        self._shards: list[Rows] = [snapshot.map(shard) for shard in snapshot.shards_of(split)]
        self.device = device
        self.shard_rows: tuple[int, ...] = tuple(len(rows) for rows in self._shards)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of a batch."""
        first = self._shards[0]
        return 4 * first.numeric.shape[1] + 8 * first.category.shape[1] + 12

    def take(self, pieces: Sequence[Piece]) -> Batch:
        """The rows of `pieces`, in order, on the device."""
        return self.gather(pieces).to(self.device)

    def gather(self, pieces: Sequence[Piece]) -> Batch:
        """The rows of `pieces`, in order, in host memory: pinned where the device is a GPU."""
        runs = [
            (self._shards[shard], np.concatenate([piece.rows for piece in run]))
            for shard, run in groupby(pieces, key=lambda piece: piece.shard)
        ]
        first = self._shards[0]  # says how wide a row is, also where there is none to take
        row = np.empty(sum(len(rows) for _, rows in runs), dtype=np.int64)
        numeric = self._room(len(row), first.numeric, torch.float32)
        category = self._room(len(row), first.category, torch.int64)
        label = self._room(len(row), first.label, torch.float32)
        _fill(numeric.numpy(), [(shard.numeric, rows) for shard, rows in runs])
        _fill(category.numpy(), [(shard.category, rows) for shard, rows in runs])
        _fill(label.numpy(), [(shard.label, rows) for shard, rows in runs])
        _fill(row, [(shard.row, rows) for shard, rows in runs])
        return Batch(numeric=numeric, category=category, label=label, row=row)

    def _room(self, rows: int, like: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty((rows, *like.shape[1:]), dtype=dtype, pin_memory=self.device.type == "cuda")


def _fill(room: NDArray[Any], runs: Sequence[tuple[NDArray[Any], NDArray[np.int64]]]) -> None:
    """Put the rows of all `runs` (array, row numbers) into `room`, one after the other."""
    first = 0
    for array, rows in runs:
        part = room[first : first + len(rows)]
        if part.dtype == array.dtype:
            # Row numbers are inside the shard by how an order is made. To check them once more ("raise"), numpy
            # would gather into a buffer of its own and copy that.
            array.take(rows, axis=0, out=part, mode="clip")
        else:
            part[...] = array.take(rows, axis=0)
        first += len(rows)
