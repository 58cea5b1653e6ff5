"""Runs the script that its first argument names. In the first attempt it kills itself as checkpoint three begins."""

import os
import runpy
import signal
import sys
from typing import Any

from ml_assets.model.training.script import attach

training = attach()
checkpoint = training.checkpoint
begun: list[int] = []


def dying_checkpoint(step: int, **options: Any) -> Any:
    """Die before the third checkpoint, with the work since the second one."""
    begun.append(step)
    if len(begun) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return checkpoint(step, **options)


if __name__ == "__main__":
    if not training.resumed_from:
        training.checkpoint = dying_checkpoint
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
