"""Version of code: changes whenever a function may behave differently, not when it is reformatted.

The version is a hash of normalised syntax trees, without comments, docstrings and layout. It covers the statements that
a name needs in its module, and every project module that those import, as a whole. Statements that run at import
always count: `build = make(18)`, decorators, base classes, calls. The hash leaves out only functions, literals and
plain classes that the name does not use. If the code may look up names as text (`globals()`), the whole module counts.
An import by a computed name is refused.

The hash does not cover versions of installed packages (`packages_of` returns those), files that the code reads, or
environment variables.

Here also: the modules and packages that code imports, directly or through other modules. Not here: the choice of
statements in a module (syntax).
"""

import ast
import hashlib
import importlib.util
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email import message_from_string
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from ml_assets.foundation.code.syntax import (
    MODULES,
    imported_by,
    imported_by_text,
    is_docstring,
    looks_itself_up,
    nodes_of,
    package_of,
    parse,
    parse_text,
    reads_docstrings,
    runs_code,
    seen,
    source_of,
    text_of,
    used_by,
    with_parents,
)
from resources.installed import is_installed

_PLATFORM = ("ml_assets", "resources")
_PIPELINES = "ml_assets.defs"
_ENTRANCE = "ml_assets"
"""Parent package of the platform, whose `open` imports every part. Its imports are not followed, or each change of the
platform would change each version."""
_RUNS_ANYTHING = {
    "__import__", "eval", "exec", "import_module", "run_module", "run_path", "spec_from_file_location",
}  # fmt: skip
_BUILTINS = {"__import__", "eval", "exec"}
"""Functions that are only refused as builtins: `model.eval()` and `frame.eval(…)` are harmless methods."""


class SourceUnavailable(ValueError):
    """Code whose imports cannot be followed with certainty has no version. The message names the line and a remedy."""


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The modules that code imports, directly or through others."""

    modules: dict[str, Path]
    """Name → file of project modules, without the module that holds the code."""
    packages: frozenset[str]
    """Top-level names of installed packages, without Python's own."""
    returns: bool
    """True if a reached module imports the module that holds the code."""


def reached_from(
    statements: Iterable[ast.stmt], module: str, file: Path, *, is_script: bool = False
) -> Reached:
    """Follow the imports of `statements` of `module` and of its parent packages.

    A script (`is_script`) also finds the modules in its own folder without their package name. Project modules belong
    to the module's top-level package, to the platform, or to a package that is not installed in `site-packages`.
    Raises `SourceUnavailable` for an import by a computed name.
    """
    beside = package_of(module, file) if is_script else ""
    followed = _followed(list(statements), module, file, beside)
    return _walk([*followed, *with_parents(package_of(module, file))], module, beside=beside)


def reached_by(modules: Iterable[str], without: Iterable[str] = ()) -> Reached:
    """Follow all imports of `modules`. Skip the modules or packages in `without` and modules that only those import.

    Each of `modules` may be a script, which finds the modules in its own folder without their package name.
    """
    names = sorted(modules)
    reached = [
        _walk([*with_parents(name)], name, frozenset(without), beside=name.rpartition(".")[0])
        for name in names
    ]
    return Reached(
        modules={name: path for one in reached for name, path in one.modules.items()},
        packages=frozenset(package for one in reached for package in one.packages),
        returns=False,
    )


def _walk(todo: list[str], module: str, without: frozenset[str] | None = None, beside: str = "") -> Reached:
    """Follow the module names in `todo`. With `without`, `module` itself counts as reached."""
    found: dict[str, Path] = {}
    outside: set[str] = set()
    seen: set[str] = set()  # names of functions and classes, too: other modules import them again
    returns = False
    while todo:
        name = todo.pop()
        top = name.split(".")[0]
        if name == module and without is None:
            returns = True
            continue
        if name in seen or top in sys.stdlib_module_names:
            continue
        seen.add(name)
        if not is_project(top, module):
            outside.add(top)
        elif without and not without.isdisjoint(with_parents(name)):
            continue
        elif (path := source_of(name)) is not None:
            found[name] = path
            todo += _of_module(name, path, beside)
    return Reached(modules=found, packages=frozenset(outside), returns=returns)


