"""The version of code: changes when a function may behave differently, not when it is reformatted.

It is a hash of the normalised syntax tree (no comments, docstrings, layout) of the function, of what it uses
in its own module, and of every project module those import, all the way down. A project module belongs to
the function's own top-level package or to the platform; versions of third-party libraries are not part of it.
"""

import ast
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ml_assets.tables.syntax import imported_by, is_docstring, parse, source_of, used_by

_PLATFORM = "ml_assets"


class SourceUnavailable(Exception):
    """The source text of a function cannot be read, so its version is unknown."""


def code_version(function: Callable[..., object]) -> str:
    """Version of a function or class: 16 hex digits. `SourceUnavailable` for partials, builtins, consoles."""
    target = inspect.unwrap(function)
    name = getattr(target, "__qualname__", None)
    module = sys.modules.get(getattr(target, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if name is None or module is None or file is None:
        raise SourceUnavailable(
            f"cannot read the source of {function!r}: give a plain function or class defined in a module"
        )
    roots = frozenset({module.__name__.split(".")[0], _PLATFORM})
    used = used_by(parse(Path(file)), name.split(".")[0])
    return _version(name, used, module.__package__ or "", roots, module.__name__)


def script_version(module: str) -> str:
    """Version of a module that is run as a script: 16 hex digits. It is read, not run.

    `SourceUnavailable` where it has no file.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise SourceUnavailable(f"there is no source of {module!r}: name a module, package.module")
    roots = frozenset({module.split(".")[0], _PLATFORM})
    body = [statement for statement in parse(Path(spec.origin)).body if not is_docstring(statement)]
    return _version(module, body, spec.parent or "", roots, module)


def _version(name: str, statements: list[ast.stmt], package: str, roots: frozenset[str], module: str) -> str:
    digest = hashlib.sha256(f"{name}\n".encode())
    for node in statements:
        digest.update(f"{_normal(node)}\n".encode())
    for imported, path in sorted(_closure(imported_by(statements, package), roots, {module}).items()):
        digest.update(f"{imported}\n{_normal(parse(path))}\n".encode())
    return digest.hexdigest()[:16]


def _closure(names: set[str], roots: frozenset[str], seen: set[str]) -> dict[str, Path]:
    """Project modules reachable from `names` by imports: name → file."""
    found: dict[str, Path] = {}
    todo = sorted(names)
    while todo:
        name = todo.pop()
        if name in seen or name.split(".")[0] not in roots:
            continue
        seen.add(name)
        path = source_of(name)
        if path is None:
            continue
        found[name] = path
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        todo += sorted(imported_by(parse(path).body, package))
    return found


def _normal(node: Any) -> str:
    """A syntax tree as text: no positions, docstrings or empty fields, so equal on every Python version."""
    if isinstance(node, ast.AST):
        fields = (
            f"{name}={_normal(value)}"
            for name, value in ast.iter_fields(node)
            if value not in (None, []) and name not in ("kind", "type_comment", "ctx")
        )
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list):
        return f"[{','.join(_normal(n) for n in node if not is_docstring(n))}]"  # pyright: ignore
    return repr(node)
