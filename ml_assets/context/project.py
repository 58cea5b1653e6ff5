"""Project of a context: platform, definitions, declared models and tables, and Dagster's storage.

Not here: settings and folders (`context.home`), what a person asks for (`context.context`).
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from resources.platform import Platform
from resources.settings import Settings

if TYPE_CHECKING:
    import dagster as dg

    from ml_assets.context.declared import DeclaredComponents
    from ml_assets.data.tables.reader import TableReader
    from ml_assets.model.release.bundle_store import BundleStore
    from ml_assets.model.release.releases import Releases


@dataclass(frozen=True)
class Project:
    """Platform and declarations in one home. Each part is imported and made at its first use."""

    settings: Settings
    patience_seconds: float | None = None
    """Wait for servers; passed to `Platform`."""

    @cached_property
    def platform(self) -> Platform:
        """Platform of these settings."""
        return Platform(self.settings, self.patience_seconds)

    @cached_property
    def declared(self) -> "DeclaredComponents":
        """Declared models and tables. Loads Dagster."""
        from ml_assets.context.declared import DeclaredComponents

        return DeclaredComponents(self.settings)

    @cached_property
    def defs(self) -> "dg.Definitions":
        """All definitions."""
        return self.declared.definitions

    def defs_of(self, *assets: str) -> "dg.Definitions":
        """Return definitions that hold these assets, such as `MODEL` or `datasets/NAME`, and all tables behind them.

        They may hold more: all, if all are loaded already, or if no `defs.yaml` alone declares one of the assets.
        """
        if "defs" in vars(self):
            return self.defs
        return self.declared.definitions_of(assets, self.platform) or self.defs

    @cached_property
    def instance(self) -> "dg.DagsterInstance":
        """Dagster's storage. Raises `HomeRefused` if its server does not answer."""
        from ml_assets.context.declared import open_storage

        return open_storage(self.settings)

    @property
    def commands_folder(self) -> Path:
        """Folder with a file for each run of a command, locked while its process lives."""
        return self.settings.dagster_home / "commands"

    def reader(self, ref: str = "main") -> "TableReader":
        """Return a reader of the lake at the commit that `ref` names now."""
        from ml_assets.data.tables.reader import TableReader

        return TableReader.at(self.platform.lake, ref)

    @property
    def releases(self) -> "Releases":
        """Versions of the models, and the decisions about them."""
        from ml_assets.model.release.releases import releases_of

        return releases_of(self.platform)

    @property
    def bundles(self) -> "BundleStore":
        """Bundles of the versions."""
        from ml_assets.model.release.releases import bundles_of

        return bundles_of(self.platform)
