"""Documents of all `defs.yaml` files, and the faults of each: file, line, key, and the nearest right word.

Here: reading the files, and the lines of their faults. Not here: faults of the attributes (`attribute_faults`), and
faults across documents (`declarations`).
"""

import importlib
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from dagster_shared.yaml_utils import parse_yamls_with_source_position
from dagster_shared.yaml_utils.source_position import ValueAndSourcePositionTree

from ml_assets.components.attribute_faults import attribute_faults
from ml_assets.foundation.checkout import ROOT
from resources.words import did_you_mean

_KEYS = ("attributes", "post_processing", "requirements", "template_vars_module", "type")
_COMPONENTS = "ml_assets.components"


def documents_of(defs_folder: Path) -> Iterator[ValueAndSourcePositionTree]:
    """Yield every parsed document under `defs_folder`. Skip files that are not YAML."""
    for file in _files(defs_folder):
        try:
            yield from parse_yamls_with_source_position(file.read_text(), str(file))
        except yaml.MarkedYAMLError:
            continue


def faults_in(defs_folder: Path) -> list[str]:
    """Return the faults of the documents under `defs_folder`, one line each."""
    return [line for file in _files(defs_folder) for line in _faults_of_file(file)]


def place_of(document: ValueAndSourcePositionTree, path: Sequence[str | int]) -> str:
    """Return `file:line` of a key of `document`; if the key is missing, of the part around it."""
    position, _ = document.source_position_tree.lookup_closest_and_path(path, trace=None)
    return f"{short(position.filename)}:{position.start.line}"


def lines_of_faults(document: ValueAndSourcePositionTree, model: Any, attributes: Any) -> list[str]:
    """Return one line per fault that the pydantic `model` finds in the attributes of `document`, in their order."""
    lines: list[tuple[int, str]] = []
    for below, words in attribute_faults(model, attributes):
        path = ("attributes", *below)
        place = place_of(document, path)
        lines.append((int(place.rpartition(":")[2]), f"{place} {'.'.join(map(str, path))}: {words}"))
    return [text for _, text in sorted(lines, key=lambda one: one[0])]


def short(file: str) -> str:
    """Return the path of `file` relative to the checkout; unchanged if it is outside."""
    path = Path(file)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else file


def _files(defs_folder: Path) -> list[Path]:
    return sorted(defs_folder.rglob("defs.yaml"))


def _faults_of_file(file: Path) -> Iterator[str]:
    try:
        documents = parse_yamls_with_source_position(file.read_text(), str(file))
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        yield f"{short(str(file))}{line}: not valid YAML: {error.problem or error.context}"
        return
    if not documents:
        yield f"{short(str(file))}: the file is empty: declare a component, or remove the file"
    for document in documents:
        yield from _faults_of_document(document)


def _faults_of_document(document: ValueAndSourcePositionTree) -> Iterator[str]:
    said: Any = document.value
    start = place_of(document, [])
    if not isinstance(said, dict):
        yield f"{start}: found {said!r}, not a component: write `type` and `attributes`, or remove the document"
        return
    for key in said:
        if key not in _KEYS:
            yield f"{place_of(document, [key])} {key}: unknown key{did_you_mean(str(key), _KEYS)}"
    if "type" not in said:
        names = ", ".join(_component_types())
        yield f"{start} type: this key is required: it names a component, one of {names}"
        return
    component = _component_at(str(said["type"]))
    if component is None:
        hint = _nearest_type(str(said["type"]))
        yield f"{place_of(document, ['type'])} type: no component '{said['type']}'{hint}"
        return
    model = component.get_model_cls()
    if model is not None:
        yield from lines_of_faults(document, model, said.get("attributes"))


def _component_at(path: str) -> Any:
    """Return the component class that a `type` names; None if it names none."""
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except (ImportError, ValueError):
        return None
    return found if hasattr(found, "get_model_cls") else None


def _component_types() -> list[str]:
    return [f"{_COMPONENTS}.{name}" for name in importlib.import_module(_COMPONENTS).__all__]


def _nearest_type(path: str) -> str:
    """Return the end of the sentence about an unknown type. People often leave out the package, or half of it."""
    by_name = {each.rpartition(".")[2]: each for each in _component_types()}
    nearest = get_close_matches(path.rpartition(".")[2], by_name, n=1)
    return f": did you mean '{by_name[nearest[0]]}'?" if nearest else did_you_mean(path, by_name.values())
