"""Calls of functions that a pipeline's author wrote, with errors that name the author's file and line.

Here: the place in the author's code, and the check of the returned type. Not here: finding functions by import path.
"""

import inspect
import traceback
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from types import FunctionType
from typing import Any, ParamSpec, cast

import polars as pl

from ml_assets.foundation.checkout import ROOT

Arguments = ParamSpec("Arguments")

_PASS = (ConnectionError, TimeoutError)
"""Errors for which the retry policy repeats the step, by their type."""
_HINTS = {
    "pandas.DataFrame": "; polars.from_pandas(…) makes one",
    "NoneType": "; a path through it ends without `return`",
    "list": "; polars.DataFrame(…) makes one of rows",
}


class FeatureFunctionError(Exception):
    """A source or feature function raised an error or did not return the requested rows."""


def answering(
    function: Callable[Arguments, pl.DataFrame | pl.LazyFrame],
) -> Callable[Arguments, pl.DataFrame]:
    """Wrap `function` so that its failures become `FeatureFunctionError`, which names the line of the author's file.

    Any error counts, panics of polars too. `ConnectionError` and `TimeoutError` pass unchanged. A `polars.LazyFrame` is
    collected. Any other result than a `polars.DataFrame` is a failure as well.
    """

    name = getattr(function, "__name__", type(function).__name__)

    def ask(*arguments: Arguments.args, **named: Arguments.kwargs) -> pl.DataFrame:
        try:
            answer = cast(object, function(*arguments, **named))  # an author may return anything
            answer = answer.collect() if isinstance(answer, pl.LazyFrame) else answer
        except _PASS:
            raise
        except (Exception, pl.exceptions.PanicException) as error:
            raise FeatureFunctionError(
                f"{place_of(function, error)}: {name} raised {type(error).__name__}: {_without_plan(error)}"
            ) from error
        if not isinstance(answer, pl.DataFrame):
            found = _type_name(answer)
            raise FeatureFunctionError(
                f"{place_of(function)}: {name}: return a polars.DataFrame, got {found}{_HINTS.get(found, '')}"
            )
        return answer

    return ask


def building(
    function: Callable[..., Any],
) -> Callable[[Mapping[str, pl.DataFrame], date, date], pl.DataFrame]:
    """Wrap a feature function as `answering` does, to be called with frames in memory, as the leakage test does."""
    ask = answering(function)

    def build(inputs: Mapping[str, pl.DataFrame], first: date, last: date) -> pl.DataFrame:
        return ask({table: rows.lazy() for table, rows in inputs.items()}, first, last)

    return build


def place_of(function: Callable[..., Any], error: BaseException | None = None) -> str:
    """Return `file:line` of the author's line that led to `error`: the innermost in the folder of the function's file.

    Without an error, or if no line of that folder led to it, return the line on which the function begins.
    """
    # The code of a callable object is in its class.
    code: Any = inspect.unwrap(getattr(function, "__func__", function))
    file = inspect.getsourcefile(cast(Any, code if inspect.isroutine(code) else type(code))) or "<unknown>"
    line = code.__code__.co_firstlineno if isinstance(code, FunctionType) else 1
    folder = Path(file).parent
    for frame, number in traceback.walk_tb(error.__traceback__ if error else None):
        if Path(frame.f_code.co_filename).is_relative_to(folder):
            file, line = frame.f_code.co_filename, number
    path = Path(file)
    return f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}"


def _without_plan(error: BaseException) -> str:
    """Return the message of `error`, without the plan that polars prints behind that of a lazy frame."""
    return str(error).partition("\n\nResolved plan")[0]


def _type_name(value: object) -> str:
    found = type(value)
    package = found.__module__.partition(".")[0]
    return found.__name__ if package == "builtins" else f"{package}.{found.__name__}"
