"""Events that a worker reports while it runs: one JSON line per event, on stdout and in the job's folder.

The launcher reads stdout and may be killed. The file is complete, and a later run catches up from it.
Here: writing events. Not here: the format of a line (resources.job.events), storage of metrics.
"""

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from resources.job.errors import TrainingFailed
from resources.job.events import EVENTS, TrainingEvent

log = logging.getLogger(__name__)

_STDOUT = 1
_file: int | None = None
_listener: Callable[[TrainingEvent], None] | None = None


def keep_events(folder: Path) -> None:
    """Append the events of this process to the file in `folder` as well, from now on."""
    global _file
    _file = os.open(folder / EVENTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def tell_also(listener: Callable[[TrainingEvent], None]) -> None:
    """Call `listener` with each event of this process as well, from now on."""
    global _listener
    _listener = listener


def emit(kind: str, step: int, **values: Any) -> None:
    """Write one event at once. If stdout has no reader any more, continue: there may be a checkpoint to save."""
    event = TrainingEvent(kind=kind, step=step, time=time.time(), values=values)
    if _listener is not None:
        _listener(event)
    line = f"{event.to_line()}\n".encode()  # a single `write`, so that lines of ranks do not mix
    try:
        if _file is not None:
            os.write(_file, line)
    finally:  # also if the disk is full, which may be the event to report
        _say(line)


def report_failure(error: TrainingFailed) -> int:
    """Report why this process ends; return the exit code to end it with."""
    with suppress(OSError):  # a full disk may be the failure to report
        emit("failed", 0, error=type(error).__name__, message=str(error))
    log.error("%s: %s", type(error).__name__, error)
    return error.exit_code or 1


def _say(line: bytes) -> None:
    try:
        os.write(_STDOUT, line)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDOUT)
        os.close(nowhere)
