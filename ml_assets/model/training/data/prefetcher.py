"""Batches of one rank, gathered by a background thread while the rank computes.

A process would be slower than a thread: gathering releases the GIL, and a thread's result needs no copy between
processes. Not here: the choice of rows (order), the gathering (batches).
"""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple, Self

from ml_assets.model.training.data.batches import Batch, SplitReader
from ml_assets.model.training.data.order import RowOrder
from ml_assets.model.training.data.preprocess import drop_categories

_CHUNK_BYTES = 4 * 2**20
_CHUNK_STEPS = 16
"""Most steps that are gathered at once, within `_CHUNK_BYTES`: a small batch costs as many calls as a large one."""
_AHEAD = 3
"""Chunks to keep ready. They bridge the time in which the thread shuffles, at the start of an epoch and of a shard."""
_READY_BYTES = 64 * 2**20
"""Most bytes of decoded blobs to keep ready, but at least one step. The decoded size is only known afterwards: 35
stored bytes became 831 MB."""


class _Gathered(NamedTuple):
    """One step, in host memory."""

    batch: Batch
    sizes: list[int]
    """Rows of each lane."""


class Prefetcher:
    """Provides the batches of `rank`, step by step from `first_step` on. As a context manager, it ends the thread.

    An error of the thread is raised in the call that requests the batch.
    """

    def __init__(
        self,
        order: RowOrder,
        reader: SplitReader,
        rank: int,
        world_size: int,
        first_step: int,
        category_dropout: float = 0.0,
    ) -> None:
        self._order, self._reader = order, reader
        self._category_dropout = category_dropout
        self._lanes = order.lanes_of(rank, world_size)
        self._step: int = first_step
        batch_bytes = reader.unit_bytes * order.global_batch * len(self._lanes) // order.lanes
        self._chunk_steps = min(max(_CHUNK_BYTES // max(batch_bytes, 1), 1), _CHUNK_STEPS)
        self._ahead = _AHEAD
        if reader.has_blobs:  # single steps, one ahead, until the first step shows the decoded size
            self._ahead *= self._chunk_steps
            self._chunk_steps = 1
        self._most_ahead, self._is_measured = self._ahead, not reader.has_blobs
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetcher")
        self._next_chunk = first_step
        self._chunks: deque[Future[list[_Gathered]]] = deque()
        self._ready: deque[_Gathered] = deque()
        for _ in range(self._ahead if self._is_measured else 1):
            self._submit_chunk()

    def merged(self, step: int) -> Batch:
        """Return the rank's rows of `step` on its device: those of its lanes, lane after lane."""
        return self._next(step).batch.to(self._reader.device)

    def by_lane(self, step: int) -> list[Batch]:
        """Return the same rows as one batch per lane of the rank; some may be empty.

        Each batch is a copy. A view of the chunk would begin at an address that depends on the world size, and matrix
        products sum in another order at another alignment: three world sizes gave three digests.
        """
        gathered = self._next(step)
        lanes = gathered.batch.to(self._reader.device).split(gathered.sizes)
        return [lane.copied() for lane in lanes]

    def close(self) -> None:
        """End the thread; no batch can be requested afterwards."""
        self._thread.shutdown(cancel_futures=True)
        self._reader.expect_none()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _next(self, step: int) -> _Gathered:
        if step != self._step:
            raise ValueError(
                f"step {step} was requested, but {self._step} is next: create a new prefetcher for another step"
            )
        if not self._ready:
            if not self._chunks:
                self._submit_chunk()
            chunk = self._chunks.popleft().result()
            if not self._is_measured:
                self._ahead = min(max(_READY_BYTES // max(chunk[0].batch.nbytes, 1), 1), self._most_ahead)
                self._is_measured = True
            while len(self._chunks) < self._ahead:
                self._submit_chunk()
            self._ready.extend(chunk)
        self._step += 1
        return self._ready.popleft()

    def _submit_chunk(self) -> None:
        steps = range(self._next_chunk, self._next_chunk + self._chunk_steps)
        self._chunks.append(self._thread.submit(self._gather, steps))
        self._next_chunk = steps.stop

    def _gather(self, steps: range) -> list[_Gathered]:
        self._reader.expect(self._order.ahead(steps.start, self._lanes))
        slices = [
            [self._reader.rows_of(self._order.lane(step, lane)) for lane in self._lanes] for step in steps
        ]
        chunk = self._reader.gather([each for lanes in slices for lane in lanes for each in lane])
        sizes = [[sum(len(each.rows) for each in lane) for lane in lanes] for lanes in slices]
        batches = chunk.split([sum(of_lanes) for of_lanes in sizes])
        for step, batch in zip(steps, batches, strict=True):
            epoch = step // self._order.steps_per_epoch
            drop_categories(
                batch.category.numpy(), batch.row, self._category_dropout, self._order.seed, epoch
            )
        return [_Gathered(batch, of_lanes) for batch, of_lanes in zip(batches, sizes, strict=True)]
