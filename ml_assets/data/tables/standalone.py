"""Extraction of a function and its helpers from a module, so that it works without this project installed.

A bundle of a model that reads blobs contains the pipeline's `decode` in this form. The module is read as text and not
imported. Here: the extracted text, and the refusals. Not here: calling the function (release.runtime).
"""

import ast
import hashlib
import sys
from dataclasses import dataclass
from difflib import get_close_matches

from ml_assets.foundation.code.code_version import normal_text
from ml_assets.foundation.code.syntax import imported_by, package_of, parse, source_of, used_by

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
