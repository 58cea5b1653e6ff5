"""Exit code of a rank: each exception becomes one (resources.job.job.ExitCode).

Here: that translation, for ranks of every kind. Not here: what they do (entry, script.rank).
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ml_assets.training.attempt.outcome import leave_code
from ml_assets.training.attempt.storage import storage_failed
from ml_assets.training.process.group import PeerFailed, is_lost_peer
from ml_assets.training.process.stop import StopRequest
from ml_assets.training.telemetry.event_log import report_failure
from resources.files import is_disk_full
from resources.job.errors import TrainingFailed
from resources.job.job import ExitCode

log = logging.getLogger(__name__)

_AGENT_SECONDS = 1.0
"""Seconds that a rank which lost another, perhaps on another machine, waits for its agent before it ends."""


def exit_code_of(action: Callable[[], int], folder: Path) -> int:
    """Run `action`, which works in `folder`; return its exit code, or the code its exception maps to.

    1 stands for what may go better in another attempt. The reason is in the log, and in an event if it is final. The
    agent finds the code even if another rank is noticed first.
    """
    try:
        code, error = action(), None
    except (
        BaseException
    ) as raised:  # torch's agent takes KeyboardInterrupt and SystemExit for ends like any other
        code, error = _code_of(raised, folder), raised
    leave_code(code, error)
    return code


def _code_of(error: BaseException, folder: Path) -> int:
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
        case SystemExit():  # not a script's: those come with their code
            log.error(
                "the model, or what it imports, called sys.exit(%s): let it raise an exception", error.code
            )
            return 1
        case _:
            log.error("this rank failed", exc_info=error)
            return 1


def _wait_for_agent(stop: StopRequest | None) -> None:
    """Let the agent, which looks ten times a second, first find the rank that this one lost: it ends all the others.

    A rank that is killed, or leaves by `os._exit`, writes no code down. A segmentation fault looked like a lost worker.
    """
    deadline = time.monotonic() + _AGENT_SECONDS
    while time.monotonic() < deadline and not (stop is not None and stop.requested):
        time.sleep(0.02)


def leave(code: int, stop: StopRequest | None = None) -> None:
    """End this process where it failed, or was asked to `stop` too late for that; else let it end by itself.

    A rank that is done waits for the agent to take note of it. One that is asked to stop takes note of nothing any
    more, and waits for the rank to end: half a minute, where neither gives way.
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
        # Not `sys.exit`: after the death of another rank, taking the process group down can wait for it until
        # the timeout of a collective, and the next attempt waits too.
        os._exit(code)
