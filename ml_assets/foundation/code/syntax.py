"""Statements, names and imports of code, read from its text. Nothing is imported or run.

Here: the statements of a module that a name needs, the modules that those import, the file of a module. Not here:
following imports (reach), the version of code (code_version), the extraction of a function (standalone).
"""

import ast
import importlib.util
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

Result = TypeVar("Result")

# Some releases of Python, 3.11.7 among them, keep one depth of recursion for all threads (gh-106905): a thread that
# parses while another one does, a library's too, gets a SystemError for a text without a mistake. Parsing has no
# effects, so it is repeated.
_TRIES = 20

# Modules that one process reads: a few times those of the platform. They are read in the same order again and again, so
# a cache with room for fewer would keep none of them.
MODULES = 8192


_seen: ContextVar[dict[Hashable, Any] | None] = ContextVar("_seen", default=None)


@contextmanager
def reading_once() -> Iterator[None]:
    """Read the text of each module, and compute each version of code, at most once during the block.

    For blocks that read the same modules again and again, while nobody edits them: the load of all definitions. A
    change of a file during the block is seen by the next block.
    """
    token = _seen.set({} if _seen.get() is None else _seen.get())
    try:
        yield
    finally:
        _seen.reset(token)


def seen(key: Hashable, compute: Callable[[], Result]) -> Result:
    """Return `compute()`; in a block of `reading_once` the result of the first call with this key."""
    known = _seen.get()
    if known is None:
        return compute()
    if key not in known:
        known[key] = compute()
    return known[key]


def text_of(path: Path) -> str:
    """Return the text of a module's file."""
    return seen(("text", path), lambda: path.read_text(encoding="utf-8"))


@lru_cache(maxsize=MODULES)
def parse_text(text: str) -> ast.Module:
    """Return the syntax tree of a module's text. The tree is cached and shared: do not change it."""
    for _ in range(_TRIES):
        with suppress(SystemError):
            return ast.parse(text)
    return ast.parse(text)


def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file. The tree is cached and shared: do not change it."""
    return parse_text(text_of(path))


@lru_cache(maxsize=20 * MODULES)
def nodes_of(statement: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of a statement but contexts (`Load`, `Store`), in the order of `ast.walk`, which takes twice as
    long. Cached, because loading the definitions visits each node a dozen times."""
    found = [statement]
    for node in found:  # grows meanwhile
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                found += [one for one in cast("list[object]", value) if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST) and name != "ctx":
                found.append(value)
    return tuple(found)


def used_by(
    tree: ast.Module, name: str, always: Callable[[ast.stmt], bool] = lambda _: False
) -> list[ast.stmt]:
    """Return the top-level statements of a module that `name` needs, in file order; all if no statement binds `name`.

    Statements that bind no name (calls, blocks) may have any effect, so they always count. Statements for which
    `always` returns True count, too.
    """
    # `*` may bind any name, so the statement counts as one that binds none.
    bound = {statement: frozenset(names_bound_by(statement)) - {"*"} for statement in tree.body}
    if not any(name in names for names in bound.values()):
        return tree.body
    taken = {s for s, names in bound.items() if (not names or always(s)) and not is_docstring(s)}
    wanted, new = {name}, taken
    while True:
        wanted = wanted.union(*map(_names, new))
        new = {s for s, names in bound.items() if s not in taken and names & wanted}
        if not new:
            return [s for s in tree.body if s in taken]
        taken |= new


