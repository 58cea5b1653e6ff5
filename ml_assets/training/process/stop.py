"""Ending early: on SIGTERM after a checkpoint, and at once when the process that started us is gone.

Not here: agreeing with the other ranks and saving (loop), starting processes (torchrun).
"""

import ctypes
import multiprocessing
import os
import signal
import sys
from types import FrameType

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class StopRequest:
    """Flag that SIGTERM sets; the loop reads it once a step."""

    def __init__(self) -> None:
        self.requested = False
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self.requested = True


def end_with_parent(by: signal.Signals = signal.SIGKILL, parent: int | None = None) -> None:
    """On Linux, have the kernel end this process `by` a signal when its parent ends: no rank outlives its agent.

    `parent` is the parent's process id when this process began; it may be gone already. A process of multiprocessing
    knows the process that asked for it, and ends if that is gone. Between fork and exec `by` must be SIGKILL: handlers
    that a process inherits take any other signal, and exec forgets them. Elsewhere a rank ends when its next
    collective fails or times out.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
        starter = multiprocessing.parent_process()
        if parent not in (None, os.getppid()) or (starter is not None and not starter.is_alive()):
            os.kill(os.getpid(), by)
