"""Documents of all `defs.yaml` files, their faults, and the sources that they declare.

Each fault has file, line, key, and the nearest right word. Not here: faults across documents (`declarations`), and the
rules of a section, which the section itself declares.
"""

import copy
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from dagster_shared.yaml_utils.source_position import ValueAndSourcePositionTree
from pydantic import TypeAdapter, ValidationError

from ml_assets.components.specs import DatasetSpec
from ml_assets.dagster_host.defs_folder import declaring_files
from ml_assets.dagster_host.yaml_documents import documents_in
from ml_assets.data.sources.kinds import kind
from ml_assets.data.sources.preview import Preview, faults, preview
from ml_assets.data.sources.protocol import SourceSection, SourceTable
from ml_assets.foundation.checkout import ROOT
from ml_assets.foundation.sections import WrongKey
from resources.platform import Platform
from resources.words import did_you_mean

if TYPE_CHECKING:
    from ml_assets.extras.streams.kafka_source import DeadLetter

_KEYS = ("attributes", "post_processing", "requirements", "template_vars_module", "type")
COMPONENTS = "ml_assets.components."
"""Begin of the `type` of each component of this platform."""


class DefsFiles:
    """The `defs.yaml` files of a folder, each read at most once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._documents: dict[Path, Sequence[ValueAndSourcePositionTree]] = {}

    @cached_property
    def _texts(self) -> Mapping[Path, str]:
        # A file in another encoding declares nothing; `_faults_of_file` names it.
        return {
            file: file.read_text(encoding="utf-8", errors="replace") for file in declaring_files(self._folder)
        }

    def documents(self) -> Iterator[ValueAndSourcePositionTree]:
        """Yield every parsed document. Skip files that are not YAML."""
        for file in self._texts:
            yield from self._parsed(file)

    def declaring(self, name: str) -> Iterator[Path]:
        """Yield the files with a component of this name. Only files that seem to name it are parsed."""
        line = re.compile(rf"""name["']?\s*:\s*["']?{re.escape(name)}\b""")
        for file, text in self._texts.items():
            if line.search(text) and any(_name(one) == name for one in self._parsed(file)):
                yield file

    def types(self) -> set[str]:
        """Return the types of all documents. A file is parsed only if a document of it has no line that says it."""
        line = re.compile(r"""^\{?["']?type["']?\s*:\s*["']?([\w.]+)""", re.MULTILINE)
        found: set[str] = set()
        for file, text in self._texts.items():
            documents = [
                one for one in re.split(r"^---(?=\s|$)", text, flags=re.MULTILINE) if _says_anything(one)
            ]
            said = [line.search(one) for one in documents]
            found |= {one[1] for one in said if one}
            if not all(said):  # as `{attributes: …, type: …}`
                found |= {str(_type(one)) for one in self._parsed(file)}
        return found

    def lines(self, pattern: str) -> list[str]:
        """Return `file:line` of every line that matches `pattern` from its begin."""
        return [
            f"{short(str(file))}:{number}"
            for file, text in self._texts.items()
            for number, line in enumerate(text.splitlines(), start=1)
            if re.match(pattern, line)
        ]

    def _parsed(self, file: Path) -> Sequence[ValueAndSourcePositionTree]:
        if file not in self._documents:
            try:
                self._documents[file] = documents_in(file)
            except yaml.MarkedYAMLError:
                self._documents[file] = ()
        return self._documents[file]


def _says_anything(text: str) -> bool:
    """Return False for a part of a file with comments and blanks alone."""
    return any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines())


def _type(document: ValueAndSourcePositionTree) -> Any:
    said: Any = document.value
    return said.get("type") if isinstance(said, dict) else None


def _name(document: ValueAndSourcePositionTree) -> str | None:
    """Return the name of the component that a document declares; None for anything else."""
    said: Any = document.value
    attributes: Any = said.get("attributes") if isinstance(said, dict) else None
    name = attributes.get("name") if isinstance(attributes, dict) else None
    return name if isinstance(name, str) else None


def faults_in(defs_folder: Path) -> list[str]:
    """Return the faults of the documents under `defs_folder`, one line each."""
    return [line for file in declaring_files(defs_folder) for line in _faults_of_file(file)]


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


def _faults_of_file(file: Path) -> Iterator[str]:
    try:
        documents = documents_in(file)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = (error.problem or error.context or "").partition("\n")[0]
        yield f"{short(str(file))}{line}: not valid YAML: {problem}"
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
    return [COMPONENTS + name for name in importlib.import_module(COMPONENTS.rstrip(".")).__all__]


def _nearest_type(path: str) -> str:
    """Return the end of the sentence about an unknown type. People often leave out the package, or half of it."""
    by_name = {each.rpartition(".")[2]: each for each in _component_types()}
    nearest = get_close_matches(path.rpartition(".")[2], by_name, n=1)
    return f": did you mean '{by_name[nearest[0]]}'?" if nearest else did_you_mean(path, by_name.values())


