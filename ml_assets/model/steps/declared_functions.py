"""Functions and scripts that a pipeline names, read from the text of their files: definitions never import torch.

Here: the section `model`; the definition behind an import path and its arguments; own metrics, which the steps of a run
and `ml-assets diff` import; scripts that would train the same model on every worker. Not here: the version of a
function (code.code_version), importing and calling a model function (the workers), calling a metric
(`comparison.declared_metrics`).
"""

import ast
import importlib.util
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from ml_assets.data.tables.guard import BuildRefused
from ml_assets.data.tables.user_code import FunctionNotFound, ModulePath, resolve_function
from ml_assets.foundation.code.code_version import SourceUnavailable, code_version, is_project, reached_by
from ml_assets.foundation.code.syntax import (
    base_of,
    is_docstring,
    names_bound_by,
    package_of,
    parse,
    source_of,
    with_parents,
)
from ml_assets.foundation.sections import Section, refuse_at
from ml_assets.model.evaluation.comparison.declared_metrics import OwnMetric
from ml_assets.model.evaluation.spec import EvaluationSpec
from resources.words import did_you_mean

_REMEDY = "write package.module.function"
_BLOCKS = ast.If | ast.Try | ast.With | ast.For | ast.While
_DATA: dict[type[ast.expr], str] = {
    ast.List: "list", ast.ListComp: "list", ast.Tuple: "tuple", ast.Dict: "dict", ast.DictComp: "dict", ast.Set: "set",
    ast.JoinedStr: "str",
}  # fmt: skip


@dataclass(frozen=True)
class Signature:
    """Arguments of a model function after the first, which is `inputs`."""

    names: tuple[str, ...]
    required: frozenset[str]
    takes_any: bool
    """True for `**hyperparameters`."""


def find_signature(path: str) -> Signature | None:
    """Return the arguments of the function or class at `package.module.name`; None if its text does not show them.

    Decorators, base classes, calls and installed packages hide them. Raises `FunctionNotFound` if there is no such
    function.
    """
    module, _, name = path.rpartition(".")
    if not module:
        raise FunctionNotFound(f"cannot import '{path}': it names no module; {_REMEDY}")
    return _find(path, module, name, set())


def wrong_arguments(path: str, given: Iterable[str]) -> dict[tuple[str, ...], str]:
    """Return the keywords that the function at `path` does not accept, or lacks.

    Path below the keywords → sentence without its subject; empty if the text does not show the arguments.
    """
    signature, given = find_signature(path), list(given)
    if signature is None:
        return {}
    unknown = [] if signature.takes_any else [name for name in given if name not in signature.names]
    if unknown:
        return {
            (name,): f"has no argument '{name}'"
            f"{did_you_mean(name, signature.names) if signature.names else ': it takes none'}"
            for name in unknown
        }
    lacking = [name for name in signature.names if name in signature.required and name not in given]
    if not lacking:
        return {}
    return {(): f"needs {', '.join(lacking)}: add {'it' if len(lacking) == 1 else 'them'} to hyperparameters"}


def _must_exist(path: str) -> str:
    find_signature(path)
    code_version(path)
    _refuse_missing_packages(path)
    return path


ModelFunctionPath = Annotated[str, AfterValidator(_must_exist)]
"""`package.module.function` of a model function. Definitions read its text; only workers import it."""


