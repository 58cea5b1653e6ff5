"""Version of code: changes whenever a function may behave differently, not when it is reformatted.

The version is a hash of normalised syntax trees, without comments, docstrings and layout. It covers the statements that
a name needs in its module, and every project module that those import, as a whole. Statements that run at import
always count: `build = make(18)`, decorators, base classes, calls. The hash leaves out only functions, literals and
plain classes that the name does not use. If the code may look up names as text (`globals()`), the whole module counts.
An import by a computed name is refused.

The hash does not cover versions of installed packages (`packages_of` returns those), files that the code reads, or
environment variables.
"""

import ast
import hashlib
import platform
import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from ml_assets.foundation.code.reach import (
    SourceUnavailable,
    imports_of,
    is_project,
    reached_by,
    reached_from,
)
from ml_assets.foundation.code.syntax import (
    MODULES,
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
    """Return the version of the function or class at `package.module.name`: 16 hex digits. Reads the source only.

    Takes the path and not the object, because a function that a factory made does not show the factory's arguments.
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
    """Return the version of a module that is run as a script: 16 hex digits. Reads the source only.

    Raises `SourceUnavailable`.
    """
    file = _file_of(module, module)
    body = parse(file).body
    return _digest(module, body, reached_from(body, module, file, is_script=True).modules)


def versions_of(script: str, functions: Iterable[str]) -> dict[str, str]:
    """Return path → version of a script and of functions, in this order. Empty paths are left out.

    A job carries these versions, joined by dashes. Raises `SourceUnavailable`.
    """
    versions = {script: script_version(script)} if script else {}
    return versions | {path: code_version(path) for path in functions if path}


def modules_version(names: Iterable[str], without: Iterable[str] = ()) -> str:
    """Return the version of whole modules and all modules that they import: 16 hex digits.

    `without` names modules or packages to leave out.
    """
    return _digest("", [], reached_by(names, without).modules)


def public_version(version: str) -> str:
    """Return a version without its local part: `2.13.0` for `2.13.0+cpu`."""
    return version.partition("+")[0]


def python_version() -> str:
    """Return the version of Python that decides which packages can be installed, such as `3.11`."""
    return ".".join(platform.python_version_tuple()[:2])


def packages_of(modules: Iterable[str], without: Iterable[str] = ()) -> dict[str, str]:
    """Return name → version of every installed package that `modules` import, and of the packages that those require.

    `without` names modules or packages of the project whose imports are not followed.
    Versions are public (`public_version`).
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
        found[name] = public_version(package.version)
        todo += [one for line in package.requires or () if (one := _required(line))]
    return dict(sorted(found.items()))


def _required(requirement: str) -> str | None:
    """Return the package name in a line of `Requires-Dist`; None if only an extra requires the package."""
    match = _NAME_OF_REQUIREMENT.match(requirement)
    return None if match is None or "extra ==" in requirement else match[0]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def _owners() -> Mapping[str, list[str]]:
    """Return top-level module → packages that may provide it. Reads every installed file list: half a second."""
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
        digest.update(f"{imported}\n{normal_text(path.read_text(encoding='utf-8'))}\n".encode())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=MODULES)
def normal_text(text: str) -> str:
    """Return a module's text without comments, docstrings and layout; with docstrings if it reads them."""
    tree = parse_text(text)
    return _normal(tree, reads_docstrings(tree.body))


def _normal(node: Any, keeps_docstrings: bool = False) -> str:
    """Return a syntax tree as text without positions, docstrings and empty fields: equal on every Python version."""
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
