"""Values that a feature function keeps from one call to the next, found in the variables that its code can reach.

What a call reads from such a value is in no record of its inputs, so a change of these would make nothing stale. Caches
of `functools` are emptied before each call. Any other variable that a call changes is refused by name.

Here: variables of the author's modules: globals, closures, default arguments, attributes of functions, classes and
objects, also of modules that a function imports in its body. Not found: files, environment variables, and what a
library keeps.
"""

import dis
import enum
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import resolve_name
from operator import length_hint
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

from resources.installed import is_installed

_PLATFORM = ("ml_assets", "resources")
_AUTHORED = "ml_assets.defs"
_DEPTH = 8
"""Containers within containers that are compared."""
_ITEMS = 100_000
"""Items of all containers that are compared; of more, their number."""

_PLAIN = (str, bytes, bool, int, float, complex, type(None))
"""Types of values that hold no others."""
_BY_NAME = {"import_module", "__import__"}
"""Functions that import the module that a text names."""
_HOLDERS: Mapping[str, Callable[[Any], Any]] = {
    "types.SimpleNamespace": vars,
    "_thread._local": vars,
    "queue.Queue": lambda held: tuple(held.queue),
    "queue.LifoQueue": lambda held: tuple(held.queue),
    "queue.PriorityQueue": lambda held: tuple(held.queue),
    "_queue.SimpleQueue": lambda held: held.qsize(),
    **{
        f"builtins.{name}_iterator": length_hint
        for name in ("list", "list_reverse", "tuple", "range", "set", "dict_key", "dict_value", "dict_item")
    },
    "builtins.enumerate": lambda held: held.__reduce__()[1][1],
    "array.array": bytes,
    "_io.StringIO": lambda held: held.getvalue(),
    "_io.BytesIO": lambda held: held.getvalue(),
    "itertools.count": repr,
    "builtins.generator": lambda held: tuple(held.gi_frame.f_locals.items()) if held.gi_frame else (),
    "_contextvars.ContextVar": lambda held: held.get(None),
    "random.Random": lambda held: held.getstate(),
    "numpy.random._generator.Generator": lambda held: repr(held.bit_generator.state),
    "numpy.random.mtrand.RandomState": lambda held: repr(held.get_state(legacy=False)),
}
"""Types of the standard library and numpy that hold what is put into them → function that returns it."""


class StateKept(Exception):
    """A call changed a variable that outlives it. The message names the variable."""


@contextmanager
def keeping_nothing(function: Callable[..., Any]) -> Generator[None]:
    """Run the block, a call of `function`, with empty caches. Raises `StateKept` if a variable that stays changed."""
    loaded = set(sys.modules)
    places = _Places(function)
    for cache in places.caches:
        cache.cache_clear()
    before = places.variables()
    yield
    imported = any(map(_is_authored_module, sys.modules.keys() - loaded))
    own = f"{getattr(function, '__module__', None)}."
    for name, (value, _) in _Places(function).variables().items():
        if name not in before:
            if imported and not name.startswith(own):
                continue  # of a module that the call imported; what it kept there shows at the next call
            raise StateKept(_refusal(name, "is new after the call"))
        if before[name][0] != value:
            raise StateKept(_refusal(name, "is another after the call"))


def _refusal(name: str, found: str) -> str:
    return (
        f"{name} {found}: what a function keeps from one call to the next is in no record of its inputs, so a change "
        "of them would make nothing stale. Compute it in each call, or keep it with functools.cache, which is emptied "
        "before each call"
    )


