"""Loader of the defs folder: its `defs.yaml` files, and the Python files that define something for Dagster.

Also Dagster's own rules for names, owners and cron schedules, and its type of freshness policies, for checks of a
declaration before it is loaded.

Dagster imports every Python file of a folder that has no `defs.yaml`. But a training script runs when it is imported,
and modules beside it import libraries that this process may lack. One such file took all pipelines down. Not here:
faults in the files (`components.declarations`).

Private area: the tree of components, and validation of definitions. The public `dg.load_from_defs_folder` imports every
file, and also every component of Dagster's integrations for its page, which takes longer than all of our definitions.
It lists the whole tree again for each component, so its time grows with the square of the number of pipelines, and it
cannot load a single pipeline.
The public way to validate a name is to make the definition and to read Dagster's error, which names neither file nor
line, comes without the faults of other keys, and ends the load. The public `FreshnessPolicy.time_window` returns a type
that is not public and alone has the window.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
from dagster._core.definitions.freshness import TimeWindowFreshnessPolicy
from dagster._core.definitions.utils import DISALLOWED_NAMES, is_valid_owner
from dagster._utils.schedules import is_valid_cron_schedule
from dagster.components.core.component_tree_state import PLUGIN_COMPONENT_TYPES_JSON_METADATA_KEY
from dagster.components.core.context import ComponentDeclLoadContext
from dagster.components.core.decl import (
    ComponentDecl,
    DefsFolderDecl,
    YamlFileDecl,
    build_component_decl_from_yaml_document,
    build_filesystem_component_decl_from_context,
)
from dagster.components.core.defs_module import (
    EXPLICITLY_IGNORED_GLOB_PATTERNS,
    ComponentLoc,
    ComponentPath,
    ResolvableToComponentLoc,
    find_defs_or_component_yaml,
)
from dagster.components.core.package_entry import discover_package_objects, get_plugin_entry_points
from dagster.components.core.snapshot import get_package_entry_snap
from dagster_shared.serdes.objects.package_entry import json_for_all_components

from ml_assets.dagster_host.yaml_documents import documents_in
from ml_assets.foundation.code.code_version import SourceUnavailable, reached_by

__all__ = [
    "DISALLOWED_NAMES",
    "DeclaredComponent",
    "PipelineTree",
    "TimeWindowFreshnessPolicy",
    "declaring_files",
    "defines_nothing",
    "is_valid_cron_schedule",
    "is_valid_owner",
]


def defines_nothing(module: str) -> bool:
    """Return True for a module without definitions: none of its imports reaches Dagster. Reads the source only."""
    try:
        return "dagster" not in reached_by([module]).packages
    except (SourceUnavailable, SyntaxError):  # its import will report the fault
        return False


def declaring_files(folder: Path) -> list[Path]:
    """Return the files with components in `folder` and below, sorted: one of each folder, `defs.yaml` if it has several
    of the names that Dagster reads."""
    folders = {file.parent for file in folder.rglob("*.y*ml")}
    return sorted(file for one in folders if (file := find_defs_or_component_yaml(one)) is not None)


@dataclass(frozen=True, kw_only=True)
class DeclaredComponent:
    """Document of a `defs.yaml`, not yet validated."""

    folder: Path
    """Folder of the file."""
    type: type[dg.Component]
    attributes: Mapping[str, Any]
    """Values under `attributes` as they are written; empty without any."""
    place: ComponentLoc
    """Name of the document for `PipelineTree.load_component`."""


class _Context(ComponentDeclLoadContext):
    def load_defs_relative_python_module(self, path: Path) -> ModuleType:
        name = self.defs_relative_module_name(path)
        return ModuleType(name) if defines_nothing(name) else super().load_defs_relative_python_module(path)


class PipelineTree(dg.ComponentTree):
    """Components of a defs folder, each read and built at most once: all, or those of single files.

    `for_project(folder)` opens the tree of the project that contains `folder`.
    """

    @property
    def decl_load_context(self) -> ComponentDeclLoadContext:
        """Context of the root, which imports only Python files that define something."""
        base = super().decl_load_context
        return _Context(**{field.name: getattr(base, field.name) for field in dataclasses.fields(base)})

    def build_defs(self, loc: ResolvableToComponentLoc | None = None) -> dg.Definitions:
        """Return the definitions at `loc`, a folder or a document; without it, all of the project."""
        if loc is None:
            children = self.find_root_decl().iterate_child_component_decls()
            return dg.Definitions.merge(
                *(self.build_defs(child.loc) for child in children), self._documented()
            )
        if isinstance(loc, ComponentPath) and loc.file_path.suffix == ".py":
            name = self.decl_load_context.for_component_loc(loc).defs_relative_module_name(loc.file_path)
            if defines_nothing(name):
                return dg.Definitions()
        return super().build_defs(loc)

    def declared_in(self, folder: Path) -> Sequence[DeclaredComponent]:
        """Return the documents of the `defs.yaml` in `folder`, whose components can be loaded without all others.

        Empty if another file decides about it: a folder above that has a file of its own, or one that Dagster skips.
        """
        if self._is_passed_over(folder):
            return ()
        decl = self._decl_of(folder)
        if not isinstance(decl, YamlFileDecl):
            return ()
        return [
            DeclaredComponent(
                folder=folder,
                type=one.component_type,
                attributes=(one.component_file_model and one.component_file_model.attributes) or {},
                place=one.loc,
            )
            for one in decl.decls
        ]

    def _is_passed_over(self, path: Path) -> bool:
        """True for a folder or Python file that is not read for itself: Dagster skips it or one above, or one above has
        a file that decides about all below."""
        above = [one for one in path.parents if one.is_relative_to(self.defs_module_path)]
        return any(map(_is_skipped, (path, *above))) or any(map(find_defs_or_component_yaml, above))

    def has_python(self) -> bool:
        """True if a Python file that Dagster imports defines something. Reads the sources only."""
        context = self.decl_load_context
        for file in sorted(self.defs_module_path.rglob("*.py")):
            if self._is_passed_over(file):
                continue
            place = context.for_component_loc(ComponentPath.from_path(file))
            if not defines_nothing(place.defs_relative_module_name(file)):
                return True
        return False

    def _get_filesystem_decl(self) -> ComponentDecl:
        decl = self._decl_of(self.defs_module_path)
        assert decl is not None  # the folder of a package is never empty
        return decl

    def _decl_of(self, folder: Path) -> ComponentDecl | None:
        """Return the declaration of `folder`. All below it are noted, too: Dagster would search the tree for each."""
        loc = ComponentPath.from_path(folder)
        known = self.state_tracker.get_cache_data(loc).component_decl
        if known is None and (known := _decl_at(self.decl_load_context.for_component_loc(loc))) is not None:
            for below, decl in known.iterate_loc_component_decl_pairs():
                self.state_tracker.set_cache_data(below, component_decl=decl)
        return known

    def _documented(self) -> dg.Definitions:
        """Return the component types for Dagster's page of components, without those of its integrations."""
        entries = [
            entry.value for entry in get_plugin_entry_points() if not entry.value.startswith("dagster_")
        ]
        types = [
            get_package_entry_snap(key, found) for key, found in discover_package_objects(entries).items()
        ]
        return dg.Definitions(
            metadata={PLUGIN_COMPONENT_TYPES_JSON_METADATA_KEY: json_for_all_components(types)},
            component_tree=self,
        )


