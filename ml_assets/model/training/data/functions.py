"""Functions of a pipeline that a job names by import path: the model's, and the one that decodes blobs.

Here: importing them in a worker. Not here: calling them (step.load, decoding), or looking them up when a `defs.yaml` is
loaded (pipeline.declared_functions).
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from resources.job.errors import BadConfiguration
from resources.words import place_of


def function_named(path: str, what: str) -> Callable[..., Any]:
    """Return the function at `package.module.function`; `what` is its role in an error message. Raises
    `BadConfiguration` if the import fails."""
    module_name, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module_name), name)
    except Exception as error:  # an error in the pipeline's own module would repeat in another attempt
        raise BadConfiguration(
            f"{what} {path!r} cannot be imported: {type(error).__name__}: {error}{place_of(error)}. "
            "Write package.module.function, importable where the job was launched"
        ) from error
