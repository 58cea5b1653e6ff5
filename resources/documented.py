"""Docstrings of fields as descriptions in a JSON schema, read when somebody asks for the schema.

Pydantic's own `use_attribute_docstrings` reads the source of each class on import: a fifth of the time to load the
vocabulary of `defs.yaml`, which every command would pay.
"""

import ast
import inspect
from itertools import pairwise
from textwrap import dedent

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
        if not issubclass(one, Documented):
            continue
        try:
            (body,) = ast.parse(dedent(inspect.getsource(one))).body
        except OSError:  # made without a file
            continue
        assert isinstance(body, ast.ClassDef)
        for field, below in pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                match below:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        found[field.target.id] = inspect.cleandoc(text)
                    case _:
                        found.pop(field.target.id, None)
    return found
