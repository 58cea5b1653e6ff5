"""Retries of calls to a server or a file that may be away or busy: one policy for all of them.

Here: the pauses, and the time limit. Not here: the choice of errors to retry (the caller translates its client's
errors), and the poll of a lock that raises no error (`ledger.database`).
"""

from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

Answer = TypeVar("Answer")


def patiently(
    call: Callable[[], Answer],
    may_pass: Callable[[BaseException], bool],
    seconds: Callable[[BaseException], float],
    *,
    first_pause: float,
    longest_pause: float,
) -> Answer:
    """Return the result of `call`. Retry while it raises an error for which `may_pass` is True.

    Pauses are random, so that callers that collided do not collide again. The upper bound of a pause is `first_pause`
    seconds, then doubles up to `longest_pause`. `seconds(error)` is the time limit in seconds, counted from the first
    call. After it, raise the last error unchanged.
    """

    def is_over(state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome else None
        elapsed = state.seconds_since_start or 0.0
        return error is None or elapsed + state.upcoming_sleep > seconds(error)

    pause = wait_random_exponential(multiplier=first_pause, min=first_pause / 2, max=longest_pause)
    return Retrying(retry=retry_if_exception(may_pass), stop=is_over, wait=pause, reraise=True)(call)