class _Places:
    """Variables and caches that the code of a function reaches."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.caches: list[Any] = []
        self._roots: dict[str, Any] = {}
        self._seen: set[int] = set()
        self._held: set[int] = set()
        self._left = 0
        self._follow(function, _name_of(function, type(function).__name__))

    def variables(self) -> dict[str, tuple[Any, Any]]:
        """Return name → (comparable state, the value itself, which keeps its identity from being used again)."""
        return {name: (_State().of(value), value) for name, value in self._roots.items()}

    def _follow(self, value: Any, name: str) -> None:
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, functools.partial):
            self._hold(f"{name}.args", (value.args, value.keywords))
            self._follow(cast(Any, value.func), name)
        elif hasattr(value, "cache_clear") and hasattr(value, "__wrapped__"):
            if _is_authored(value.__wrapped__):
                self.caches.append(value)
                self._follow(value.__wrapped__, name)
        elif isinstance(value, MethodType):
            self._follow(value.__func__, name)
            self._hold(name.rpartition(".")[0] or name, value.__self__)
        elif isinstance(value, FunctionType):
            if _is_authored(value):
                self._follow_function(value, name)
        elif isinstance(value, type):
            if _is_authored(value):
                self._follow_class(value)
        elif not isinstance(value, ModuleType):
            self._hold(name, value)

    def _follow_function(self, function: FunctionType, name: str) -> None:
        where = f"{function.__module__}.{name}"
        for kind, held in (
            (
                "a default argument",
                (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()),
            ),
            (
                "an attribute",
                tuple((key, one) for key, one in vars(function).items() if key != "__wrapped__"),
            ),
        ):
            if held:
                self._hold(f"{kind} of {where}", held)
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._follow_variable(f"{variable} in {where}", _content(cell))
        for variable in _names(function.__code__):
            if variable in function.__globals__:
                self._follow_variable(f"{function.__module__}.{variable}", function.__globals__[variable])
        if (wrapped := getattr(function, "__wrapped__", None)) is not None:
            self._follow(wrapped, name)
        # `helpers.CACHE`, of a module that is reached by its name, or imported in the function.
        for module in _modules(function):
            for inner in _names(function.__code__):
                if inner in vars(module):
                    self._follow_variable(f"{module.__name__}.{inner}", vars(module)[inner])

    def _follow_variable(self, name: str, value: Any) -> None:
        if callable(value) and not _has_authored_state(value):
            self._roots.setdefault(name, _Identity(value))
            self._follow(value, _name_of(value, name))
        elif not isinstance(value, ModuleType):
            self._hold(name, value)

    def _follow_class(self, found: type) -> None:
        for name, value in vars(found).items():
            function = getattr(value, "__func__", value)
            if isinstance(function, property):
                function = function.fget
            if isinstance(function, FunctionType) or hasattr(function, "cache_clear"):
                self._follow(function, f"{found.__qualname__}.{name}")
            # Python keeps combinations of flags in names such as `_member_map_`.
            elif not name.startswith("_" if issubclass(found, enum.Enum) else "__"):
                self._hold(f"{found.__module__}.{found.__qualname__}.{name}", value)
        for base in found.__bases__:
            self._follow(base, base.__qualname__)

    def _hold(self, name: str, value: Any) -> None:
        self._roots[name] = value
        self._left = _ITEMS
        self._follow_held(value, _DEPTH)

    def _follow_held(self, value: Any, depth: int) -> None:
        """Follow the functions, caches and classes that a value holds, such as the steps in a list."""
        if callable(value) and not _has_authored_state(value):
            self._follow(value, _name_of(value, type(value).__qualname__))
            return
        if id(value) in self._held or depth < 0:
            return
        self._held.add(id(value))
        if _is_authored(type(value)):
            self._follow(type(value), type(value).__qualname__)
        for one in _held_by(value):
            self._left -= 1
            if self._left < 0:
                break
            if not isinstance(one, _PLAIN):
                self._follow_held(one, depth - 1)


class _Identity:
    """A value that is compared by its identity alone."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _State:
    """Comparable state of a value: equal before and after a call that changed nothing."""

    def __init__(self) -> None:
        self._left = _ITEMS

    def of(self, value: Any, depth: int = _DEPTH) -> Any:
        """Return texts and numbers as they are, containers by their items, other values by their identity."""
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return repr(value) if isinstance(value, float) else value
        if isinstance(value, _Identity):
            return id(value.value)
        kind = (type(value).__name__, id(value))
        if isinstance(value, Mapping):
            some = cast("Mapping[Any, Any]", value)
            return kind, len(some), self._each(((key, one) for key, one in list(some.items())), depth)
        if isinstance(value, list | tuple | set | frozenset) or _is_collection(value):
            some = cast("Collection[Any]", value)
            # The tuples of a mapping are made anew each time.
            name = kind[0] if isinstance(value, tuple) else kind
            return name, len(some), self._each(list(some), depth)
        if isinstance(value, bytearray):
            return kind, bytes(value)
        # A frame or an array can grow in place.
        if isinstance(getattr(value, "shape", None), tuple):
            return kind, value.shape, _bytes_of(value)
        own: Any = value.__class__
        if (read := _HOLDERS.get(f"{own.__module__}.{own.__qualname__}")) is not None:
            return kind, self.of(read(value), depth - 1)
        if _is_authored(own):
            return kind, self._each(_attributes(value).items(), depth)
        return kind

    def _each(self, items: Iterable[Any], depth: int) -> Any:
        found: list[Any] = []
        for one in items:
            if depth == 0 or self._left <= 0:
                break
            self._left -= 1
            found.append(self.of(one, depth - 1))
        return tuple(found)


