"""The functions of a pipeline that a job names by import path: the model's, and the one that reads samples.

Here: importing them in a worker. Not here: calling them (load, decoding), or finding them when a `defs.yaml` is read
(pipeline.model_functions).
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from resources.job.errors import BadConfiguration
from resources.words import place_of


def function_named(path: str, what: str) -> Callable[..., Any]:
    """The function at `package.module.function`; `what` says what it is to the job. Raises `BadConfiguration`."""
    module_name, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module_name), name)
    except Exception as error:  # whatever the pipeline's own module raises will come again in another attempt
        raise BadConfiguration(
            f"{what} {path!r} cannot be imported: {type(error).__name__}: {error}{place_of(error)}. "
            "Write package.module.function, importable where the job was launched"
        ) from error
