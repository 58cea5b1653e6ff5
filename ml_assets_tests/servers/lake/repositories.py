"""One repository of the real lakeFS, as the tests make it, look at it and open it.

Opening goes through the same settings as the platform's own; what tests do by hand goes through the client.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from resources.lake.lakefs import LakeFSStore
from resources.lake.lakefs_api import LakeFSApi
from resources.lake.lakefs_content import PRESIGN_FROM
from resources.lake.lakefs_setup import create_repository, protect, set_up
from resources.settings import Settings


class Servers(Protocol):
    """What these tests use of the fixture `servers`."""

    def settings(self, home: Path) -> Settings: ...

    def kill(self, name: str) -> None: ...

    def restart(self, name: str) -> None: ...

    def freeze(self, name: str) -> None: ...

    def thaw(self, name: str) -> None: ...


@dataclass(frozen=True)
class Repository:
    """A repository of the server, existing or not."""

    servers: Servers
    name: str
    cache: Path

    @property
    def settings(self) -> Settings:
        return self.servers.settings(self.cache.parent / "home")

    def api(self, *, key: str | None = None, timeout: float = 60.0, patience: float = 30.0) -> LakeFSApi:
        """Calls on it; `key` instead of the right secret."""
        of = self.settings
        assert of.lake_url
        assert of.lake_access_key_id
        assert of.lake_secret_access_key
        return LakeFSApi(
            of.lake_url,
            self.name,
            of.lake_access_key_id.get_secret_value(),
            key or of.lake_secret_access_key.get_secret_value(),
            timeout=timeout,
            patience=patience,
        )

    def make(self) -> "Repository":
        """Create it with a protected main, and without a gate: the contract of every lake knows no audits."""
        create_repository(self.api(), self.settings.lake_storage)
        protect(self.api())
        return self

    def make_ready(self) -> "Repository":
        """Create it as `ml-assets lake init` does."""
        set_up(self.api(), self.settings.lake_storage, self.cache)
        return self

    def store(
        self, *, presign_from: int | None = PRESIGN_FROM, timeout: float = 60.0, patience: float = 30.0
    ) -> LakeFSStore:
        """A store of its own, with nothing remembered but the cache."""
        return LakeFSStore(
            self.api(timeout=timeout, patience=patience), self.cache, presign_from=presign_from
        )

    def merge_by_hand(self, source: str, metadata: dict[str, str]) -> Any:
        """What anybody can ask the server for, past our store."""
        api = self.api()
        merge = api.model("Merge", message="by hand", metadata=metadata)
        return api.ask_once("refs_api", "merge_into_branch", source, "main", merge=merge)
