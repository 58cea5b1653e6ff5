"""Call of a feature function in a new process, where it cannot use values that it kept from earlier calls.

Here: the process. Not here: comparing the results (features.cut_and_rebuild).
"""

from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from datetime import date
from importlib import import_module
from multiprocessing import get_context
from typing import Any

import polars as pl

from ml_assets.data.tables.user_code import FeatureFunctionError, building

Build = Callable[[Mapping[str, pl.DataFrame], date, date], pl.DataFrame]


@contextmanager
def in_fresh_process(function: Build, path: str) -> Generator[Build]:
    """Yield `function`, declared as `path` (`package.module.function`), as a callable that runs in one new process.

    The callable raises `FeatureFunctionError` if the function fails or ends its process.
    """
    place = _importable(function) or path
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:

        def build(inputs: Mapping[str, pl.DataFrame], first: date, last: date) -> pl.DataFrame:
            try:
                return pool.submit(_call, place, dict(inputs), first, last).result()
            except BrokenProcessPool as error:
                raise FeatureFunctionError(
                    f"the process of {place} died, perhaps for lack of memory: test fewer partitions (--first)"
                ) from error

        yield build


def _call(place: str, inputs: Mapping[str, pl.DataFrame], first: date, last: date) -> pl.DataFrame:
    return building(_found(place))(inputs, first, last)


def _importable(function: Any) -> str:
    """Return the path under which the function's module holds it; empty for a function that a factory made."""
    place = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    try:
        return place if _found(place) is function else ""
    except (ImportError, AttributeError, ValueError):
        return ""


def _found(place: str) -> Any:
    module, _, name = place.rpartition(".")
    return getattr(import_module(module), name)
