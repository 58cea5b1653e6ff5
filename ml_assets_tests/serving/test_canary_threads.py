"""Threads of a canary: only what it takes itself is its error, not what requests wait for each other."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable

from ml_assets.use.serving.canary import MOST, CanaryBusy, CanaryThreads, CanaryTooSlow


def outcomes(threads: CanaryThreads, work: Callable[[], object], count: int) -> Counter[str]:
    """Return what became of `count` requests that arrive at once, by name."""

    async def one() -> str:
        try:
            await threads.of_canary("small", work)
        except (CanaryBusy, CanaryTooSlow) as error:
            return type(error).__name__
        return "answered"

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(one() for _ in range(count)))

    return Counter(asyncio.run(all_of_them()))


def test_a_burst_is_no_error_of_a_canary_that_is_fast_enough() -> None:
    """Together the requests take two seconds, each of them a sixteenth."""
    found = outcomes(CanaryThreads(1.0), lambda: time.sleep(1 / 16), MOST)
    assert set(found) == {"answered", "CanaryBusy"}


def test_requests_that_find_the_queue_full_are_no_errors() -> None:
    release, threads = threading.Event(), CanaryThreads(200.0)

    async def full() -> None:
        waiting = [
            asyncio.ensure_future(threads.of_canary("small", lambda: release.wait(200))) for _ in range(MOST)
        ]
        await asyncio.sleep(0)
        try:
            await threads.of_canary("small", lambda: None)
        except CanaryBusy:
            release.set()
        assert all(await asyncio.gather(*waiting))

    asyncio.run(full())


def test_while_a_canary_hangs_all_requests_are_its_errors_at_once() -> None:
    release, threads = threading.Event(), CanaryThreads(0.5)
    while "answered" not in outcomes(threads, lambda: None, 1):  # its threads run
        time.sleep(0.005)
    try:
        first = outcomes(threads, lambda: release.wait(200), 2)
        later = outcomes(threads, lambda: release.wait(200), 2 * MOST)
    finally:
        release.set()
    assert (first, later) == (Counter(CanaryTooSlow=2), Counter(CanaryTooSlow=2 * MOST))
    while "answered" not in outcomes(threads, lambda: None, 1):  # it works again
        time.sleep(0.005)
