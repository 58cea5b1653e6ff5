"""One typed `Settings`, read once at the edge from environment variables `ML_ASSETS_*`.

Nothing below the edge (definitions, CLI, tests) reads the environment. Defaults are the embedded parts: a
folder per concern under `home`, so a laptop needs no server.
"""

import getpass
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Where everything outside the process lives."""

    model_config = SettingsConfigDict(env_prefix="ML_ASSETS_", frozen=True)

    home: Path = Field(default_factory=lambda: Path.home() / ".ml-assets")
    """Root of the embedded parts."""
    environment: str = "local"
    """Name of the lake repository: one per environment."""
    tracking_uri: str | None = None
    """MLflow; by default SQLite under `home`."""
    ledger_url: str | None = None
    """SQLAlchemy address of the ledger; by default SQLite under `home`."""
    author: str = Field(default_factory=getpass.getuser)
    """Who acts, for approvals, promotions and run records."""
    ui_url: str = "http://127.0.0.1:3000"
    """Where people reach Dagster's pages, for links."""

    @property
    def lake_folder(self) -> Path:
        """The embedded lake."""
        return self.home / "lake" / self.environment

    @property
    def artifacts_folder(self) -> Path:
        """Training folders, bundles and reports."""
        return self.home / "artifacts"

    @property
    def cache_folder(self) -> Path:
        """What can be rebuilt from the lake: training shards."""
        return self.home / "cache"

    @property
    def dagster_home(self) -> Path:
        """Dagster's own home, with the `dagster.yaml` the CLI writes there."""
        return self.home / "dagster"

    @property
    def resolved_tracking_uri(self) -> str:
        """`tracking_uri`, or SQLite under `home`."""
        return self.tracking_uri or f"sqlite:///{self.home}/mlflow.db"

    @property
    def resolved_ledger_url(self) -> str:
        """`ledger_url`, or SQLite under `home`."""
        return self.ledger_url or f"sqlite:///{self.home}/ledger.db"
