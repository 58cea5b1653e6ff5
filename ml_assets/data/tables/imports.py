"""Import paths in a `defs.yaml`: functions, scripts, and lists of column names.

Here: resolving them when the file is read, so that a wrong path is an error at its own line. Not here: calling them,
and model functions (`pipeline.declared_functions`), whose source is read without an import.
"""

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from difflib import get_close_matches
from types import ModuleType
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BeforeValidator

from ml_assets.data.tables.standalone import standalone
from ml_assets.foundation.code.code_version import code_version, script_version
from resources.words import place_of


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
    return FunctionNotFound(f"cannot import '{path}': {type(error).__name__}: {error}{place_of(error)}")


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