Keys = tuple[str | int, ...]
"""Keys and indexes from the attributes to a part of them."""


def attribute_faults(model: Any, attributes: Any) -> list[tuple[Keys, str]]:
    """Return path and words of each fault that the pydantic `model` finds in the attributes of a YAML document.

    pydantic does not look into a section that has a wrong key. So each wrong key gets its right name in a copy, and the
    copy is validated again, until every section was read. A rule about several sections is still tried only when each
    of them is right.
    """
    mended: Any = {} if attributes is None else copy.deepcopy(attributes)
    written: dict[Keys, str | int] = {}
    names: dict[Keys, str] = {}
    while True:
        errors = _errors(model, mended)
        found = [(_as_written(one["loc"], mended, written), _words(one)) for one in errors]
        wrong = [isinstance(_raised(one), WrongKey) for one in errors]
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


def _mend(part: Any, path: Keys, fault: Any, written: dict[Keys, str | int]) -> bool:
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
    if fault.meant is not None and fault.meant not in section:
        section[fault.meant] = value
        written[*above, fault.meant] = key
    return True


def _below(part: Any, step: str | int) -> Any:
    """Return the part at `step`; `part` itself if `step` is the kind of a section, which pydantic puts into paths."""
    try:
        return part[step]
    except (LookupError, TypeError):
        return part


def _as_written(path: Keys, attributes: Any, written: Mapping[Keys, str | int]) -> Keys:
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


def _smallest(faults: list[tuple[Keys, str]]) -> list[tuple[Keys, str]]:
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


class SourceNotDeclared(Exception):
    """No dataset has this name, or its declaration has faults. Each line of the message names the remedy."""


@dataclass(frozen=True, kw_only=True)
class DeclaredSource:
    """Source of a dataset, and the facts of the table that it fills."""

    section: SourceSection
    table: SourceTable
    """Without a contract if the declaration has no column yet."""

    @property
    def kind(self) -> str:
        """Kind of the source."""
        return kind(self.section)

    def preview(self, platform: Platform) -> Preview:
        """Read some of the newest rows. Raises `SourceRefused`, and the errors of a user's function."""
        return preview(self.section, self.table, platform)

    def dead_letters(
        self, platform: Platform, count: int
    ) -> tuple[Mapping[str, int], Sequence["DeadLetter"]]:
        """Return kind → number of all dead letters of a stream, and the newest ones. Reads the lake alone."""
        from ml_assets.extras.streams.kafka_log import StreamLog
        from ml_assets.extras.streams.kafka_source import newest_dead_letters

        log = StreamLog(platform.lake, self.table.name)
        version = log.newest()
        counts = version.state.dead if version.state else {}
        return counts, newest_dead_letters(log, version, self.table.contract, count)

    def faults(self, platform: Platform) -> list[str]:
        """Return a sentence with a remedy for each fault."""
        return faults(self.section, self.table, platform)


def declared_names(defs_folder: Path) -> list[str]:
    """Return the names of all datasets below `defs_folder`, sorted."""
    return sorted(name for name, _ in _datasets(defs_folder))


def declared_source(defs_folder: Path, name: str) -> DeclaredSource:
    """Return the source of the dataset `name`. Raises `SourceNotDeclared`."""
    document = next((one for other, one in _datasets(defs_folder) if other == name), None)
    if document is None:
        names = ", ".join(f"datasets/{one}" for one in declared_names(defs_folder))
        raise SourceNotDeclared(f"no dataset is named '{name}'; there are: {names or 'none'}")
    attributes: dict[str, Any] = document.value["attributes"]
    is_draft = not _has_columns(attributes.get("contract"))
    if is_draft:
        attributes = attributes | {"contract": _any_contract(attributes.get("source"))}
    if faults := lines_of_faults(document, DatasetSpec, attributes):
        raise SourceNotDeclared("\n".join(faults))
    spec = DatasetSpec.model_validate(attributes)
    table = spec.source_table
    if is_draft:
        table = replace(table, contract=None)
    return DeclaredSource(section=spec.source, table=table)


def _datasets(defs_folder: Path) -> Iterator[tuple[str, ValueAndSourcePositionTree]]:
    for document in DefsFiles(defs_folder).documents():
        if (name := _name(document)) and str(document.value.get("type")).endswith(".Dataset"):
            yield name, document


def _any_contract(source: object) -> dict[str, Any]:
    """Return a contract with a key and an event time, which some kinds of sources need."""
    said: Any = source.get("time_column") if isinstance(source, Mapping) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    moment = said if isinstance(said, str) and said else "unknown_at"
    return {
        "primary_key": ["unknown_key"],
        "event_time": moment,
        "columns": [{"name": "unknown_key", "dtype": "string"}, {"name": moment, "dtype": "datetime"}],
    }


def _has_columns(contract: object) -> bool:
    return isinstance(contract, Mapping) and bool(contract.get("columns"))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