class ModelSection(Section):
    """Model function or script to train."""

    function: ModelFunctionPath | None = None
    """`package.module.function`: `(inputs: InputSpec, **hyperparameters) -> torch.nn.Module`, trained by the platform's
    loop."""
    script: ModulePath | None = None
    """Instead of `function`: `package.module` of a script with its own loop. Each worker runs it as torchrun does.
    `arguments` and `hyperparameters` become its command line."""
    arguments: tuple[str | int | float, ...] = ()
    """Positional arguments of `script`, in order, before the options from `hyperparameters`."""
    hyperparameters: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of `function`, or the command line of `script`."""
    init_from: str | None = Field(default=None, pattern=r"^\w+(@[\w-]+|/\d+)$")
    """`model@alias` or `model/number`: begin with the weights of that registered version, and encode columns as it
    does. An alias is resolved when the training is launched; the version is part of the fingerprint."""

    @model_validator(mode="after")
    def _is_function_or_script(self) -> Self:
        if (self.function is None) == (self.script is None):
            raise ValueError(
                "give either `function`, whose model the platform trains, or `script`, a module with its own "
                "training loop"
            )
        if self.script and self.init_from:
            raise ValueError(
                "init_from is for a model function: remove it, and let the script load its initial weights"
            )
        if self.arguments and not self.script:
            raise ValueError(
                "arguments are for a script: give a model function its values in hyperparameters"
            )
        if self.function is not None:
            why = wrong_arguments(self.function, self.hyperparameters)
            refuse_at(
                type(self).__name__,
                {("hyperparameters", *path): f"{self.function} {said}" for path, said in why.items()},
            )
        return self


def _refuse_missing_packages(path: str) -> None:
    """Refuse a top-level import in the function's file that would fail here: workers would fail later."""
    module = path.rpartition(".")[0]
    file = source_of(module)
    assert file is not None
    for statement in parse(file).body:
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            names = [statement.module]
        else:
            continue
        for top in (name.split(".")[0] for name in names):
            if importlib.util.find_spec(top) is None:
                raise FunctionNotFound(
                    f"cannot import '{path}': {file}:{statement.lineno} imports '{top}', which is not installed here; "
                    "install it, or import it inside the function if only the workers have it"
                )


def _find(path: str, module: str, name: str, seen: set[tuple[str, str]]) -> Signature | None:
    """Look `name` up in `module`; if the module imports it from another module of the project, look there."""
    seen.add((module, name))
    file = source_of(module)
    if file is None:
        missing = next(name for name in with_parents(module) if source_of(name) is None)
        raise FunctionNotFound(f"cannot import '{path}': there is no module '{missing}'; {_REMEDY}")
    bound = dict(_bound(_parsed(path, file)))
    if name not in bound:
        if "*" in bound or "__getattr__" in bound:
            return None
        public = [one for one in bound if not one.startswith("_")]
        hint = (
            f"did you mean '{nearest[0]}'?" if (nearest := get_close_matches(name, public, n=1)) else _REMEDY
        )
        raise FunctionNotFound(f"cannot import '{path}': {module} has no '{name}'; {hint}")
    match bound[name]:
        case ast.FunctionDef(decorator_list=[]) | ast.AsyncFunctionDef(decorator_list=[]) as function:
            return _signature(function.args, skipped=1)
        case ast.ClassDef(decorator_list=[]) as made:
            begins = (one for one in made.body if isinstance(one, ast.FunctionDef) and one.name == "__init__")
            begin = next(begins, None)
            return None if begin is None or begin.decorator_list else _signature(begin.args, skipped=2)
        case ast.Assign(value=ast.Lambda(args=arguments)):
            return _signature(arguments, skipped=1)
        case ast.Assign(value=ast.Name(id=other)) if other in bound and (module, other) not in seen:
            return _find(path, module, other, seen)
        case ast.Assign(value=value) if (kind := _data(value)) is not None:
            raise FunctionNotFound(f"'{path}' is a {kind}, not a function")
        case ast.ImportFrom() as imported:
            return _behind(path, imported, module, file, name, seen)
        case _:
            return None


def _behind(
    path: str, imported: ast.ImportFrom, module: str, file: Path, name: str, seen: set[tuple[str, str]]
) -> Signature | None:
    source = base_of(imported, package_of(module, file))
    original = next(one.name for one in imported.names if (one.asname or one.name) == name)
    if source_of(f"{source}.{original}") is not None:
        raise FunctionNotFound(f"'{path}' is a module, not a function; {_REMEDY}")
    if not is_project(source, module) or (source, original) in seen:
        return None
    return _find(path, source, original, seen)


def _parsed(path: str, file: Path) -> ast.Module:
    try:
        return parse(file)
    except SyntaxError as error:
        raise FunctionNotFound(
            f"cannot read '{path}': {file}:{error.lineno}: SyntaxError: {error.msg}"
        ) from error


