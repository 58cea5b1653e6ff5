"""SIGINT for this process alone, while it works with helper processes of Dagster.

A terminal sends SIGINT to every process of a command at once. Dagster's helper processes for step logs would each print
a traceback over the line that a person should read, so only the main process gets it.
"""

import _thread
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ml_assets.components.failures import was_interrupted
from resources.threads import working_beside

_LOOK_SECONDS = 0.3
_INTERRUPT = {signal.SIGINT}


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """False for an interrupt that a library logs before it raises it again, as SQLAlchemy's pools do."""
    return not was_interrupted(record.exc_info[1] if record.exc_info else None)


@contextmanager
def _unsaid() -> Iterator[None]:
    """Print no traceback of an interrupt that came where Python or a library handles it: the command says its line.

    Python itself drops what is raised in the destructor or the weak reference's callback that the interrupt met.
    """
    handlers = [handler for handler in (logging.lastResort, *logging.getLogger().handlers) if handler]
    before = sys.unraisablehook
    for handler in handlers:
        handler.addFilter(_is_worth_saying)
    sys.unraisablehook = lambda dropped: None if was_interrupted(dropped.exc_value) else before(dropped)
    try:
        yield
    finally:
        sys.unraisablehook = before
        for handler in handlers:
            handler.removeFilter(_is_worth_saying)


class Interrupts:
    """SIGINT of this process, whichever of its threads took it and whatever its handler did."""

    def __init__(self) -> None:
        self._pipe = os.pipe()
        self._came = False
        for end in self._pipe:
            os.set_blocking(end, False)
        # Python writes the number of each signal there before it calls the handler, which Dagster exchanges.
        self._before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)

    @property
    def came(self) -> bool:
        """True from the first SIGINT on."""
        while not self._came:
            try:
                self._came = signal.SIGINT in os.read(self._pipe[0], 64)
            except BlockingIOError:
                return False
        return True

    def close(self) -> None:
        """Close the pipe; `came` stays as it is."""
        self._came = self.came
        signal.set_wakeup_fd(self._before)
        for end in self._pipe:
            os.close(end)


@contextmanager
def not_for_children() -> Iterator[Interrupts]:
    """Hide SIGINT from processes that this thread starts in the block. This process still receives it.

    A process inherits the blocked signals of its parent's thread. So this thread blocks SIGINT, and a second thread
    takes the signal and interrupts the main thread. Threads from before the block may take it, too.
    """
    interrupts = Interrupts()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPT)
    try:
        with working_beside(_take, "interrupts"), _unsaid():
            yield interrupts
    finally:
        interrupts.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _take(over: threading.Event) -> None:
    while not over.is_set():
        if signal.sigtimedwait(_INTERRUPT, _LOOK_SECONDS) is not None:
            _thread.interrupt_main(signal.SIGINT)
