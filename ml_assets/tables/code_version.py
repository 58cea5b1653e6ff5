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
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

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
    used = _used(_parse(Path(file)), name.split(".")[0])
    return _version(name, used, module.__package__ or "", roots, module.__name__)


def script_version(module: str) -> str:
    """Version of a module that is run as a script: 16 hex digits. It is read, not run.

    `SourceUnavailable` where it has no file.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise SourceUnavailable(f"there is no source of {module!r}: name a module, package.module")
    roots = frozenset({module.split(".")[0], _PLATFORM})
    body = [statement for statement in _parse(Path(spec.origin)).body if not _is_docstring(statement)]
    return _version(module, body, spec.parent or "", roots, module)


def _version(name: str, statements: list[ast.stmt], package: str, roots: frozenset[str], module: str) -> str:
    digest = hashlib.sha256(f"{name}\n".encode())
    for node in statements:
        digest.update(f"{_normal(node)}\n".encode())
    for imported, path in sorted(_closure(_imported(statements, package), roots, {module}).items()):
        digest.update(f"{imported}\n{_normal(_parse(path))}\n".encode())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=512)
def _parse_text(text: str) -> ast.Module:
    return ast.parse(text)


def _parse(path: Path) -> ast.Module:
    return _parse_text(path.read_text(encoding="utf-8"))


def _used(tree: ast.Module, name: str) -> list[ast.stmt]:
    """Top-level statements of a module that `name` needs, in file order; all of them if `name` is not there.

    Statements that bind no name (calls, blocks) may have any effect, so they always count.
    """
    bound = {statement: frozenset(_binds(statement)) for statement in tree.body}
    if not any(name in names for names in bound.values()):
        return tree.body
    needed = {name}
    taken = {s for s, names in bound.items() if not names and not _is_docstring(s)}
    while True:
        wanted = needed.union(*map(_names, taken)) if taken else needed
        more = {s for s, names in bound.items() if names & wanted} - taken
        if not more:
            return [s for s in tree.body if s in taken]
        taken |= more


def _binds(statement: ast.stmt) -> Iterator[str]:
    """Names a top-level statement defines."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield statement.name
        case ast.Import() | ast.ImportFrom():
            for alias in statement.names:
                yield (alias.asname or alias.name).split(".")[0]
        case ast.Assign() | ast.AnnAssign():
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))
        case _:
            return


def _names(statement: ast.stmt) -> frozenset[str]:
    return frozenset(n.id for n in ast.walk(statement) if isinstance(n, ast.Name))


def _imported(statements: Iterable[ast.stmt], package: str) -> set[str]:
    """Full names of modules that `statements` may import, functions' own imports included."""
    found: set[str] = set()
    for node in (n for s in statements for n in ast.walk(s)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parent = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parent, *([node.module] if node.module else [])])
            # `from a import b` may name the module a.b or something inside a: both are tried.
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found


def _closure(names: set[str], roots: frozenset[str], seen: set[str]) -> dict[str, Path]:
    """Project modules reachable from `names` by imports: name → file."""
    found: dict[str, Path] = {}
    todo = sorted(names)
    while todo:
        name = todo.pop()
        if name in seen or name.split(".")[0] not in roots:
            continue
        seen.add(name)
        path = _source_of(name)
        if path is None:
            continue
        found[name] = path
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        todo += sorted(_imported(_parse(path).body, package))
    return found


def _source_of(name: str) -> Path | None:
    """File of a module, or None if `name` is no module (`from a import b` may name a function).

    Found by path below the top-level package: asking the import system would execute the parents.
    """
    root, *rest = name.split(".")
    top = importlib.util.find_spec(root)
    if top is None or top.origin is None:
        return None
    folder = Path(top.origin).parent
    candidates = (folder.joinpath(*rest, "__init__.py"), folder.joinpath(*rest).with_suffix(".py"))
    candidates = candidates if rest else (Path(top.origin),)
    return next((c for c in candidates if c.is_file()), None)


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


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
        return f"[{','.join(_normal(n) for n in node if not _is_docstring(n))}]"  # pyright: ignore
    return repr(node)
