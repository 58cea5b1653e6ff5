"""Version of code: changes whenever a function may behave differently, not when it is reformatted.

It is a hash of the normalised syntax tree (no comments, docstrings, layout) of what a name needs in its module, and of
every project module reached from there, whole. What runs when the module is imported counts always: `build = make(18)`,
decorators, base classes, calls. Left out are only functions, literals and plain classes that the name does not use.
Where that cannot be told (`globals()`), the whole module counts; an import by a computed name is refused. Versions of
installed packages are not part of it (`packages_of` tells those).

Neither are files that the code reads, nor environment variables.
"""

import ast
import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from ml_assets.tables.reach import SourceUnavailable, imports_of, is_project, reached_by, reached_from
from ml_assets.tables.syntax import (
    is_docstring,
    looks_itself_up,
    parse,
    parse_text,
    reads_docstrings,
    runs_code,
    source_of,
    used_by,
)

_NAME_OF_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def code_version(path: str) -> str:
    """Return the version of the function or class at `package.module.name`: 16 hex digits. It is read, not run.

    The path counts, not the object it leads to: of a factory's function the object forgets what it was made with.
    Raises `SourceUnavailable`.
    """
    module, _, name = path.rpartition(".")
    file = _file_of(module, path)
    tree = parse(file)
    needed = used_by(tree, name, lambda one: runs_code(one) or _imports_project(one, module, file))
    reached = reached_from(needed, module, file)
    if needed is not tree.body and (reached.returns or looks_itself_up(needed)):
        needed = tree.body
        reached = reached_from(needed, module, file)
    return _digest(path, needed, reached.modules)


def script_version(module: str) -> str:
    """Return the version of a module that is run as a script: 16 hex digits. It is read, not run.

    Raises `SourceUnavailable`.
    """
    file = _file_of(module, module)
    body = parse(file).body
    return _digest(module, body, reached_from(body, module, file, is_script=True).modules)


def modules_version(names: Iterable[str], without: Iterable[str] = ()) -> str:
    """Return the version of whole modules and of all they reach, `without` some modules or packages: 16 hex digits."""
    return _digest("", [], reached_by(names, without).modules)


def packages_of(modules: Iterable[str], without: Iterable[str] = ()) -> dict[str, str]:
    """Return name → version of every installed package that whole `modules` reach, and of all that those require.

    `without` names modules or packages of the project that are not followed.
    Versions are without local parts: `2.13.0+cpu` is `2.13.0`.
    """
    owners = _owners()
    todo = [one for top in reached_by(modules, without).packages for one in owners.get(top, ())]
    found: dict[str, str] = {}
    while todo:
        name = _canonical(todo.pop())
        if name in found:
            continue
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # required on other machines
            continue
        found[name] = package.version.partition("+")[0]
        todo += [one for line in package.requires or () if (one := _required(line))]
    return dict(sorted(found.items()))


def _required(requirement: str) -> str | None:
    """Return the name in a line of `Requires-Dist`; None for what only an extra asks for."""
    match = _NAME_OF_REQUIREMENT.match(requirement)
    return None if match is None or "extra ==" in requirement else match[0]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def _owners() -> Mapping[str, list[str]]:
    """Return top-level module → packages it may belong to: a look at every installed file, half a second."""
    return metadata.packages_distributions()


def _file_of(module: str, path: str) -> Path:
    file = source_of(module) if module else None
    if file is None:
        raise SourceUnavailable(
            f"there is no source of '{path}': name it as package.module, or package.module.function"
        )
    return file


def _imports_project(statement: ast.stmt, module: str, file: Path) -> bool:
    """Return True for an import that runs code of the project."""
    if not isinstance(statement, ast.Import | ast.ImportFrom):
        return False
    return any(is_project(name, module) for name in imports_of([statement], module, file))


def _digest(name: str, statements: list[ast.stmt], modules: Mapping[str, Path]) -> str:
    digest = hashlib.sha256(f"{name}\n".encode())
    keeps = reads_docstrings(statements)
    for node in statements:
        if keeps or not is_docstring(node):
            digest.update(f"{_normal(node, keeps)}\n".encode())
    for imported, path in sorted(modules.items()):
        digest.update(f"{imported}\n{_normal_text(path.read_text(encoding='utf-8'))}\n".encode())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=512)
def _normal_text(text: str) -> str:
    tree = parse_text(text)
    return _normal(tree, reads_docstrings(tree.body))


def _normal(node: Any, keeps_docstrings: bool = False) -> str:
    """Return a syntax tree as text: no positions, docstrings or empty fields, so equal on every Python version."""
    if isinstance(node, ast.AST):
        fields = (
            f"{name}={_normal(value, keeps_docstrings)}"
            for name, value in ast.iter_fields(node)
            if value not in (None, []) and name not in ("kind", "type_comment", "ctx")
        )
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list):
        parts: list[Any] = [one for one in node if keeps_docstrings or not is_docstring(one)]  # pyright: ignore
        return f"[{','.join(_normal(one, keeps_docstrings) for one in parts)}]"
    return repr(node)
