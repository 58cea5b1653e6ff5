"""Sources of the declared datasets, read from the `defs.yaml` files; a dataset may still lack its contract's columns.

Dagster loads a dataset only with a whole contract, but the source is what tells its columns.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dagster_shared.yaml_utils.source_position import ValueAndSourcePositionTree

from ml_assets.components.documents import documents_of, lines_of_faults
from ml_assets.components.specs import DatasetSpec
from ml_assets.data.sources.dead_letters import DeadLetter, newest_dead_letters
from ml_assets.data.sources.kinds import AnySource
from ml_assets.data.sources.preview import Preview, faults, preview
from ml_assets.data.sources.protocol import SourceTable
from ml_assets.data.sources.stream_log import StreamLog
from resources.platform import Platform


class SourceNotDeclared(Exception):
    """No dataset has this name, or its declaration has faults. Each line of the message names the remedy."""


@dataclass(frozen=True, kw_only=True)
class DeclaredSource:
    """Source of a dataset, and the facts of the table that it fills."""

    section: AnySource
    table: SourceTable
    """Without a contract if the declaration has no column yet."""

    def preview(self, platform: Platform) -> Preview:
        """Read some of the newest rows. Raises `SourceRefused`, and the errors of a user's function."""
        return preview(self.section, self.table, platform)

    def dead_letters(self, platform: Platform, count: int) -> tuple[Mapping[str, int], Sequence[DeadLetter]]:
        """Return kind → number of all dead letters of a stream, and the newest ones. Reads the lake alone."""
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
    for document in documents_of(defs_folder):
        said: Any = document.value
        if not isinstance(said, dict) or not str(said.get("type")).endswith(".Dataset"):  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            continue
        attributes: Any = said.get("attributes")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if isinstance(attributes, dict) and isinstance(attributes.get("name"), str):  # pyright: ignore[reportUnknownMemberType]
            yield attributes["name"], document


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
