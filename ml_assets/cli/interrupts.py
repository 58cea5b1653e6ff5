"""Ctrl-C for the main process only. A terminal sends SIGINT to every process of a command at once.

Dagster's helper processes for step logs would each print a traceback over the line that a person should read.
"""

import _thread
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from resources.beside import working_beside

_LOOK_SECONDS = 0.3
_INTERRUPT = {signal.SIGINT}
_POOLS = [
    logging.getLogger(f"sqlalchemy.pool.impl.{name}") for name in ("NullPool", "QueuePool", "StaticPool")
]


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """False for an interrupt while SQLAlchemy closed a connection.

    The pool logs it with a traceback and raises it, so the command prints its line anyway.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, KeyboardInterrupt)


@contextmanager
def not_for_children() -> Iterator[None]:
    """Hide SIGINT from processes that this thread starts in the block. This process still receives it.

    A process inherits the blocked signals of its parent's thread. So this thread blocks SIGINT, and a second thread
    takes the signal and interrupts the main thread.
    """
    for pool in _POOLS:
        pool.addFilter(_is_worth_saying)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPT)
    try:
        with working_beside(_take, "interrupts"):
            yield
    finally:
        for pool in _POOLS:
            pool.removeFilter(_is_worth_saying)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _take(over: threading.Event) -> None:
    while not over.is_set():
        if signal.sigtimedwait(_INTERRUPT, _LOOK_SECONDS) is not None:
            _thread.interrupt_main(signal.SIGINT)
