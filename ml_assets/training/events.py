"""What a worker tells the outside while it runs: one JSON line on stdout per event.

Here: writing them. Not here: what a line looks like (resources.launcher.protocol), who reads it (the
launcher), where metrics are kept.
"""

import sys
import time
from typing import Any

from resources.launcher.protocol import TrainingEvent


def emit(kind: str, step: int, **values: Any) -> None:
    """Write one event, at once."""
    event = TrainingEvent(kind=kind, step=step, time=time.time(), values=values)
    sys.stdout.write(event.to_line() + "\n")
    sys.stdout.flush()
