"""Work in other threads: beside a block, calls that wait for a disk or a network, calls that may never return.

Also `one_blas_thread`, for work that should stay in its own.
"""

import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib import import_module
from typing import Any, TypeVar


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


def one_blas_thread() -> AbstractContextManager[object]:
    """Multiply the matrices of numpy in the caller's thread until the block ends.

    Of small matrices, more threads take longer, and eight times as long if other processes use the processors, because
    threads that wait for each other spin. Their number also decides the last bits of a sum.
    """
    return _blas().limit(limits=1, user_api="blas")


@cache
def _blas() -> Any:
    import_module("numpy")  # so that its library is there to be found
    return import_module("threadpoolctl").ThreadpoolController()  # it ships no types


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


class ServerSilent(ConnectionError):
    """A server does not answer, although it keeps its connections."""


def watched(
    call: Callable[[], Result], is_answering: Callable[[], bool], every_seconds: float, answer_seconds: float
) -> Result:
    """Return the result of `call` of a client library without a timeout of its own, or raise its error.

    A frozen server keeps its connections, and its kernel acknowledges what it receives. So neither keepalive of TCP nor
    `statement_timeout`, which the server itself counts, ends a call. A limit of time alone would also end a long query
    of a healthy server. So `call` runs in a thread of its own, and another connection asks if the server still answers.

    While it runs, ask `is_answering` every `every_seconds`. If that returns False, or nothing within `answer_seconds`,
    raise `ServerSilent`. The thread then waits on until the server continues or the connection breaks, and its result
    is dropped; the caller must not use its connection again.
    """
    running = _in_thread(call)
    while not wait([running], timeout=every_seconds).done:
        asked = _in_thread(is_answering)
        wait([asked], timeout=answer_seconds)
        if running.done():
            break
        if not asked.done() or not asked.result():
            raise ServerSilent(
                f"it kept the connection without an answer, and did not answer another one within {answer_seconds:g} s"
            )
    return running.result()


def _in_thread(call: Callable[[], Result]) -> "Future[Result]":
    """Return the result to come of `call`. The thread does not keep the process from ending."""
    result: Future[Result] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="source", daemon=True).start()
    return result
