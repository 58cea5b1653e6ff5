"""What is wrong with a `defs.yaml`, one line each: file, line, key, and the nearest right word.

Here: turning what pydantic, the YAML reader and Dagster raise while the files are read into such lines, and
looking for inputs that nothing declares. Not here: the rules themselves, which are the sections'.
"""

import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster_shared.error import DagsterUnresolvableSymbolError
from pydantic import ValidationError

from ml_assets.checkout import ROOT

DEFS = ROOT / "ml_assets" / "defs"
_DOCUMENT_KEYS = ("attributes", "post_processing", "requirements", "template_vars_module", "type")
_PLACED = re.compile(r"^(?P<key>.*) at (?P<file>.+):(?P<line>\d+)$")


class DeclarationRefused(Exception):
    """The declarations cannot be loaded; each line of the message names a file, a line and what helps."""


@contextmanager
def in_one_line(defs_folder: Path = DEFS) -> Iterator[None]:
    """Around loading: what a person wrote wrongly becomes `DeclarationRefused`; any other error passes."""
    try:
        yield
    except Exception as error:
        if lines := _explain(error, defs_folder):
            # The chain behind it is Dagster's way through its own tree; the lines say all there is to mend.
            raise DeclarationRefused("\n".join(lines)) from None
        raise


def require_declared_inputs(defs: dg.Definitions) -> None:
    """`DeclarationRefused` where an asset reads a table that no component declares."""
    assets = [asset for asset in defs.assets or () if isinstance(asset, dg.AssetsDefinition)]
    declared = {key.to_user_string() for asset in assets for key in asset.keys}
    lines: list[str] = []
    for asset in assets:
        reader = "/".join(sorted(key.to_user_string() for key in asset.keys)[0].split("/")[:2])
        for key in sorted(asset.dependency_keys, key=lambda one: one.path):
            name = key.to_user_string()
            if name not in declared:
                lines.append(f"{reader} reads '{name}', which no defs.yaml declares{_hint(name, declared)}")
    if lines:
        raise DeclarationRefused("\n".join(lines))


def _explain(error: BaseException, defs_folder: Path) -> list[str]:
    for cause in _chain(error):
        if isinstance(cause, ValidationError):
            return _validation(cause)
        if isinstance(cause, yaml.MarkedYAMLError) and cause.problem_mark is not None:
            mark = cause.problem_mark
            return [f"{_short(mark.name)}:{mark.line + 1}: this is no YAML: {cause.problem or cause.context}"]
        if isinstance(cause, DagsterUnresolvableSymbolError):
            return list(_unknown_types(defs_folder)) or [str(cause)]
    return []


def _chain(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)


def _validation(error: ValidationError) -> list[str]:
    placed: list[tuple[str, str]] = []
    for one in error.errors():
        place = ".".join(str(part) for part in one["loc"])
        match = _PLACED.match(place)
        key, at = (match["key"], f"{_short(match['file'])}:{match['line']} ") if match else (place, "")
        placed.append((key, f"{at}{key}: {_words(one)}"))
    keys = [key for key, _ in placed]
    # A part that is wrong makes the whole around it wrong too; only the part is news.
    return [line for key, line in placed if not any(other.startswith(f"{key}.") for other in keys)]


def _words(error: Any) -> str:
    match error["type"]:
        case "missing":
            return "this key is needed"
        case "extra_forbidden":  # beside `type` and `attributes`; sections name their own
            return f"unknown key{_hint(str(error['loc'][-1]).split(' at ')[0], _DOCUMENT_KEYS)}"
        case "value_error":
            return str(error["msg"]).removeprefix("Value error, ")
        case "literal_error":
            given, expected = str(error["input"]), str(error["ctx"]["expected"])
            return f"'{given}' should be {expected}"
        case _:
            return f"{error['msg']}; found {str(error['input'])[:80]!r}"


def _unknown_types(defs_folder: Path) -> Iterator[str]:
    """Dagster names the missing class, but not the file that asks for it."""
    for file in sorted(defs_folder.rglob("defs.yaml")):
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            match = re.match(r"type:\s*([\w.]+)\s*(#.*)?$", line)
            if match and not _exists(match[1]):
                names = [f"ml_assets.components.{name}" for name in _component_names()]
                yield f"{_short(str(file))}:{number} type: no component '{match[1]}'{_hint(match[1], names)}"


def _exists(path: str) -> bool:
    module, _, name = path.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), name)
    except (ImportError, ValueError):
        return False


def _component_names() -> Sequence[str]:
    return importlib.import_module("ml_assets.components").__all__


def _hint(word: str, known: Iterable[str]) -> str:
    nearest = get_close_matches(word, sorted(known), n=1)
    return f": did you mean '{nearest[0]}'?" if nearest else f"; there are: {', '.join(sorted(known))}"


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else file
