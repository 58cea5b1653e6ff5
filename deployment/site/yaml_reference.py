"""Reference pages of `defs.yaml` and of the settings, from the JSON schema of their pydantic sections."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deployment.site.yaml_examples import Examples

Schema = Mapping[str, Any]
_WORDS = {"integer": "integer", "number": "number", "string": "text", "boolean": "`true`, `false`"}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


@dataclass(frozen=True)
class KeyTable:
    """Keys that stand together in a `defs.yaml`."""

    name: str
    """Name of its class; empty for the outermost section."""
    path: str
    """Place of the section: its keys from the outermost section on, with `[]` for the entries of a list."""
    schema: Schema


def sections(schema: Schema) -> list[KeyTable]:
    """Return the outermost section and those below it, each once, in the order of their keys."""
    found = {"": KeyTable("", "", schema)}

    def add(path: str, below: Any) -> None:
        for name, where in _named_in(below, path):
            target = schema["$defs"][name]
            if not target.get("properties"):
                add(where, target)  # a choice of sections
            elif name not in found:
                found[name] = KeyTable(name, where, target)
                below_it(found[name])

    def below_it(section: KeyTable) -> None:
        for key, value in section.schema["properties"].items():
            add(f"{section.path}.{key}".lstrip("."), value)

    below_it(found[""])
    return list(found.values())


def page(title: str, intro: str, schema: Schema, examples: Examples) -> str:
    """Return the Markdown of a page with a table for each section."""
    every = sections(schema)
    kinds = _Kinds(schema["$defs"], _headings(every))
    parts = [f"# {title}", intro]
    for section in every:
        if section.path:
            parts += [f"## {kinds.headings[section.name]}", str(section.schema.get("description", ""))]
        parts.append(_table(section, kinds, examples))
    return "\n\n".join(part for part in parts if part) + "\n"


def _headings(every: list[KeyTable]) -> dict[str, str]:
    """Return the heading of each section, with its class if a key chooses between sections of one path."""
    often = Counter(section.path for section in every)
    return {
        one.name: f"`{one.path}`" + (f": {_in_words(one.name)}" if often[one.path] > 1 else "")
        for one in every
    }


def _in_words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def _table(section: KeyTable, kinds: "_Kinds", examples: Examples) -> str:
    rows: list[tuple[str, ...]] = []
    required = section.schema.get("required", ())
    for key, value in section.schema["properties"].items():
        default = "required" if key in required else in_code(value.get("default"))
        example = examples.of(section.name, key, value)
        meaning = str(value.get("description", ""))
        rows.append((f"`{key}`", kinds.of(value), default, meaning, f"`{example}`" if example else ""))
    return table(("key", "value", "default", "meaning", "example"), rows)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells in Markdown, which may hold code and links."""
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def in_code(default: Any) -> str:
    """Return the cell of a default: empty if nothing is set, as the meaning says then what holds."""
    if default is None or default in ("", [], {}):
        return ""
    if isinstance(default, dict):
        return "its defaults"
    text = default if isinstance(default, str) else json.dumps(default, ensure_ascii=False)
    return f"`{text}`"


@dataclass(frozen=True)
class _Kinds:
    """Values that a key takes, in words, with links to sections."""

    defs: Mapping[str, Schema]
    headings: Mapping[str, str]
    """Class → heading of its section."""

    def of(self, value: Schema) -> str:
        """Return the values of a key with the schema `value`."""
        if "$ref" in value:
            return self._named(str(value["$ref"]).rpartition("/")[2])
        if "enum" in value:
            return ", ".join(f"`{json.dumps(one).strip(chr(34))}`" for one in value["enum"])
        if "const" in value:
            return f"`{value['const']}`"
        several = value.get("anyOf") or value.get("oneOf")
        if several:
            return " or ".join(dict.fromkeys(self.of(one) for one in several if one.get("type") != "null"))
        if value.get("type") == "array":
            return f"list: {self.of(value['items'])}" if value.get("items") else "list"
        if value.get("type") == "object":
            below = value.get("additionalProperties")
            return f"by name: {self.of(below)}" if isinstance(below, Mapping) else "keys of your own"
        bounds = [
            f"{sign} {value[name]:g}" for name, sign in _BOUNDS.items() if abs(value.get(name, 2**53)) < 2**53
        ]
        return ", ".join([_WORDS.get(str(value.get("type")), "any value"), *bounds])

    def _named(self, name: str) -> str:
        if name not in self.headings:
            return self.of(self.defs[name])
        heading = self.headings[name]
        return f"[{heading.partition(': ')[2] or 'section'}](#{_anchor(heading)})"


def _named_in(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield each class that `value` names, with the path at which it stands."""
    if not isinstance(value, Mapping):
        return
    if "$ref" in value:
        yield str(value["$ref"]).rpartition("/")[2], path
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for one in value.get(name, ()):
            yield from _named_in(one, path)
    yield from _named_in(value.get("items"), f"{path}[]")
    yield from _named_in(value.get("additionalProperties"), f"{path}.NAME")


def _anchor(heading: str) -> str:
    """Return the anchor that GitHub and the site give a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