def _decl_at(context: ComponentDeclLoadContext) -> ComponentDecl | None:
    """Return what Dagster's `build_filesystem_component_decl_from_context` does; `defs.yaml` is read by libyaml."""
    path = context.path
    file = find_defs_or_component_yaml(path)
    if file is None and path.is_dir():
        found = {
            one: _decl_at(context.for_component_loc(ComponentPath.from_path(one)))
            for one in sorted(path.iterdir())
            if not _is_skipped(one)
        }
        children = {one: decl for one, decl in found.items() if decl is not None}
        if not children:
            return None
        return DefsFolderDecl(
            context=context,
            loc=ComponentPath.from_path(path),
            children=children,
            source_tree=None,
            component_file_model=None,
        )
    documents = [] if file is None else documents_in(file)
    if not documents:  # a Python file, or a YAML file that Dagster refuses
        return build_filesystem_component_decl_from_context(context)
    places = [ComponentPath.from_path(path, number) for number in range(len(documents))]
    decls: list[Any] = [
        build_component_decl_from_yaml_document(context.for_component_loc(place), document, place)
        for place, document in zip(places, documents, strict=True)
    ]
    return YamlFileDecl(
        loc=ComponentPath.from_path(path),
        context=context,
        decls=decls,
        source_positions=[one.source_position_tree.position for one in documents],
    )


def _is_skipped(path: Path) -> bool:
    """True for a name that Dagster ignores, such as `.ipynb_checkpoints`."""
    return any(Path(path.name).match(pattern) for pattern in EXPLICITLY_IGNORED_GLOB_PATTERNS)
