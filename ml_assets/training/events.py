"""What a worker tells the outside while it runs: one JSON line on stdout per event.

Here: writing them. Not here: what a line looks like (resources.launcher.protocol), who reads it (the
launcher), where metrics are kept.
"""

import os
import time
from typing import Any

from resources.launcher.protocol import TrainingEvent

_STDOUT = 1


def emit(kind: str, step: int, **values: Any) -> None:
    """Write one event, at once; where nobody listens any more, go on: there may be something to save."""
    event = TrainingEvent(kind=kind, step=step, time=time.time(), values=values)
    try:
        os.write(_STDOUT, f"{event.to_line()}\n".encode())
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDOUT)
        os.close(nowhere)
