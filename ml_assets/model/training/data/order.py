"""Row order of a training: the rows of a rank at a step, a pure function of seed, step and world size.

    sequence   the shards of the epoch in random order, the rows of each shuffled
    lanes      V equal cuts of it    |----0----|----1----|----2----|----3----|
    a step     a part of each lane     ==        ==        ==        ==
    a rank     some of the lanes     '------- rank 0 -------''----- rank 1 -----

So a step takes the same rows, in the same groups, for any world size. The whole position in the data is one integer: a
run that resumes in the middle of an epoch needs no other state, even with another world size. The lanes also mix the
rows: a batch comes from as many places of the sequence as there are lanes.

Where rows form lists, each "row" in this module is a whole list: a unit, which no step, lane or rank divides
(`Shard.units`). `SplitReader.rows_of` turns numbers of lists into numbers of rows. Not here: reading the rows
(batches), reading them ahead (prefetcher).
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resources.job.errors import BadConfiguration


class ShardSlice(NamedTuple):
    """Rows of one shard."""

    shard: int
    rows: NDArray[np.int64]
    """0-based numbers of rows inside the shard; before `SplitReader.rows_of`, numbers of its units."""


class _Sequence(NamedTuple):
    """Shards of one epoch, in order."""

    shards: list[int]
    starts: list[int]
    """Position in the sequence of each shard's first row."""


@dataclass(frozen=True, kw_only=True)
class RowOrder:
    """Row order of one training split. Each epoch takes each row exactly once.

    An epoch has ceil(rows / global_batch) steps, of sizes as equal as possible: no row is dropped, the last batch is
    not smaller than the others by more than a row, and no batch is larger than `global_batch`. Within a step the parts
    of the lanes differ by one row at most.
    """

    shard_units: tuple[int, ...]
    """Units of each shard of the split: rows, or whole lists."""
    global_batch: int
    seed: int
    lanes: int
    """V: number of parts of a batch, and the largest number of workers."""

    @cached_property
    def units(self) -> int:
        """Units of the split."""
        return sum(self.shard_units)

    @cached_property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch."""
        return -(-self.units // self.global_batch)

    def batch_units(self, step: int) -> int:
        """Return the units of the batch of `step` over all ranks."""
        first, last = self._bounds(step)
        return last - first

    def lanes_of(self, rank: int, world_size: int) -> range:
        """Return the lanes of `rank`: neighbours, as evenly divided over ranks as possible.

        Raises `BadConfiguration` if a rank would have no lane.
        """
        if world_size > self.lanes:
            raise BadConfiguration(
                f"{world_size} workers are more than the {self.lanes} lanes, and each worker needs a lane: lower "
                "`workers` or raise `lanes`"
            )
        return range(self.lanes * rank // world_size, self.lanes * (rank + 1) // world_size)

    def share(self, step: int, rank: int, world_size: int) -> list[ShardSlice]:
        """Return the rows that `rank` takes at `step`: those of its lanes, lane after lane."""
        return [each for lane in self.lanes_of(rank, world_size) for each in self.lane(step, lane)]

    def lane(self, step: int, lane: int) -> list[ShardSlice]:
        """Return the rows of `lane` at `step` (0-based, counted over all epochs), in order; maybe none."""
        epoch = step // self.steps_per_epoch
        sequence = self._sequence(epoch)
        start = self._start(lane)
        first, last = self._bounds(step)
        at, end = start + self._dealt(first, lane), start + self._dealt(last, lane)
        number = bisect_right(sequence.starts, at) - 1
        slices: list[ShardSlice] = []
        while at < end:
            shard, low = sequence.shards[number], at - sequence.starts[number]
            rows = self._shuffled(epoch, shard)[low : low + end - at].astype(np.int64)
            if rows.size:
                slices.append(ShardSlice(shard, rows))
            at += rows.size
            number += 1
        return slices

    def ahead(self, step: int, lanes: Iterable[int]) -> list[int]:
        """Return the shards that `lanes` read at `step`, then the shards they enter next, soonest first; each shard
        once."""
        epoch, (first, _) = step // self.steps_per_epoch, self._bounds(step)
        sequence, following = self._sequence(epoch), self._sequence(epoch + 1)
        now: list[int] = []
        later: list[tuple[int, int]] = []
        for lane in lanes:
            start, end = self._start(lane), self._start(lane + 1)
            at = start + self._dealt(first, lane)
            number = bisect_right(sequence.starts, at) - 1
            now.append(sequence.shards[number])
            if number + 1 < len(sequence.starts) and sequence.starts[number + 1] < end:
                later.append((sequence.starts[number + 1] - at, sequence.shards[number + 1]))
            else:
                later.append((end - at, following.shards[bisect_right(following.starts, start) - 1]))
        return list(dict.fromkeys([*now, *(shard for _, shard in sorted(later))]))

    def _start(self, lane: int) -> int:
        """Return the rows of the lanes before this one: the first `rows % lanes` lanes have one row more than the
        others."""
        return lane * (self.units // self.lanes) + min(lane, self.units % self.lanes)

    def _bounds(self, step: int) -> tuple[int, int]:
        """Return the number of the epoch's rows taken before `step`, and after it."""
        rows, steps = self.units, self.steps_per_epoch
        within = step % steps
        return rows * within // steps, rows * (within + 1) // steps

    def _dealt(self, rows: int, lane: int) -> int:
        """Return the number of rows that `lane` gave once `rows` of the epoch were taken: lanes take turns."""
        return (rows + self.lanes - 1 - lane) // self.lanes

    @cached_property
    def _sequence(self) -> Callable[[int], _Sequence]:
        @lru_cache(maxsize=2)
        def sequence(epoch: int) -> _Sequence:
            shards: list[int] = (
                np.random.default_rng((self.seed, epoch)).permutation(len(self.shard_units)).tolist()
            )
            ends = np.cumsum([self.shard_units[shard] for shard in shards]).tolist()
            return _Sequence(shards, [0, *ends[:-1]])

        return sequence

    @cached_property
    def _shuffled(self) -> Callable[[int, int], NDArray[np.int32]]:
        """Rows of a shard in the order of an epoch, four bytes a row. Cached for two shards per lane: the one it reads
        and the one it may enter next."""

        @lru_cache(maxsize=2 * self.lanes)
        def shuffled(epoch: int, shard: int) -> NDArray[np.int32]:
            chance = np.random.default_rng((self.seed, epoch, shard))
            return chance.permutation(self.shard_units[shard]).astype(np.int32)

        return shuffled


def fewest_of_contiguous(shard_units: Sequence[int], world_size: int, batch: int) -> int:
    """Return the size in rows of the smallest batch that `contiguous` gives any rank."""
    total = sum(shard_units)
    starts = np.cumsum([0, *shard_units])
    bounds = np.unique([*starts, *(total * rank // world_size for rank in range(world_size + 1))])
    pieces = np.diff(bounds)
    return int(np.where(pieces % batch, pieces % batch, batch).min(initial=batch))


def contiguous(shard_units: Sequence[int], rank: int, world_size: int, batch: int) -> list[list[ShardSlice]]:
    """Return `rank`'s share of a split that is read once in order, in batches of at most `batch` rows."""
    total = sum(shard_units)
    first, last = total * rank // world_size, total * (rank + 1) // world_size
    batches: list[list[ShardSlice]] = []
    start = 0
    for shard, rows in enumerate(shard_units):
        low, high = max(first - start, 0), min(last - start, rows)
        batches += [
            [ShardSlice(shard, np.arange(at, min(at + batch, high), dtype=np.int64))]
            for at in range(low, high, batch)
        ]
        start += rows
    return batches
