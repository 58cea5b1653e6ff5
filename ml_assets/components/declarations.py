"""What is wrong with a `defs.yaml`, one line each: file, line, key, and the nearest right word.

Here: turning what pydantic, the YAML reader and Dagster raise while the files are read into such lines, and
what only all files together show: names used twice, inputs that nothing declares. Not here: the rules of one
section, which are its own.
"""

import importlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster_shared.error import DagsterUnresolvableSymbolError
from dagster_shared.yaml_utils import parse_yamls_with_source_position
from pydantic import ValidationError

from ml_assets.checkout import ROOT
from ml_assets.components.columns import column_faults
from resources.words import did_you_mean

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


def require_consistent(defs: dg.Definitions, defs_folder: Path = DEFS) -> None:
    """`DeclarationRefused` where components do not fit together.

    Two have one name; one reads a table that none declares, that is cut in other partitions, or that begins later;
    one names columns of a table that `column_faults` refuses.
    """
    assets = [asset for asset in defs.assets or () if isinstance(asset, dg.AssetsDefinition)]
    by_key = {key.to_user_string(): asset for asset in assets for key in asset.keys}
    lines = list(_declared_twice(assets, defs_folder))
    for asset in assets:
        for read in sorted(key.to_user_string() for key in asset.dependency_keys):
            at = ", ".join(_places(rf".*\btable:\s*{read}\b", defs_folder))
            if read not in by_key:
                lines.append(f"{at}: no defs.yaml declares '{read}'{did_you_mean(read, by_key)}")
            elif why := _misfit(asset.partitions_def, by_key[read].partitions_def):
                lines.append(f"{at}: {_who(asset)} {why[0]} and reads {read}, which {why[1]}")
            else:
                for key, fault in column_faults(asset, by_key[read], read):
                    lines.append(f"{_place_of(_who(asset), key, defs_folder) or at}: {_who(asset)} {fault}")
    if lines:
        raise DeclarationRefused("\n".join(dict.fromkeys(lines)))


def _declared_twice(assets: Sequence[dg.AssetsDefinition], defs_folder: Path) -> Iterator[str]:
    for name, times in Counter(_who(asset) for asset in assets).items():
        if times > 1:
            at = _places(rf"\s+name:\s*{name.rpartition('/')[2]}\s*(#.*)?$", defs_folder)
            files = dict.fromkeys(place.rpartition(":")[0] for place in at)
            yield f"{', '.join(files)}: '{name}' is declared {times} times; every name belongs to one component"


def _who(asset: dg.AssetsDefinition) -> str:
    """A table's id; of a model's assets, the model's name."""
    first, *rest = min(asset.keys).path
    return "/".join([first, *rest]) if first in ("datasets", "features") else first


def _misfit(
    own: dg.PartitionsDefinition | None, read: dg.PartitionsDefinition | None
) -> tuple[str, str] | None:
    """What is said of a reader and of what it reads where their partitions do not fit; those without always do."""
    if not isinstance(own, dg.TimeWindowPartitionsDefinition):
        return None
    if not isinstance(read, dg.TimeWindowPartitionsDefinition):
        return None
    if own.schedule_type != read.schedule_type:
        return f"is {_cadence(own)}", f"is {_cadence(read)}: give both one cadence"
    if own.start < read.start:
        return (
            f"begins {own.start:%Y-%m-%d}",
            f"begins {read.start:%Y-%m-%d}: begin no earlier than what is read",
        )
    return None


def _cadence(partitions: dg.TimeWindowPartitionsDefinition) -> str:
    return partitions.schedule_type.value.lower() if partitions.schedule_type else partitions.cron_schedule


def _places(line: str, defs_folder: Path) -> list[str]:
    """`file:line` of every line of a `defs.yaml` that matches."""
    return [
        f"{_short(str(file))}:{number}"
        for file in sorted(defs_folder.rglob("defs.yaml"))
        for number, text in enumerate(file.read_text().splitlines(), start=1)
        if re.match(line, text)
    ]


def _place_of(who: str, key: str, defs_folder: Path) -> str:
    """`file:line` of a dotted `key` of the component that declares `who`; empty where no file holds it."""
    kind, _, name = who.rpartition("/")
    class_name = {"datasets": "Dataset", "features": "FeatureTable"}.get(kind, "TrainingPipeline")
    path = [int(part) if part.isdecimal() else part for part in ("attributes", *key.split("."))]
    for file in sorted(defs_folder.rglob("defs.yaml")):
        for document in parse_yamls_with_source_position(file.read_text(), str(file)):
            said: Any = document.value
            if str(said.get("type")).endswith(class_name) and said.get("attributes", {}).get("name") == name:
                position, _ = document.source_position_tree.lookup_closest_and_path(path, trace=None)
                return f"{_short(position.filename)}:{position.start.line}"
    return ""


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
            return f"unknown key{did_you_mean(str(error['loc'][-1]).split(' at ')[0], _DOCUMENT_KEYS)}"
        case "value_error":
            return str(error["msg"]).removeprefix("Value error, ")
        case "literal_error":
            given, expected = str(error["input"]), str(error["ctx"]["expected"])
            return f"'{given}' should be {expected}"
        case "string_pattern_mismatch" if error["ctx"]["pattern"] == r"^\w+$":
            return f"'{error['input']}' has other characters than letters, digits and _"
        case _:
            return f"{error['msg']}; found {str(error['input'])[:80]!r}"


def _unknown_types(defs_folder: Path) -> Iterator[str]:
    """Dagster names the missing class, but not the file that asks for it."""
    for file in sorted(defs_folder.rglob("defs.yaml")):
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            match = re.match(r"type:\s*([\w.]+)\s*(#.*)?$", line)
            if match and not _exists(match[1]):
                names = [f"ml_assets.components.{name}" for name in _component_names()]
                yield f"{_short(str(file))}:{number} type: no component '{match[1]}'{did_you_mean(match[1], names)}"


def _exists(path: str) -> bool:
    module, _, name = path.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), name)
    except (ImportError, ValueError):
        return False


def _component_names() -> Sequence[str]:
    return importlib.import_module("ml_assets.components").__all__


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else file
