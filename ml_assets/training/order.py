"""Which rows a rank takes at a step: a pure function of seed, epoch, step and world size.

The whole position in the data is one integer, the step, so a resumed run needs no state to go on in the
middle of an epoch. Lanes (fixed virtual shards, the same rows in the same groups for any world size) belong
here too. Not here: reading the rows (batches).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Piece(NamedTuple):
    """Rows of one shard."""

    shard: int
    rows: NDArray[np.int64]
    """0-based, inside the shard."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of one training split. Each epoch takes each row exactly once.

    An epoch has ceil(rows / global_batch) steps of as equal a size as possible: there is no small last
    batch, no row is dropped, and no batch is larger than `global_batch`.
    """

    shard_rows: tuple[int, ...]
    """Rows of each shard of the split."""
    global_batch: int
    seed: int

    @property
    def rows(self) -> int:
        """Rows of the split."""
        return sum(self.shard_rows)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch."""
        return -(-self.rows // self.global_batch)

    def batch_rows(self, step: int) -> int:
        """Rows of the batch of `step` over all ranks."""
        first, last = self._bounds(step)
        return last - first

    def share(self, step: int, rank: int, world_size: int) -> list[Piece]:
        """The rows `rank` takes at `step` (0-based, counted over all epochs), in order.

        The shares of all ranks make up the batch; they differ by one row at most.
        """
        first, last = self._bounds(step)
        size = last - first
        return self._rows(
            step // self.steps_per_epoch,
            first + size * rank // world_size,
            first + size * (rank + 1) // world_size,
        )

    def _bounds(self, step: int) -> tuple[int, int]:
        within = step % self.steps_per_epoch
        return (
            self.rows * within // self.steps_per_epoch,
            self.rows * (within + 1) // self.steps_per_epoch,
        )

    def _rows(self, epoch: int, first: int, last: int) -> list[Piece]:
        """Rows `first` up to `last` of the epoch's sequence: shards in random order, shuffled inside."""
        pieces: list[Piece] = []
        start = 0
        shards: list[int] = _shuffled(len(self.shard_rows), (self.seed, epoch)).tolist()
        for shard in shards:
            end = start + self.shard_rows[shard]
            low, high = max(first, start), min(last, end)
            if low < high:
                rows = _shuffled(self.shard_rows[shard], (self.seed, epoch, shard))
                pieces.append(Piece(shard, rows[low - start : high - start]))
            start = end
        return pieces


def contiguous(shard_rows: Sequence[int], rank: int, world_size: int, batch: int) -> list[list[Piece]]:
    """`rank`'s share of a split that is read once in order, in batches of at most `batch` rows."""
    total = sum(shard_rows)
    first, last = total * rank // world_size, total * (rank + 1) // world_size
    batches: list[list[Piece]] = []
    start = 0
    for shard, rows in enumerate(shard_rows):
        low, high = max(first - start, 0), min(last - start, rows)
        batches += [
            [Piece(shard, np.arange(at, min(at + batch, high), dtype=np.int64))]
            for at in range(low, high, batch)
        ]
        start += rows
    return batches


@lru_cache(maxsize=4)  # the shards of the batches around a position; one permutation takes 8 bytes a row
def _shuffled(size: int, seed: tuple[int, ...]) -> NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(size)
