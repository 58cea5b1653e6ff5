"""Docstrings of fields as descriptions in a JSON schema, read when somebody asks for the schema.

Pydantic's own `use_attribute_docstrings` reads the source of each class on import: a fifth of the time to load the
vocabulary of `defs.yaml`, which every command would pay.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class Documented:
    """Mixin of a pydantic model or dataclass whose JSON schema describes a field with the docstring below it."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in texts_of(cls).items():
            if name in properties:
                properties[name].setdefault("description", text)
        return schema


def texts_of(section: type[Documented]) -> dict[str, str]:
    """Return field → the text below it in the source of the class, or of a documented class that it extends."""
    found: dict[str, str] = {}
    for one in reversed(section.__mro__):
        if issubclass(one, Documented):
            for name, text in _texts_in(one.__module__).get(one.__qualname__, {}).items():
                if text:
                    found[name] = text
                else:
                    found.pop(name, None)
    return found


@cache
def _texts_in(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return class → field → the text below it, or an empty text, for all classes of a module.

    A module is read once: `inspect.getsource` reads it again for each class.
    """
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):  # made without a file
        return {}
    return dict(_classes(tree, ""))


def _classes(parent: ast.AST, within: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the qualified name of each class below `parent`, and its texts."""
    for node in ast.iter_child_nodes(parent):
        match node:
            case ast.ClassDef(name=name):
                yield f"{within}{name}", dict(_texts(node))
                yield from _classes(node, f"{within}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from _classes(node, f"{within}{name}.<locals>.")
            case ast.stmt():
                yield from _classes(node, within)
            case _:
                pass


def _texts(body: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(body.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match below:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield field.target.id, inspect.cleandoc(text)
                case _:
                    yield field.target.id, ""
