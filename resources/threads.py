"""Work in other threads: beside a block, or calls that wait for a disk or a network, several at a time."""

import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar


@contextmanager
def working_beside(
    work: Callable[[threading.Event], object], name: str, patience_seconds: float | None = None
) -> Generator[None]:
    """Run `work` in a thread while the block runs. When the block ends, set the event given to `work`; wait for it.

    With `patience_seconds`, wait no longer than that: for work that may stand still in a call without a time limit.
    """
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(patience_seconds)


AT_ONCE = 8
"""Threads. More than the processors, because each waits for a disk or a network."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Call `work` on every item, `AT_ONCE` at a time; return the results in the order of `items`.

    After a failure, start no further call, wait for the calls in progress and raise the first failure. So a dead
    server costs the timeout of one round of calls, not of every item.
    """
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="lake")
    try:
        return [future.result() for future in [pool.submit(work, item) for item in items]]
    finally:
        pool.shutdown(cancel_futures=True)
