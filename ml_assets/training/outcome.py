"""How a rank ends: whatever is raised in it becomes an exit code (resources.launcher.job.ExitCode).

Here: that translation, for ranks of every kind. Not here: what they do (entry, script_rank).
"""

import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ml_assets.training.ends import leave_code
from ml_assets.training.events import report_failure
from ml_assets.training.group import PeerFailed, is_lost_peer
from ml_assets.training.stop import StopRequest
from ml_assets.training.storage import is_disk_full, storage_failed
from resources.launcher.errors import TrainingFailed
from resources.launcher.job import ExitCode

log = logging.getLogger(__name__)


def outcome_of(action: Callable[[], int], folder: Path) -> int:
    """Run `action`, which works in `folder`; return its exit code, or the code its exception maps to.

    1 stands for what may go better in another attempt. The reason is in the log, and in an event if it is final. The
    agent finds the code even if another rank is noticed first.
    """
    try:
        code, error = action(), None
    except Exception as raised:
        code, error = _code_of(raised, folder), raised
    leave_code(code, error)
    return code


def _code_of(error: Exception, folder: Path) -> int:
    match error:
        case TrainingFailed():
            return report_failure(error)
        case PeerFailed():
            return error.code
        case _ if is_lost_peer(error):
            log.error("a rank that this one needs is gone: %s", error)
            return ExitCode.PEER_LOST
        case OSError() if is_disk_full(error):
            return report_failure(storage_failed(error, "what this rank keeps of its work", folder))
        case _:
            log.error("this rank failed", exc_info=error)
            return 1


def leave(code: int, stop: StopRequest | None = None) -> None:
    """End this process where it failed, or was asked to `stop` too late for that; else let it end by itself.

    A rank that is done waits for the agent to take note of it. One that is asked to stop takes note of nothing any
    more, and waits for the rank to end: half a minute, where neither gives way.
    """
    if not code:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if stop is not None and stop.requested:
            code = ExitCode.PREEMPTED
    if code:
        with suppress(OSError):
            sys.stdout.flush()
        # Not `sys.exit`: after the death of another rank, taking the process group down can wait for it until
        # the timeout of a collective, and the next attempt waits too.
        os._exit(code)
