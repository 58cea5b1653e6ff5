"""Functions that a pipeline's author wrote: found by their import paths, called, and packed into models.

Errors name the author's file and line. Import paths in a `defs.yaml` (of functions, scripts, and lists of column names)
are resolved when the file is read, so that a wrong path is an error at its own line. The bundle of a model that reads
blobs contains the pipeline's `decode` as a text that works without this project installed: its module is read and not
imported. Not here: model functions (`model_functions`), whose source is read without an import.
"""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from difflib import get_close_matches
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Annotated, Any, ParamSpec, cast

import polars as pl
from pydantic import AfterValidator, BeforeValidator

from ml_assets.foundation.checkout import ROOT
from ml_assets.foundation.code.code_version import code_version, normal_text, script_version
from ml_assets.foundation.code.syntax import imported_by, package_of, parse, source_of, used_by
from resources.words import place_of as line_of

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

    Any error counts, panics of polars and `sys.exit` too. `ConnectionError` and `TimeoutError` pass unchanged. A
    `polars.LazyFrame` is collected. Any other result than a `polars.DataFrame` is a failure as well.
    """

    name = getattr(function, "__name__", type(function).__name__)

    def ask(*arguments: Arguments.args, **named: Arguments.kwargs) -> pl.DataFrame:
        try:
            answer = cast(object, function(*arguments, **named))  # an author may return anything
            answer = answer.collect() if isinstance(answer, pl.LazyFrame) else answer
        except _PASS:
            raise
        except (Exception, SystemExit, pl.exceptions.PanicException) as error:
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


class FunctionNotFound(ValueError):
    """An import path in a `defs.yaml` names nothing."""


def resolve_function(path: str) -> Callable[..., Any]:
    """Return the function at `package.module.function`. `FunctionNotFound` names the part that is missing."""
    found = _resolve(path, "write package.module.function")
    if not callable(found):
        raise FunctionNotFound(f"'{path}' is a {type(found).__name__}, not a function")
    return found


class LatestMisdeclared(TypeError):
    """A function that names the latest day or hour of a source returned something else."""


def resolve_latest(path: str, *, is_hourly: bool = False) -> Callable[[], date]:
    """Return the function at `path`, which returns the latest day, or hour, for which its source is complete.

    Calling it raises `LatestMisdeclared` if the result is not a `datetime.date`. A `datetime` is refused too, because
    it does not say if its day is over. For `is_hourly`, the result must be a `datetime` with a time zone, the begin of
    an hour of UTC.
    """
    function = resolve_function(path)

    def latest() -> date:
        day = function()
        if is_hourly and not _is_begin_of_an_hour(day):
            raise LatestMisdeclared(
                f"{path}() returned {day!r}: for hourly partitions return a datetime.datetime with a time zone, the "
                "moment at which the latest complete hour of the source began"
            )
        if not is_hourly and (not isinstance(day, date) or isinstance(day, datetime)):
            raise LatestMisdeclared(
                f"{path}() returned {day!r}: return a datetime.date, the latest complete day of the source"
            )
        return day

    return latest


def _is_begin_of_an_hour(moment: object) -> bool:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        return False
    in_utc = moment.astimezone(UTC)
    return in_utc == in_utc.replace(minute=0, second=0, microsecond=0)


def _resolve(path: str, remedy: str) -> Any:
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise FunctionNotFound(f"cannot import '{path}': it names no module; {remedy}")
    module = _import(module_name, path, remedy)
    if hasattr(module, name):
        return getattr(module, name)
    nearest = get_close_matches(name, [one for one in vars(module) if not one.startswith("_")], n=1)
    hint = f"did you mean '{nearest[0]}'?" if nearest else remedy
    raise FunctionNotFound(f"cannot import '{path}': {module_name} has no '{name}'; {hint}")


def _import(name: str, path: str, remedy: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise FunctionNotFound(
                f"cannot import '{path}': there is no module '{error.name}'; {remedy}"
            ) from error
        raise _broken(path, error) from error
    except Exception as error:  # the module is the user's code: report any error in one sentence
        raise _broken(path, error) from error


def _broken(path: str, error: Exception) -> FunctionNotFound:
    """Return the error for a module that exists but raised while it was imported."""
    return FunctionNotFound(f"cannot import '{path}': {type(error).__name__}: {error}{line_of(error)}")


def _must_exist(path: str) -> str:
    resolve_function(path)
    return path


FunctionPath = Annotated[str, AfterValidator(_must_exist)]
"""`package.module.function` of a function that exists."""


def _must_have_a_version(path: str) -> str:
    code_version(_must_exist(path))
    return path


VersionedPath = Annotated[str, AfterValidator(_must_have_a_version)]
"""`package.module.function` of a function whose code has a version, so that a change of the code is noticed."""


def _must_stand_alone(path: str) -> str:
    standalone(path)
    return path


StandalonePath = Annotated[str, AfterValidator(_must_stand_alone)]
"""`package.module.function` of a function that is packed into the model. Only its caller imports it."""


def _must_be_a_module(path: str) -> str:
    """Find the module without importing it: an import would run the script."""
    remedy = "write package.module, without .py"
    package, _, name = path.rpartition(".")
    parent = _import(package, path, remedy) if package else None
    if importlib.util.find_spec(path) is None:
        siblings = [one.name for one in pkgutil.iter_modules(parent.__path__ if parent else None)]
        nearest = get_close_matches(name, siblings, n=1)
        hint = f"did you mean '{nearest[0]}'?" if nearest else remedy
        raise FunctionNotFound(
            f"cannot find '{path}': {package or 'the path'} has no module '{name}'; {hint}"
        )
    script_version(path)
    return path


ModulePath = Annotated[str, AfterValidator(_must_be_a_module)]
"""`package.module` of a module that exists and whose code has a version."""


def _names(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    remedy = "write package.module.NAMES"
    found = _resolve(value, remedy)
    if not isinstance(found, list | tuple):
        raise FunctionNotFound(f"'{value}' is a {type(found).__name__}, not a list of columns; {remedy}")
    return tuple(cast("Sequence[Any]", found))


ColumnNames = Annotated[
    tuple[str, ...], BeforeValidator(_names, json_schema_input_type=str | tuple[str, ...])
]
"""List of columns, or the import path of such a list, so that code and file do not repeat each other."""


_PROJECT = ("ml_assets", "resources")


class NotStandalone(ValueError):
    """A function cannot be extracted from its module. The message says why."""


@dataclass(frozen=True, kw_only=True)
class Standalone:
    """Module that holds one function and its helpers."""

    function: str
    """Name of the function in it."""
    source: str
    """Text of the module, without comments."""
    packages: tuple[str, ...]
    """Top-level names of imported packages outside the standard library, sorted."""


def standalone(path: str) -> Standalone:
    """Extract the function at `package.module.function` and the statements of its module that it needs.

    Raises `NotStandalone` if there is no such function, or if it needs another module of the project.
    """
    module, _, name = path.rpartition(".")
    file = source_of(module) if module else None
    if file is None:
        lacks = f"there is no module '{module}'" if module else "it names no module"
        raise NotStandalone(f"cannot find '{path}': {lacks}; write package.module.function")
    try:
        tree = parse(file)
    except SyntaxError as error:
        raise NotStandalone(f"cannot read '{path}': SyntaxError: {error}") from error
    functions = [one.name for one in tree.body if isinstance(one, ast.FunctionDef)]
    if name not in functions:
        nearest = get_close_matches(name, functions, n=1)
        hint = f"did you mean '{nearest[0]}'?" if nearest else "define it there, with def"
        raise NotStandalone(f"cannot find '{path}': {module} has no function '{name}'; {hint}")
    needed = used_by(ast.Module([one for one in tree.body if not _is_never_run(one)], []), name)
    imported = sorted(imported_by(needed, package_of(module, file)))
    own = [one for one in imported if one.split(".")[0] in {*_PROJECT, module.split(".")[0]}]
    if own:
        raise NotStandalone(
            f"'{path}' is packed into the model, which runs without this project, but it needs {own[0]}: "
            f"define all it needs in its own module, and import only packages"
        )
    futures = [one for one in tree.body if _is_future(one) and one not in needed]
    title = ast.Expr(ast.Constant(f"`{name}` of {module}, taken along with the model."))
    text = ast.unparse(ast.fix_missing_locations(ast.Module([title, *futures, *needed], [])))
    tops = {one.split(".")[0] for one in imported}
    return Standalone(
        function=name, source=f"{text}\n", packages=tuple(sorted(tops - sys.stdlib_module_names))
    )


def version_of(source: str) -> str:
    """Return 12 hex digits that stand for the code in `source`, whatever its comments, docstrings and title."""
    return hashlib.sha256(normal_text(source).encode()).hexdigest()[:12]


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _is_never_run(statement: ast.stmt) -> bool:
    """True for blocks that only type checkers read or that run only when the module is a program."""
    if not isinstance(statement, ast.If) or statement.orelse:
        return False
    return ast.unparse(statement.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == '__main__'")