def _of_module(name: str, path: Path, beside: str) -> set[str]:
    """Return what `_followed` returns for all statements of a module."""
    if name == _ENTRANCE:
        return set()
    if not _is_of_platform(name):
        return _followed(parse(path).body, name, path, beside)
    return {
        parent
        for one in imported_by_text(text_of(path), package_of(name, path))
        for parent in with_parents(one)
    }


def _is_of_platform(module: str) -> bool:
    """Return True for code of the platform, which imports by name what a job names. That code has its own version."""
    return module.split(".")[0] in _PLATFORM and not f"{module}.".startswith(f"{_PIPELINES}.")


def is_project(name: str, module: str) -> bool:
    """Return True if the module `name` belongs to the same project as `module`."""
    top = name.split(".")[0]
    if top in (module.split(".")[0], *_PLATFORM):
        return True
    return top not in sys.stdlib_module_names and _is_own(top, tuple(sys.path))


@lru_cache(maxsize=1024)
def _is_own(top: str, _path: tuple[str, ...]) -> bool:
    """Return True for an importable package that lies outside `site-packages` and the standard library."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    place = spec.origin or next(iter(spec.submodule_search_locations or ()), "")
    if not Path(place).exists():  # built in, frozen
        return False
    return not is_installed(Path(place))


def imports_of(statements: Iterable[ast.stmt], module: str, file: Path) -> set[str]:
    """Return the full names of modules that `statements` of `module` may import."""
    return imported_by(statements, package_of(module, file))


def _followed(statements: list[ast.stmt], module: str, file: Path, beside: str = "") -> set[str]:
    """Return the imports of `statements` with their parent packages, which run first. Refuse computed imports.

    `beside` is the package of the script: its modules are also found without the package name.
    """
    names = imports_of(statements, module, file)
    if not _is_of_platform(module):
        names |= _imported_by_text(statements, module, file)
        names = {_found_beside(name, beside) for name in names}
        _refuse_unfound(statements, names, module, file)
    return {parent for name in names for parent in with_parents(name)}


def _found_beside(name: str, package: str) -> str:
    """Return the full name of a module that lies in `package`; otherwise `name`."""
    if not package or not name:
        return name
    tops = (name, name.split(".")[0])
    return f"{package}.{name}" if any(source_of(f"{package}.{top}") for top in tops) else name


def _imported_by_text(statements: Iterable[ast.stmt], module: str, file: Path) -> set[str]:
    """Return modules named as literals in `import_module("a.b")`. Refuse all other ways to run code by name."""
    names: set[str] = set()
    for node in _through(statements):
        if isinstance(node, ast.Call):
            called, first = _mentioned(node.func), (node.args or [None])[0]
            if called and isinstance(first, ast.Constant) and isinstance(first.value, str):
                is_name = called in ("import_module", "__import__") and not first.value.startswith(".")
                is_sum = called == "eval" and "import" not in first.value
                if is_name or is_sum:
                    names |= {first.value} if is_name else set()
                    continue
            refused = called
        elif isinstance(node, ast.ImportFrom):
            renamed = (one.name for one in node.names if one.asname and one.name in _RUNS_ANYTHING)
            refused = next(renamed, None)
        else:
            refused = None
        if refused is not None:
            line = getattr(node, "lineno", 0)
            raise SourceUnavailable(
                f"cannot tell which code {module} runs: {file}:{line} uses {refused} with a name that is only "
                f"known at run time. Use an import statement"
            )
    return names


def _through(statements: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """Yield calls and imports. Also yield each other mention of a function in `_RUNS_ANYTHING`, as an empty call."""
    for statement in statements:
        called = {id(node.func) for node in nodes_of(statement) if isinstance(node, ast.Call)}
        for node in nodes_of(statement):
            if isinstance(node, ast.Call | ast.ImportFrom):
                yield node
            elif isinstance(node, ast.Name | ast.Attribute) and _mentioned(node) and id(node) not in called:
                yield ast.copy_location(ast.Call(node, [], []), node)


def _mentioned(node: ast.expr) -> str | None:
    """Return the name of the function in `_RUNS_ANYTHING` that `node` mentions; None if it mentions none."""
    if isinstance(node, ast.Name) and node.id in _RUNS_ANYTHING:
        return node.id
    if isinstance(node, ast.Attribute) and node.attr in _RUNS_ANYTHING:
        is_method = node.attr in _BUILTINS and not (
            isinstance(node.value, ast.Name) and node.value.id == "builtins"
        )
        return None if is_method else node.attr
    return None


def _refuse_unfound(statements: Iterable[ast.stmt], names: set[str], module: str, file: Path) -> None:
    """Refuse `import helper` if `helper.py` lies beside the file and only a changed `sys.path` would find it."""
    package = package_of(module, file)
    for top in sorted({name.split(".")[0] for name in names if name}):
        beside = file.parent / f"{top}.py"
        if not package or not beside.is_file() or f"{package}.{top}" in names:
            continue
        if source_of(top) is None:
            raise SourceUnavailable(
                f"cannot follow `import {top}` in {file}: {beside.name} is beside it, but is not the module "
                f"`{top}`. Write `from {package} import {top}`"
            )


_NAME_OF_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def code_version(path: str) -> str:
    """Return the version of the function or class at `package.module.name`: 16 hex digits. Reads the source only.

    Takes the path and not the object, because a function that a factory made does not show the factory's arguments.
    Raises `SourceUnavailable`.
    """
    return seen(("version", path), lambda: _code_version(path))


def _code_version(path: str) -> str:
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
        if name in found or (package := _installed(name)) is None:
            continue
        found[name] = package.version
        todo += package.requires
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class _Package:
    """Installed package."""

    version: str
    """Public version."""
    requires: Sequence[str]
    """Names of the packages that it requires without an extra."""


def _installed(name: str) -> _Package | None:
    """Return an installed package; None if it is not installed, as one that only other machines require."""
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    text = package.read_text("METADATA")
    return _package(package.version, package.requires) if text is None else _described(text)


@lru_cache(maxsize=1024)
def _described(text: str) -> _Package:
    """Return the package whose metadata is `text`. Cached, since the parser of e-mail headers is slow."""
    headers = message_from_string(text)
    return _package(headers["Version"], headers.get_all("Requires-Dist"))


def _package(version: str, requirements: Iterable[str] | None) -> _Package:
    required = (_required(line) for line in requirements or ())
    return _Package(public_version(version), [one for one in required if one])


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
        digest.update(f"{imported}\n{normal_text(text_of(path))}\n".encode())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=MODULES)
def normal_text(text: str) -> str:
    """Return a module's text without comments, docstrings and layout; with docstrings if it reads them."""
    tree = parse_text(text)
    return _normal(tree, reads_docstrings(tree.body))


_WITHOUT_MEANING = frozenset(("kind", "type_comment", "ctx"))
"""Fields of a syntax tree that change nothing."""


def _normal(node: Any, keeps_docstrings: bool = False) -> str:
    """Return a syntax tree as text without positions, docstrings and empty fields: equal on every Python version."""
    if isinstance(node, ast.AST):
        fields = [
            f"{name}={_normal(value, keeps_docstrings)}"
            for name in node._fields
            if name not in _WITHOUT_MEANING
            and (value := getattr(node, name, None)) is not None
            and value != []
        ]
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list):
        parts: list[Any] = [one for one in node if keeps_docstrings or not is_docstring(one)]  # pyright: ignore
        return f"[{','.join(_normal(one, keeps_docstrings) for one in parts)}]"
    return repr(node)
