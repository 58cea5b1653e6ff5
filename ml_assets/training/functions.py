"""The functions of a pipeline that a job names by import path: the model's, and the one that reads samples.

Here: finding them in a worker. Not here: calling them (load, decoding), or finding them when a `defs.yaml` is read
(components.imports).
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from resources.launcher.errors import BadConfiguration


def function_named(path: str, what: str) -> Callable[..., Any]:
    """The function at `package.module.function`; `what` says what it is to the job. Raises `BadConfiguration`."""
    module_name, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadConfiguration(
            f"{what} {path!r} cannot be imported: {error}. "
            "Write package.module.function, importable where the job was launched"
        ) from error
