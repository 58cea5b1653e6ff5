"""Exit code of a rank: maps each exception to a code (resources.job.job.ExitCode).

Here: that mapping, for all kinds of ranks. Not here: the work of a rank (training.entry, script.script_rank).
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ml_assets.model.training.attempt.outcome import leave_code
from ml_assets.model.training.attempt.place import place_of
from ml_assets.model.training.attempt.storage import storage_failed
from ml_assets.model.training.process.group import PeerFailed, is_lost_peer
from ml_assets.model.training.process.stop import StopRequest
from ml_assets.model.training.telemetry.event_log import report_failure
from resources.files import is_disk_full
from resources.job.errors import TrainingFailed
from resources.job.job import ExitCode

log = logging.getLogger(__name__)

_AGENT_SECONDS = 1.0
"""Seconds that a rank which lost a peer waits for its agent before it ends. The peer may be on another machine."""


def exit_code_of(action: Callable[[], int], folder: Path, newest_step: Callable[[], int]) -> int:
    """Run `action`, which works in `folder`; return its exit code, or the code its exception maps to.

    Code 1 means that another attempt may succeed, unless it fails at the same place after the same `newest_step`. The
    log has the reason, and so has an event if the failure is final.
    The code is also written to a file, where the agent finds it even if it notices another rank's end first.
    """
    try:
        code, error, place = action(), None, ""
    except BaseException as raised:  # torch's agent handles KeyboardInterrupt and SystemExit like any end
        code, error = _code_of(raised, folder), raised
        place = place_of(raised, newest_step()) if code == 1 else ""
    leave_code(code, error, place)
    return code


def _code_of(error: BaseException, folder: Path) -> int:
    match error:
        case TrainingFailed():
            return report_failure(error)
        case PeerFailed():
            return error.code
        case _ if is_lost_peer(error):
            log.error("another rank, which this rank needs, is gone: %s", error)
            return ExitCode.PEER_LOST
        case OSError() if is_disk_full(error):
            return report_failure(storage_failed(error, "a file of this rank", folder))
        case SystemExit():  # not from a script: script ranks return their exit code
            log.error(
                "the model, or a module that it imports, called sys.exit(%s): raise an exception instead",
                error.code,
            )
            return 1
        case _:
            log.error("this rank failed", exc_info=error)
            return 1


def _wait_for_agent(stop: StopRequest | None) -> None:
    """Give the agent time to notice the lost rank before this one; it looks ten times a second and then ends all
    others.

    A rank that is killed or calls `os._exit` leaves no code. Without this wait, a segmentation fault looked like a lost
    worker.
    """
    deadline = time.monotonic() + _AGENT_SECONDS
    while time.monotonic() < deadline and not (stop is not None and stop.requested):
        time.sleep(0.02)


def leave(code: int, stop: StopRequest | None = None) -> None:
    """End this process at once if it failed, or if SIGTERM came too late to save; otherwise let it end by itself.

    A rank that is done waits for its agent to notice that. An agent that received SIGTERM waits for its ranks to end
    instead. If neither gave way, the wait lasted half a minute.
    """
    if not code:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if stop is not None and stop.requested:
            code = ExitCode.PREEMPTED
    if code == ExitCode.PEER_LOST:
        _wait_for_agent(stop)
    if code:
        with suppress(OSError):
            sys.stdout.flush()
        # Not `sys.exit`: after the death of another rank, destroying the process group can wait until the timeout
        # of a collective, and the next attempt would wait too.
        os._exit(code)
