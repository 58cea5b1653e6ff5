"""All outside parts of one process, made from `Settings` when first used.

What belongs here: which implementation a setting selects. Nothing in `ml_assets/` asks which one it is.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from resources.settings import Settings

if TYPE_CHECKING:
    from resources.artifacts import Artifacts
    from resources.lake import VersionedStore
    from resources.launcher.protocol import TrainingLauncher
    from resources.ledger import Ledger
    from resources.tracker import Tracker


@dataclass(frozen=True)
class Platform:
    """All parts behind their protocols. Cheap to make: each opens when first used."""

    settings: Settings

    @cached_property
    def lake(self) -> "VersionedStore":
        """Versioned tables."""
        from resources.lake.local import LocalStore

        return LocalStore(self.settings.lake_folder)

    @cached_property
    def artifacts(self) -> "Artifacts":
        """Folders of files that outlive a process."""
        from resources.artifacts import artifacts_of

        return artifacts_of(
            self.settings.artifacts_url, self.settings.artifacts_folder, self.settings.s3_endpoint_url
        )

    @cached_property
    def ledger(self) -> "Ledger":
        """Verdicts, acceptances, promotions."""
        from resources.ledger import Ledger

        self.settings.home.mkdir(parents=True, exist_ok=True)
        return Ledger(self.settings.resolved_ledger_url)

    @cached_property
    def tracker(self) -> "Tracker":
        """Training runs and registered versions."""
        from resources.tracker import Tracker

        self.settings.home.mkdir(parents=True, exist_ok=True)
        return Tracker(self.settings.resolved_tracking_uri, self.settings.artifacts_folder)

    @cached_property
    def launcher(self) -> "TrainingLauncher":
        """Starts training."""
        from resources.launcher.local import LocalLauncher

        return LocalLauncher()