def _held_by(value: Any) -> list[Any]:
    """Return the items of a container, or the attributes of an object of the author's."""
    if isinstance(value, Mapping):
        return list(cast("Mapping[Any, Any]", value).values())
    if isinstance(value, list | tuple | set | frozenset) or _is_collection(value):
        return list(cast("Collection[Any]", value))
    return list(_attributes(value).values()) if _is_authored(type(value)) else []


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object itself, without those of its class."""
    own: Any = value.__class__
    slots = getattr(own, "__slots__", ())
    return {**getattr(value, "__dict__", {}), **{name: getattr(value, name, None) for name in slots}}


def _bytes_of(value: Any) -> Any:
    to_bytes, size = getattr(value, "tobytes", None), getattr(value, "nbytes", 0)
    return hash(to_bytes()) if to_bytes is not None and size < 1 << 24 else None


def _is_collection(value: Any) -> bool:
    return type(value).__module__ == "collections" and isinstance(value, Collection)


def _name_of(value: Any, otherwise: str) -> str:
    """Return the name of a function or class. Some objects, such as `polars.col`, have an attribute of every name."""
    found = getattr(value, "__qualname__", None)
    return found if isinstance(found, str) else otherwise


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes that a function and those within it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _modules(function: FunctionType) -> list[ModuleType]:
    """Return the author's modules that a function reaches: by a global, an import in its body, or through another."""
    names = set(_names(function.__code__))
    found: dict[str, ModuleType] = {}
    todo: list[Any] = [function.__globals__.get(name) for name in names]
    todo += [
        sys.modules.get(name)
        for name in _imported(function.__code__, function.__globals__.get("__package__") or "")
    ]
    while todo:
        module = todo.pop()
        if (
            isinstance(module, ModuleType)
            and module.__name__ not in found
            and _is_authored_module(module.__name__)
        ):
            found[module.__name__] = module
            todo += [vars(module).get(name) for name in names]
    return list(found.values())


@functools.lru_cache(maxsize=4096)
def _imported(code: CodeType, package: str) -> tuple[str, ...]:
    """Return the full names that code of `package` may import in its body: modules, and names that may be modules."""
    found: list[str] = []
    before: list[Any] = []
    for one in dis.get_instructions(code):
        if one.opname == "IMPORT_NAME":
            *_, level, taken = before
            name = str(one.argval)
            if level:
                with suppress(ImportError):
                    name = resolve_name("." * level + name, package)
            found += [name, *(f"{name}.{each}" for each in taken or ())]
        elif one.opname == "LOAD_CONST" and isinstance(one.argval, str) and _BY_NAME & set(code.co_names):
            found.append(one.argval)
        if one.opname != "EXTENDED_ARG":  # part of the instruction after it, in code with more than 256 names
            before.append(one.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += _imported(constant, package)
    return tuple(found)


def _has_authored_state(value: Any) -> bool:
    """True for a callable object of the author's own class, which is compared by its attributes."""
    plain = (
        inspect.isroutine(value)
        or isinstance(value, type | functools.partial)
        or hasattr(value, "cache_clear")
    )
    return not plain and _is_authored(cast(Any, value).__class__)


def _is_authored(value: Any) -> bool:
    return _is_authored_module(getattr(value, "__module__", None) or "")


@functools.cache
def _is_authored_module(name: str) -> bool:
    """True for modules of pipelines and of the author's packages beside the project, not for platform and libraries."""
    if name.split(".")[0] in _PLATFORM:
        return name == _AUTHORED or name.startswith(f"{_AUTHORED}.")
    module = sys.modules.get(name)
    # A package without `__init__.py` has folders only.
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    if name == "__main__" or file is None:
        return name == "__main__"
    return not is_installed(Path(file).resolve())
