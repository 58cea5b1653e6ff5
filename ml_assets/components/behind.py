"""Definitions of single pipelines and tables, with all tables behind them, loaded without the other pipelines.

A command about one pipeline costs what its own files cost, and a fault in another pipeline does not stop it. Here:
finding the files. Not here: reading and building them (`dagster_host.defs_folder`), all definitions (`assembly`).
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import dagster as dg

from ml_assets.components.base import SpecComponent
from ml_assets.components.dataset import Dataset
from ml_assets.components.declarations import DeclarationRefused, in_one_line, require_consistent
from ml_assets.components.documents import COMPONENTS, DefsFiles
from ml_assets.components.feature_table import FeatureTable
from ml_assets.components.training_pipeline import TrainingPipeline
from ml_assets.dagster_host.defs_folder import PipelineTree
from ml_assets.data.tables.declared import DeclaredTable

Component = TypeVar("Component", bound=SpecComponent)

TABLES: Mapping[str, type[Dataset] | type[FeatureTable]] = {"datasets": Dataset, "features": FeatureTable}
"""First part of a table's asset key → its component. Other keys begin with the name of a model."""


def declared_as(asset: str) -> str:
    """Return the name of the component that declares `asset`: `datasets/NAME`, `features/NAME`, or that of a model."""
    first, *rest = asset.split("/")
    return "/".join([first, *rest[:1]]) if first in TABLES else first


def _component_of(declared: str) -> tuple[type[SpecComponent], str]:
    kind, _, name = declared.rpartition("/")
    return TABLES.get(kind, TrainingPipeline), name


class SingleComponents:
    """Components of a tree by their names."""

    def __init__(self, tree: PipelineTree) -> None:
        self._tree = tree
        self._files = DefsFiles(tree.defs_module_path)

    def find(self, of_type: type[Component], name: str) -> Component | None:
        """Return the component that declares `name`; None if none does, or several do, or only the whole tree knows.

        Raises `DeclarationRefused` if its document has faults.
        """
        with in_one_line(self._tree.defs_module_path):
            found = [
                self._tree.load_component(one.place, of_type)
                for folder in self._folders(of_type, name)
                for one in self._tree.declared_in(folder)
                if issubclass(one.type, of_type) and one.attributes.get("name") == name
            ]
        return found[0] if len(found) == 1 else None

    def definitions_of(self, assets: Iterable[str]) -> dg.Definitions | None:
        """Return the definitions of the files that declare `assets`, and of the tables behind them at any depth.

        None if only all definitions say it: one of the files is not found, or a Python file or a component of another
        package defines something, which may be a check of one of these assets. Raises `DeclarationRefused` for faults
        in these files.
        """
        if any(not one.startswith(COMPONENTS) for one in self._files.types()) or self._tree.has_python():
            return None
        built: dict[Path, dg.Definitions] = {}
        known: set[str] = set()
        todo = {declared_as(one) for one in assets}
        with in_one_line(self._tree.defs_module_path):
            while todo:
                known |= todo
                folders = {one: list(self._folders(*_component_of(one))) for one in sorted(todo)}
                if not all(folders.values()):
                    return None
                new = dict.fromkeys(one for some in folders.values() for one in some if one not in built)
                built |= {one: self._tree.build_defs(one) for one in new}
                todo = {declared_as(one) for folder in new for one in _inputs_of(built[folder])} - known
        pipelines = dg.Definitions.merge(*built.values())
        require_consistent(pipelines, self._tree.defs_module_path)
        return pipelines

    def table(self, name: str) -> DeclaredTable | None:
        """Return the declaration of the table `name`; None if `find` finds none, or its document has faults."""
        kind, _, rest = name.partition("/")
        of_type = TABLES.get(kind)
        try:
            found = self.find(of_type, rest) if of_type else None
        except DeclarationRefused:  # of a pipeline that nobody asked for
            return None
        return found and DeclaredTable.of(found.table)

    def _folders(self, of_type: type[SpecComponent], name: str) -> Iterator[Path]:
        """Yield the folders with a document of this type and name."""
        for file in self._files.declaring(name):
            declared = self._tree.declared_in(file.parent)
            if any(issubclass(one.type, of_type) and one.attributes.get("name") == name for one in declared):
                yield file.parent


def _inputs_of(defs: dg.Definitions) -> Iterator[str]:
    for asset in defs.assets or ():
        if isinstance(asset, dg.AssetsDefinition):
            yield from (key.to_user_string() for key in asset.dependency_keys if key not in asset.keys)
