"""Loader of the defs folder: its `defs.yaml` files, and the Python files that define something for Dagster.

Also Dagster's own rules for names, owners and cron schedules, and its type of freshness policies, for checks of a
declaration before it is loaded.

Dagster imports every Python file of a folder that has no `defs.yaml`. But a training script runs when it is imported,
and modules beside it import libraries that this process may lack. One such file took all pipelines down. Not here:
faults in the files (`components.declarations`).

Private area: the tree of components, and validation of definitions. The public `dg.load_from_defs_folder` imports every
file, and also every component of Dagster's integrations for its page, which takes longer than all of our definitions.
The public way to validate a name is to make the definition and to read Dagster's error, which names neither file nor
line, comes without the faults of other keys, and ends the load. The public `FreshnessPolicy.time_window` returns a type
that is not public and alone has the window.
"""

import dataclasses
from pathlib import Path
from types import ModuleType

import dagster as dg
from dagster._core.definitions.freshness import TimeWindowFreshnessPolicy
from dagster._core.definitions.utils import DISALLOWED_NAMES, is_valid_owner
from dagster._utils.schedules import is_valid_cron_schedule
from dagster.components.core.component_tree_state import PLUGIN_COMPONENT_TYPES_JSON_METADATA_KEY
from dagster.components.core.context import ComponentDeclLoadContext
from dagster.components.core.defs_module import ComponentPath, ResolvableToComponentLoc
from dagster.components.core.package_entry import discover_package_objects, get_plugin_entry_points
from dagster.components.core.snapshot import get_package_entry_snap
from dagster_shared.serdes.objects.package_entry import json_for_all_components

from ml_assets.foundation.code.code_version import SourceUnavailable, reached_by

__all__ = [
    "DISALLOWED_NAMES",
    "TimeWindowFreshnessPolicy",
    "defines_nothing",
    "is_valid_cron_schedule",
    "is_valid_owner",
    "load_pipelines",
]


def load_pipelines(project: Path) -> dg.Definitions:
    """Return the definitions of the project that contains the folder `project`; see `dg.load_from_defs_folder`."""
    return _Tree.for_project(project).build_defs()


def defines_nothing(module: str) -> bool:
    """Return True for a module without definitions: none of its imports reaches Dagster. Reads the source only."""
    try:
        return "dagster" not in reached_by([module]).packages
    except (SourceUnavailable, SyntaxError):  # its import will report the fault
        return False


class _Context(ComponentDeclLoadContext):
    def load_defs_relative_python_module(self, path: Path) -> ModuleType:
        name = self.defs_relative_module_name(path)
        return ModuleType(name) if defines_nothing(name) else super().load_defs_relative_python_module(path)


class _Tree(dg.ComponentTree):
    @property
    def decl_load_context(self) -> ComponentDeclLoadContext:
        base = super().decl_load_context
        return _Context(**{field.name: getattr(base, field.name) for field in dataclasses.fields(base)})

    def build_defs(self, loc: ResolvableToComponentLoc | None = None) -> dg.Definitions:
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
