"""Calls of functions that a pipeline's author wrote, with errors that name the author's file and line.

Here: the place in the author's code, and the check of the returned type. Not here: finding functions by import path.
"""

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

import polars as pl

from ml_assets.checkout import ROOT

Function = TypeVar("Function", bound=Callable[..., Any])

_PASS = (ConnectionError, TimeoutError)
"""Errors for which the retry policy repeats the step, by their type."""
_HINTS = {
    "polars.LazyFrame": "; call .collect() on it",
    "pandas.DataFrame": "; polars.from_pandas(…) makes one",
    "NoneType": "; a path through it ends without `return`",
    "list": "; polars.DataFrame(…) makes one of rows",
}


class FeatureFunctionError(Exception):
    """A source or feature function raised an error or did not return the requested rows."""


def answering(function: Function) -> Function:
    """Wrap `function` so that its failures become `FeatureFunctionError`, which names the line of the author's file.

    Any error counts, panics of polars too. `ConnectionError` and `TimeoutError` pass unchanged. A result that is not
    a `polars.DataFrame` is a failure as well.
    """

    name = getattr(function, "__name__", type(function).__name__)

    def ask(*arguments: Any) -> pl.DataFrame:
        try:
            answer: object = function(*arguments)
        except _PASS:
            raise
        except (Exception, pl.exceptions.PanicException) as error:
            raise FeatureFunctionError(
                f"{place_of(function, error)}: {name} raised {type(error).__name__}: {error}"
            ) from error
        if not isinstance(answer, pl.DataFrame):
            found = _type_name(answer)
            raise FeatureFunctionError(
                f"{place_of(function)}: {name}: return a polars.DataFrame, got {found}{_HINTS.get(found, '')}"
            )
        return answer

    return cast(Function, ask)


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


def _type_name(value: object) -> str:
    found = type(value)
    package = found.__module__.partition(".")[0]
    return found.__name__ if package == "builtins" else f"{package}.{found.__name__}"