def _bound(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the names that an import of the module may bind, each with its statement, in order of binding."""
    todo: list[ast.stmt] = list(reversed(tree.body))
    while todo:
        statement = todo.pop()
        yield from ((name, statement) for name in names_bound_by(statement))
        if isinstance(statement, _BLOCKS):
            todo += [one for one in ast.iter_child_nodes(statement) if isinstance(one, ast.stmt)][::-1]
            handlers = (one for one in ast.iter_child_nodes(statement) if isinstance(one, ast.ExceptHandler))
            todo += [one for handler in handlers for one in handler.body][::-1]


def _signature(arguments: ast.arguments, skipped: int) -> Signature:
    """Return the arguments after the first `skipped` positional ones."""
    positional = [*arguments.posonlyargs, *arguments.args]
    named = [one.arg for one in positional[max(skipped, len(arguments.posonlyargs)) :]]
    without = len(positional) - len(arguments.defaults)
    required = {one.arg for one in positional[skipped:without]}
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        named.append(one.arg)
        required |= {one.arg} if default is None else set()
    return Signature(tuple(named), frozenset(required), arguments.kwarg is not None)


def _data(value: ast.expr) -> str | None:
    """Return the type of an assigned literal; None for a value that may be a function."""
    if isinstance(value, ast.Constant):
        return type(value.value).__name__
    return _DATA.get(type(value))


_ARGUMENTS = 4


class MetricUnusable(BuildRefused):
    """The module of an own metric cannot be imported."""


def own_metric_faults(spec: EvaluationSpec) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield (path of keys, sentence) for each function that does not exist. Reads source only."""
    for number, one in enumerate(spec.metrics):
        try:
            signature = find_signature(one.function)
            code_version(one.function)
        except (FunctionNotFound, SourceUnavailable) as error:
            yield ("evaluation", "metrics", number, "function"), str(error)
            continue
        # The text shows the arguments after the first.
        if signature is not None and not signature.takes_any and len(signature.names) != _ARGUMENTS - 1:
            yield (
                ("evaluation", "metrics", number, "function"),
                f"{one.function} must take (label, prediction, group, weight)",
            )


def require_own_metrics(model: str, spec: EvaluationSpec) -> None:
    """Import the functions, so that no training runs whose evaluation must fail. Raises `MetricUnusable`."""
    for number, one in enumerate(spec.metrics):
        try:
            resolve_function(one.function)
        except FunctionNotFound as error:
            raise MetricUnusable(
                f"{model} would fail after its training: evaluation.metrics[{number}].function {error}. Mend the "
                "module, or remove the metric"
            ) from error


def own_metrics(spec: EvaluationSpec) -> tuple[OwnMetric, ...]:
    """Import the functions. Raises `FunctionNotFound`."""
    return tuple(
        OwnMetric(
            declared=one, function=resolve_function(one.function), code_version=code_version(one.function)
        )
        for one in spec.metrics
    )


_TRAIN_ALONE = ("lightgbm", "xgboost", "sklearn", "catboost")
_JOIN_NOTHING = {
    "joblib", "matplotlib", "narwhals", "numpy", "onnx", "onnxconverter_common", "onnxmltools", "onnxruntime", "pandas",
    "polars", "pyarrow", "pydantic", "rich", "scipy", "skl2onnx", "tqdm", "yaml",
}  # fmt: skip
_MAY_SHARE = re.compile(
    r"rank|world|machine|host|peer|collective|nodeid|nodename|getnode|uname|platform|uuid|temp|pid|lock|exist_ok|glob|"
    r"iterdir|listdir|scandir|walk|asyncio|concurrent|ctypes|ftplib|http|importlib|multiprocessing|runpy|smtplib|socket|"
    r"sqlite|ssl|subprocess|telnet|urllib|xmlrpc|getattr|\bvars\b|globals|getenvb?(?!\(b?'\w+'[,)])|"
    r"environb?(?!(\[|\.\w+\()b?'\w+'[\],)])",
    re.IGNORECASE,
)
"""Words of code that may tell workers apart, join processes, or find files of another worker. `os.environ['HOME']` does
by the name of the variable, the environment as a whole always."""


def one_process_library(script: str) -> str | None:
    """Return the library of the `script` if its workers would all train the same model; None in doubt.

    They do if the script, with the project's modules that it imports, uses only known packages that join nothing, and
    its code has no word of `_MAY_SHARE`.
    """
    reached = reached_by([script], without=["ml_assets.model.training", "resources"])
    found = [name for name in _TRAIN_ALONE if name in reached.packages]
    if not found or reached.packages - {*_TRAIN_ALONE, *_JOIN_NOTHING}:
        return None
    may_share = any(_MAY_SHARE.search(_code_of(file)) for file in reached.modules.values())
    return None if may_share else found[0]


def _code_of(file: Path) -> str:
    """Return the code of a module without comments and docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [one for one in node.body if not is_docstring(one)]
    return ast.unparse(tree)
