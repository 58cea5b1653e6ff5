"""Exit code of a rank: maps each exception to a code (resources.job.job.ExitCode), and names its place.

The place of an exception is its type, the innermost line of the user's code, and the newest step. A failure that
repeats at the same place is deterministic: the launcher ends the training at its second occurrence. Three attempts of a
training with a typo in its validation cost three times its first epoch.

Here: the mapping for all kinds of ranks, the place, and the errors that have none because another attempt may succeed.
Not here: the work of a rank (training.entry, script.script_rank), the decision (the launcher).
"""

import logging
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch import distributed

from ml_assets.model.training.attempt.attempts import leave_code
from ml_assets.model.training.process.group import PeerFailed, chain_of, is_lost_peer
from ml_assets.model.training.process.stop import StopRequest
from ml_assets.model.training.telemetry.event_log import report_failure
from resources.disk import is_disk_full
from resources.installed import is_installed
from resources.job.errors import TrainingFailed, storage_failed
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


TRANSIENT = (TrainingFailed, OSError, torch.AcceleratorError, distributed.DistError)
"""Errors after which another attempt may succeed: of files, networks, devices and lost workers. A `TrainingFailed` has
its own rule."""
_OF_LOCAL_FILES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors of files that are the same in each attempt if they repeat at the same place."""
_OF_SERVERS = re.compile(
    "Connect|Time(d|-)?out|Unavailable|Network|Throttl|OperationalError|ProtocolError|IncompleteRead"
)
"""Names of types of errors with which clients of servers say the same as `OSError`, without being one."""
_ASK_AGAIN = {408, 425, 429, *range(500, 600)}
"""Status codes of HTTP with which a server refuses a request that it may answer later."""
_OF_DEVICES = re.compile(r"^DataLoader worker \(pid|\b(CUDA|NCCL|CUDNN|cuDNN|CUBLAS|CUSOLVER|CUFFT)")
"""Words in a `RuntimeError` of torch about a device, or about a process that a signal killed while it loaded data."""
_PLATFORM = ("resources", "ml_assets.model.training", "ml_assets.data.snapshots")
"""Packages of the platform whose frames are not the user's code."""


def place_of(error: BaseException, step: int) -> str:
    """Return where `error` was raised, after `step`, in words that are equal for an equal failure; empty if another
    attempt may succeed, as for errors of networks."""
    if not isinstance(error, Exception) or any(map(_is_transient, chain_of(error))) or is_lost_peer(error):
        return ""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return ""
    users = [
        (frame, line) for frame, line in frames if _is_of_user(frame.f_code.co_filename, frame.f_globals)
    ]
    frame, line = (users or frames)[-1]
    return f"{type(error).__name__} at {frame.f_code.co_filename}:{line} after step {step}"


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, _OF_LOCAL_FILES):
        return False
    if isinstance(error, TRANSIENT) or _status(error) in _ASK_AGAIN:
        return True
    if isinstance(error, RuntimeError) and _OF_DEVICES.search(str(error)):
        return True
    return any(_OF_SERVERS.search(one.__name__) for one in type(error).__mro__)


def _status(error: BaseException) -> int | None:
    """Return the status code of HTTP that an error of a client holds, in the ways of urllib, requests, httpx and
    botocore; None without one."""
    try:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")  # pyright: ignore
        else:
            found = getattr(response, "status_code", getattr(error, "code", None))
    except Exception:  # an attribute of another kind of error, whose own failure would hide this one
        return None
    return found if isinstance(found, int) else None  # pyright: ignore


def _is_of_user(file: str, names: dict[str, object]) -> bool:
    name = str(names.get("__name__", ""))
    is_platform = any(name == one or name.startswith(f"{one}.") for one in _PLATFORM)
    return not (is_platform or file.startswith("<") or is_installed(Path(file)))
