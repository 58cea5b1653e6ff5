"""What code is made of, read from its text: statements, names, imports. Nothing is imported or run.

Here: which statements of a module a name needs, which modules those import, where a module's file lies. Not here: what
follows from it for a version (code_version) or for taking a function elsewhere (standalone).
"""

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=512)
def _parse_text(text: str) -> ast.Module:
    return ast.parse(text)


def parse(path: Path) -> ast.Module:
    """The syntax tree of a file, which is shared: do not change it."""
    return _parse_text(path.read_text(encoding="utf-8"))


def used_by(tree: ast.Module, name: str) -> list[ast.stmt]:
    """Top-level statements of a module that `name` needs, in file order; all of them if `name` is not there.

    Statements that bind no name (calls, blocks) may have any effect, so they always count.
    """
    bound = {statement: frozenset(_binds(statement)) for statement in tree.body}
    if not any(name in names for names in bound.values()):
        return tree.body
    needed = {name}
    taken = {s for s, names in bound.items() if not names and not is_docstring(s)}
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


def imported_by(statements: Iterable[ast.stmt], package: str) -> set[str]:
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


def source_of(name: str) -> Path | None:
    """File of a module, or None if `name` is no module (`from a import b` may name a function).

    Found by path below the top-level package: asking the import system would execute the parents.
    """
    root, *rest = name.split(".")
    top = importlib.util.find_spec(root)
    if top is None:
        return None
    if not rest:
        return Path(top.origin) if top.origin and Path(top.origin).is_file() else None
    folders = [Path(folder) for folder in top.submodule_search_locations or ()]
    files = (
        file
        for folder in folders
        for file in (folder.joinpath(*rest, "__init__.py"), folder.joinpath(*rest).with_suffix(".py"))
    )
    return next((file for file in files if file.is_file()), None)


def is_docstring(node: ast.AST) -> bool:
    """Whether a statement is a text alone."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
