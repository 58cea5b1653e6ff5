"""Early ends: after a checkpoint on SIGTERM, and at once when the parent process is gone.

Not here: agreement with the other ranks (group), saving (training.loop), starting processes (node.agent).
"""

import ctypes
import multiprocessing
import os
import signal
import sys
from types import FrameType

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class StopRequest:
    """Flag that SIGTERM sets; the loop reads it once per step."""

    def __init__(self) -> None:
        self.requested = False
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self.requested = True


def end_with_parent(by: signal.Signals = signal.SIGKILL, parent: int | None = None) -> None:
    """Let the kernel end this process with the signal `by` when its parent ends (Linux): no rank outlives its agent.

    `parent` is the parent's process id at the start of this process; that process may be gone already. A
    multiprocessing child knows its parent and ends if it is gone. Between fork and exec, `by` must be SIGKILL:
    inherited handlers catch any other signal, and exec drops those handlers. On other systems a rank ends when its next
    collective fails or times out.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
        starter = multiprocessing.parent_process()
        if parent not in (None, os.getppid()) or (starter is not None and not starter.is_alive()):
            os.kill(os.getpid(), by)
