"""Waiting for many answers at once."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

AT_ONCE = 8
"""Each waits for a disk or a network, not for a processor."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """`work` on every item, `AT_ONCE` at a time; results in the order of `items`.

    The first failure is raised once the work in progress has ended; what was not begun never is, so a dead
    server costs the patience of one call and not of each.
    """
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="lake")
    try:
        return [future.result() for future in [pool.submit(work, item) for item in items]]
    finally:
        pool.shutdown(cancel_futures=True)
