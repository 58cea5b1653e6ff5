"""The batches of one rank, gathered by a background thread while the rank computes.

A thread is enough, and a process would be slower: gathering releases the interpreter lock, and what is gathered
needs no copy to get here. Not here: which rows (order), how they are gathered (batches).
"""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple, Self

from ml_assets.training.batches import Batch, SplitReader
from ml_assets.training.order import Order

_AHEAD_BYTES = 64 * 2**20
"""Of batches that lie ready. At the start of an epoch and of a shard the thread shuffles first: what lies ready
lasts until it is done."""
_AHEAD = range(2, 33)
"""Batches that lie ready: at least two, however large."""


class _Gathered(NamedTuple):
    batch: Batch
    """In host memory."""
    sizes: list[int]
    """Rows of each lane."""


class Feed:
    """Hands out the batches of `rank`, step by step from `first_step` on; a context, which ends the thread.

    An error of the thread is raised to whoever asks for the batch.
    """

    def __init__(
        self, order: Order, reader: SplitReader, rank: int, world_size: int, first_step: int
    ) -> None:
        self._order, self._reader = order, reader
        self._lanes = order.lanes_of(rank, world_size)
        self._step = first_step
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feed")
        self._ready: deque[Future[_Gathered]] = deque()
        batch_bytes = reader.row_bytes * order.global_batch * len(self._lanes) // order.lanes
        ahead = min(max(_AHEAD_BYTES // max(batch_bytes, 1), _AHEAD.start), _AHEAD.stop - 1)
        for step in range(first_step, first_step + ahead):
            self._ready.append(self._thread.submit(self._gather, step))

    def merged(self, step: int) -> Batch:
        """The rank's rows of `step` on its device: those of its lanes, one lane after the other."""
        return self._next(step).batch.to(self._reader.device)

    def by_lane(self, step: int) -> list[Batch]:
        """The same rows, a batch for each of the rank's lanes; some may be empty."""
        gathered = self._next(step)
        return gathered.batch.to(self._reader.device).split(gathered.sizes)

    def close(self) -> None:
        """End the thread; nothing can be asked for any more."""
        self._thread.shutdown(cancel_futures=True)

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
                f"step {step} was asked for, {self._step} is next: make a new feed for another place"
            )
        self._ready.append(self._thread.submit(self._gather, step + len(self._ready)))
        self._step += 1
        return self._ready.popleft().result()

    def _gather(self, step: int) -> _Gathered:
        lanes = [self._order.lane(step, lane) for lane in self._lanes]
        batch = self._reader.gather([piece for pieces in lanes for piece in pieces])
        return _Gathered(batch, [sum(len(piece.rows) for piece in pieces) for pieces in lanes])
