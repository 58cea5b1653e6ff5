"""Faults of a component's attributes, at every level at once: path of keys → words for people.

Here: validating the attributes, wrong keys and earlier names among them, and the words of pydantic's errors. Not here:
files and lines (`documents`), and the rules of a section, which the section itself declares.
"""

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ml_assets.foundation.sections import OldWord, WrongKey

Path = tuple[str | int, ...]
"""Keys and indexes from the attributes to a part of them."""


def attribute_faults(model: Any, attributes: Any) -> list[tuple[Path, str]]:
    """Return path and words of each fault that the pydantic `model` finds in the attributes of a YAML document.

    pydantic does not look into a section that has a wrong key. So each wrong key gets its right name in a copy, and the
    copy is validated again, until every section was read. A rule about several sections is still tried only when each
    of them is right.
    """
    mended: Any = {} if attributes is None else copy.deepcopy(attributes)
    written: dict[Path, str | int] = {}
    names: dict[Path, str] = {}
    while True:
        errors = _errors(model, mended)
        found = [(_as_written(one["loc"], mended, written), _words(one)) for one in errors]
        wrong = [isinstance(_raised(one), WrongKey | OldWord) for one in errors]
        names.update(one for one, is_name in zip(found, wrong, strict=True) if is_name)
        again = False
        for one, is_name in zip(errors, wrong, strict=True):
            again |= is_name and _mend(mended, one["loc"], _raised(one), written)
        if not again:
            return [*names.items(), *_smallest([one for one in found if one[0] not in names])]


def _errors(model: Any, attributes: Any) -> list[Any]:
    try:
        TypeAdapter(model).validate_python(attributes)
    except ValidationError as error:
        return list(error.errors())
    return []


def _mend(part: Any, path: Path, fault: Any, written: dict[Path, str | int]) -> bool:
    """Give the key or the word at `path` its right name; delete a key without one. False if the path leads nowhere.

    `written` gets the path of the right key → the key in the file.
    """
    *above, key = path
    for step in above:
        part = _below(part, step)
    if not isinstance(part, dict) or key not in part:
        return False
    section: dict[Any, Any] = part
    value = section.pop(key)
    if isinstance(fault, OldWord):
        section[key] = fault.meant
    elif fault.meant is not None and fault.meant not in section:
        section[fault.meant] = value
        written[*above, fault.meant] = key
    return True


def _below(part: Any, step: str | int) -> Any:
    """Return the part at `step`; `part` itself if `step` is the kind of a section, which pydantic puts into paths."""
    try:
        return part[step]
    except (LookupError, TypeError):
        return part


def _as_written(path: Path, attributes: Any, written: Mapping[Path, str | int]) -> Path:
    """Return the path of keys in the file: with the file's wrong keys, and without kinds of sections."""
    steps: list[str | int] = []
    for i, step in enumerate(path):
        section: dict[Any, Any] = attributes if isinstance(attributes, dict) else {}
        is_last = i == len(path) - 1
        # The last step may also be a key that is missing, or a type among those that a value may have.
        is_kind = (
            isinstance(step, str) and step not in section and (not is_last or section.get("kind") == step)
        )
        if not is_kind:
            steps.append(written.get(path[: i + 1], step))
            attributes = _below(attributes, step)
    return tuple(steps)


def _smallest(faults: list[tuple[Path, str]]) -> list[tuple[Path, str]]:
    """Return the faults of the smallest parts: a faulty part makes the whole around it faulty, too."""
    return [
        (path, words)
        for path, words in faults
        if not any(len(other) > len(path) and other[: len(path)] == path for other, _ in faults)
    ]


def _raised(error: Any) -> Any:
    """Return the exception that a validator raised; None for an error of pydantic's own."""
    return error.get("ctx", {}).get("error")


def _words(error: Any) -> str:
    match error["type"]:
        case "missing":
            return "this key is required"
        case "value_error":
            return str(error["msg"]).removeprefix("Value error, ")
        case "literal_error":
            given, expected = str(error["input"]), str(error["ctx"]["expected"])
            return f"'{given}' should be {expected}"
        case "union_tag_not_found":
            return f"the key {error['ctx']['discriminator']} is required"
        case "union_tag_invalid":
            key = error["ctx"]["discriminator"].removesuffix("()")  # a function has the name of its key
            return f"{key} '{error['ctx']['tag']}' should be {error['ctx']['expected_tags']}"
        case "string_pattern_mismatch" if error["ctx"]["pattern"] == r"^[A-Za-z0-9_]+$":
            return f"'{error['input']}' may only contain A to Z, a to z, 0 to 9 and _"
        case _:
            return f"{error['msg']}; found {str(error['input'])[:80]!r}"