def runs_code(statement: ast.stmt) -> bool:
    """Return False if an import of the module only binds a name to a value here; True for any other statement.

    True for `build = make(18.0)`, `_ = TABLE.update(x=1)`, decorators and base classes: each may change the meaning of
    another name of the module. False for imports, plain functions, classes without bases, and assigned literals.
    """
    match statement:
        case ast.Import() | ast.ImportFrom():
            return False
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            arguments = statement.args
            every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            extra = [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
            annotations = [one.annotation for one in (*every, *extra)] + [statement.returns]
            defaults = [*arguments.defaults, *arguments.kw_defaults]
            return bool(statement.decorator_list) or not (
                all(map(_is_inert, defaults)) and not any(map(_calls, annotations))
            )
        case ast.ClassDef():
            runs = statement.decorator_list or statement.bases or statement.keywords
            return bool(runs) or any(runs_code(one) for one in statement.body if not is_docstring(one))
        case ast.Assign(targets=targets):
            return not (_is_inert(statement.value) and all(isinstance(one, ast.Name) for one in targets))
        case ast.AnnAssign():
            is_plain = isinstance(statement.target, ast.Name) and not _calls(statement.annotation)
            return not (is_plain and _is_inert(statement.value))
        case ast.Pass():
            return False
        case _:
            return True


def _is_inert(value: ast.expr | None) -> bool:
    """Return True for literals, names, and containers or arithmetic of literals: evaluating them has no effect."""
    match value:
        case None | ast.Constant() | ast.Name():
            return True
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return all(map(_is_inert, parts))
        case ast.Dict():
            return all(map(_is_inert, (*value.keys, *value.values))) and None not in value.keys
        case ast.UnaryOp(operand=ast.Constant()):
            return True
        case ast.BinOp(left=left, right=right):
            return all(_is_inert(one) and not isinstance(one, ast.Name) for one in (left, right))
        case _:
            return False


def _calls(value: ast.expr | None) -> bool:
    runs = ast.Call | ast.NamedExpr | ast.Await
    return value is not None and any(isinstance(node, runs) for node in ast.walk(value))


def looks_itself_up(statements: Iterable[ast.stmt]) -> bool:
    """Return True if code may look up names of its own module as text. Then no statement can be left out."""
    return any(
        (isinstance(node, ast.Name) and node.id in _BY_TEXT)
        or (isinstance(node, ast.Attribute) and node.attr in _BY_TEXT_OF)
        for statement in statements
        for node in nodes_of(statement)
    )


_BY_TEXT = {"eval", "exec", "globals", "locals", "vars", "modules", "import_module", "__import__"}
_BY_TEXT_OF = {"modules", "__dict__", "__globals__", "f_globals", "import_module"}


def reads_docstrings(statements: Iterable[ast.stmt]) -> bool:
    """Return True if code mentions `__doc__`. Its docstrings are then data."""
    return any(
        "__doc__" in (getattr(node, "id", ""), getattr(node, "attr", ""), getattr(node, "value", ""))
        for statement in statements
        for node in nodes_of(statement)
    )


def names_bound_by(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement defines, also by `:=` in an assignment; `*` for an import of all names."""
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
            yield from (n.target.id for n in ast.walk(statement) if isinstance(n, ast.NamedExpr))
        case _:
            return


@lru_cache(maxsize=20 * MODULES)
def _names(statement: ast.stmt) -> frozenset[str]:
    return frozenset(n.id for n in nodes_of(statement) if isinstance(n, ast.Name))


def package_of(module: str, file: Path) -> str:
    """Return the package to which relative imports in `module` refer. `file` is the module's file."""
    return module if file.name == "__init__.py" else module.rpartition(".")[0]


def base_of(node: ast.ImportFrom, package: str) -> str:
    """Return the full name of the module after `from`, for an import in a module of `package`."""
    parts = package.split(".") if node.level else []
    parent = parts[: len(parts) - node.level + 1]
    return ".".join([*parent, *([node.module] if node.module else [])])


def with_parents(name: str) -> Iterator[str]:
    """Yield the packages around a module from the outermost, then the module. Nothing for an empty name."""
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1) if name)


def imported_by(statements: Iterable[ast.stmt], package: str) -> set[str]:
    """Return the full names of modules that `statements` may import, imports inside functions included."""
    found: set[str] = set()
    for node in (n for s in statements for n in nodes_of(s)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = base_of(node, package)
            # `from a import b` may name the module a.b or a name inside a: return both.
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found


@lru_cache(maxsize=MODULES)
def imported_by_text(text: str, package: str) -> frozenset[str]:
    """Return `imported_by` of a whole module's text. Cached: the platform's modules are followed for each function."""
    return frozenset(imported_by(parse_text(text).body, package))


def source_of(name: str) -> Path | None:
    """Return the file of a module; None if `name` is not a module (`from a import b` may name a function).

    Looks up the path below the top-level package, because the import system would execute the parents.
    """
    return seen(("file", name), lambda: _source_of(name))


def _source_of(name: str) -> Path | None:
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
    """Return True for a statement that is only a string."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
