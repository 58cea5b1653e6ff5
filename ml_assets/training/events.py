"""What a worker tells the outside while it runs: one JSON line per event, on stdout and in the job's folder.

Who reads stdout (the launcher) may be killed; what the file says is complete, and a later run catches up by it.
Here: writing them. Not here: what a line looks like (resources.launcher.protocol), where metrics are kept.
"""

import os
import time
from pathlib import Path
from typing import Any

from resources.launcher.protocol import EVENTS, TrainingEvent

_STDOUT = 1
_file: int | None = None


def keep_events(folder: Path) -> None:
    """From now on append the events of this process to the file in `folder`, too."""
    global _file
    _file = os.open(folder / EVENTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def emit(kind: str, step: int, **values: Any) -> None:
    """Write one event, at once; where nobody listens any more, go on: there may be something to save."""
    event = TrainingEvent(kind=kind, step=step, time=time.time(), values=values)
    line = f"{event.to_line()}\n".encode()  # one `write`, so that ranks do not mix
    if _file is not None:
        os.write(_file, line)
    try:
        os.write(_STDOUT, line)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDOUT)
        os.close(nowhere)
