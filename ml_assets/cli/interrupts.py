"""Ctrl-C for the command alone: a terminal sends SIGINT to every process of the command at once.

Dagster's helpers for step logs answer it with a traceback of theirs each, over the one line that a person should read.
"""

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOOK_SECONDS = 0.3
_INTERRUPT = {signal.SIGINT}


@contextmanager
def not_for_children() -> Iterator[None]:
    """Processes started in the block, by this thread, do not see SIGINT; this process does, as before.

    A process inherits which signals its parent's thread blocks. So this thread blocks SIGINT, and a second one takes
    the signal and interrupts the main thread.
    """
    over = threading.Event()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPT)
    taker = threading.Thread(target=_take, args=(over,), daemon=True)
    taker.start()
    try:
        yield
    finally:
        over.set()
        taker.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _take(over: threading.Event) -> None:
    while not over.is_set():
        if signal.sigtimedwait(_INTERRUPT, _LOOK_SECONDS) is not None:
            _thread.interrupt_main(signal.SIGINT)
