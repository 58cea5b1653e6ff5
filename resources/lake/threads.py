"""Calls that wait for a disk or a network, several at a time."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

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
