"""A feature function called in a process that has called it never before, so that nothing it kept can help it.

Here: the process. Not here: comparing what it answers (features.leaktest).
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

from ml_assets.tables.user_code import FeatureFunctionError, answering

Build = Callable[[Mapping[str, pl.DataFrame], date, date], pl.DataFrame]


@contextmanager
def in_fresh_process(function: Build, path: str) -> Generator[Build]:
    """Give `function`, declared as `path` (`package.module.function`), as the same process calls it each time.

    Raises `FeatureFunctionError` where the function does, or ends its process.
    """
    place = _importable(function) or path
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:

        def build(inputs: Mapping[str, pl.DataFrame], first: date, last: date) -> pl.DataFrame:
            try:
                return pool.submit(_call, place, dict(inputs), first, last).result()
            except BrokenProcessPool as error:
                raise FeatureFunctionError(
                    f"{place} ended its process, perhaps for lack of memory: test fewer partitions (--first)"
                ) from error

        yield build


def _call(place: str, inputs: Mapping[str, pl.DataFrame], first: date, last: date) -> pl.DataFrame:
    return answering(_found(place))(inputs, first, last)


def _importable(function: Any) -> str:
    """The path under which the function's own module has it; empty for one that another function made."""
    place = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    try:
        return place if _found(place) is function else ""
    except (ImportError, AttributeError, ValueError):
        return ""


def _found(place: str) -> Any:
    module, _, name = place.rpartition(".")
    return getattr(import_module(module), name)
