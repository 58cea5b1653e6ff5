"""Example of each key: its shortest value in a declaration, else that of its field, else one of its type."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

_LONGEST = 48
"""Characters of an example in a table."""
_BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Examples:
    """Values of keys by the name of their section, found in declarations."""

    def __init__(self, schema: Mapping[str, Any], declarations: list[Mapping[str, Any]]) -> None:
        self._defs: Mapping[str, Any] = schema.get("$defs", {})
        self._found: dict[tuple[str, str], list[str]] = {}
        for declared in declarations:
            for name, section in (("", schema), *self._defs.items()):
                if declared and declared.keys() <= section.get("properties", {}).keys():
                    self._walk(name, section, declared)
                    break

    def of(self, section: str, key: str, value: Mapping[str, Any]) -> str:
        """Return the shortest example of `key`, else the first of its field, else one that its type allows.

        Empty if there is none: the key of a section, whose own keys have examples.
        """
        found = self._found.get((section, key), [])
        if found:
            return min(found, key=len)
        made = next(iter(value.get("examples", ())), None) or _made(value)
        return "" if made is None else _written(key, made)

    def _walk(self, name: str, section: Mapping[str, Any], declared: Mapping[str, Any]) -> None:
        for key, value in declared.items():
            below = section["properties"][key]
            text = _written(key, value)
            if len(text) <= _LONGEST:
                self._found.setdefault((name, key), []).append(text)
            self._below(below, value)

    def _below(self, schema: Mapping[str, Any], value: Any) -> None:
        for one in (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())):
            name = str(one.get("$ref", "")).rpartition("/")[2]
            target = self._defs.get(name, {})
            if isinstance(value, Mapping) and value and value.keys() <= target.get("properties", {}).keys():
                self._walk(name, target, value)
            elif target and not target.get("properties"):
                self._below(target, value)
            elif isinstance(value, list) and one.get("items"):
                for entry in value:
                    self._below(one["items"], entry)
            elif isinstance(value, Mapping) and isinstance(one.get("additionalProperties"), Mapping):
                for entry in value.values():
                    self._below(one["additionalProperties"], entry)


def declarations(root: Path) -> list[Mapping[str, Any]]:
    """Return the sections that pipelines and pages below `root` declare."""
    texts = [path.read_text() for path in sorted(root.glob("ml_assets/defs/**/defs.yaml"))]
    for path in sorted(root.glob("docs/**/*.md")):
        texts += [block.replace("  …\n", "") for block in _BLOCK.findall(path.read_text())]
    return [
        section
        for text in texts
        for document in yaml.safe_load_all(text)
        for section in _sections_of(document)
    ]


def _sections_of(document: Any) -> Iterator[Mapping[str, Any]]:
    for one in document if isinstance(document, list) else [document]:
        if isinstance(one, Mapping):
            yield one.get("attributes", one)


def _made(value: Mapping[str, Any]) -> Any:
    """Return a value of the type, other than the default where there is a choice; None if no value says anything."""
    default = value.get("default")
    if "enum" in value:
        return next((one for one in value["enum"] if one != default), None)
    if "const" in value:
        return value["const"]
    if value.get("type") == "boolean":
        return not default
    if value.get("type") in ("integer", "number"):
        return default or value.get("minimum") or 1
    for one in (*value.get("anyOf", ()), *value.get("oneOf", ())):
        if (made := _made(one)) is not None:
            return made
    return None if isinstance(default, dict) else default or None


def _written(key: str, value: Any) -> str:
    """Return `key: value` in one line of YAML."""
    flow = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True, sort_keys=False)
    text = flow.removesuffix("\n").removesuffix("\n...").strip()
    return f"{key}: {text}" if text != "null" else f"{key}: {json.dumps(value)}"
