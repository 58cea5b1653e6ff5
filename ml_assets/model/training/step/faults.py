"""Errors of the pipeline's own functions before the first step: they would repeat in each attempt.

Not here: exit codes of errors during training (attempt.exit_code).
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from ml_assets.model.training.attempt.place import TRANSIENT
from ml_assets.model.training.process.group import is_lost_peer
from ml_assets.model.training.step.memory import is_out_of_memory
from resources.job.errors import BadConfiguration


@contextmanager
def refusing(sentence: Callable[[Exception], str]) -> Generator[None]:
    """Raise `BadConfiguration` with `sentence` of an error inside the block, unless another attempt may succeed.

    A retry may help after errors of files, networks, memory, devices and lost workers. A model's `AssertionError` was
    tried three times.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, TRANSIENT) or is_out_of_memory(error) or is_lost_peer(error):
            raise
        raise BadConfiguration(sentence(error)) from error
