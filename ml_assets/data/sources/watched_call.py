"""Calls of a client library without a timeout of its own: given up if the server does not answer others either.

A frozen server keeps its connections, and its kernel acknowledges what it receives. So neither keepalive of TCP nor
`statement_timeout`, which the server itself counts, ends a call. A limit of time alone would also end a long query of a
healthy server. Here another connection asks the server whether it still answers.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

Answer = TypeVar("Answer")


class ServerSilent(ConnectionError):
    """A server does not answer, although it keeps its connections."""


def watched(
    call: Callable[[], Answer], is_answering: Callable[[], bool], every_seconds: float, answer_seconds: float
) -> Answer:
    """Return the result of `call`, or raise its error. `call` runs in a thread of its own.

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


def _in_thread(call: Callable[[], Answer]) -> "Future[Answer]":
    """Return the result to come of `call`. The thread does not keep the process from ending."""
    result: Future[Answer] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="source", daemon=True).start()
    return result
