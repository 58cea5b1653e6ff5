"""Errors of the pipeline's own functions before the first step: they would come again in each attempt.

Not here: what a rank's error means once it trains (attempt.exit_code).
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch
from torch import distributed

from ml_assets.training.process.group import is_lost_peer
from ml_assets.training.step.memory import is_out_of_memory
from resources.job.errors import BadConfiguration, TrainingFailed


@contextmanager
def refusing(sentence: Callable[[Exception], str]) -> Generator[None]:
    """Raise `BadConfiguration` with `sentence` of whatever is raised inside, unless another attempt may go better.

    That may be so of files, networks, memory, devices and lost workers. One `AssertionError` of a model was tried three
    times.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, _TRANSIENT) or is_out_of_memory(error) or is_lost_peer(error):
            raise
        raise BadConfiguration(sentence(error)) from error


_TRANSIENT = (TrainingFailed, OSError, torch.AcceleratorError, distributed.DistError)
