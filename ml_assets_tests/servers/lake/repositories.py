"""One repository of the real lakeFS, as the tests make it, look at it and open it.

What tests do by hand, past our store, goes through the client library.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ml_assets_tests.servers.running_servers import RunningServers
from resources.lake.lakefs import LakeFSStore
from resources.lake.lakefs_api import LakeFSApi
from resources.lake.lakefs_content import PRESIGN_FROM, Content, ContentCache
from resources.lake.lakefs_setup import PATH, create_repository, protect, set_up

STORAGE = "s3://lake/repositories"


@dataclass(frozen=True)
class Repository:
    """A repository of the server, existing or not."""

    servers: RunningServers
    name: str
    cache: Path

    def api(
        self,
        *,
        url: str | None = None,
        secret: str | None = None,
        timeout: float = 60.0,
        patience: float = 30.0,
    ) -> LakeFSApi:
        """Calls on it; `url` and `secret` instead of the right ones."""
        record = self.servers.record
        return LakeFSApi(
            url or record.url("lakefs"),
            self.name,
            record.lakefs_key,
            secret or record.lakefs_secret,
            timeout=timeout,
            patience=patience,
        )

    def make(self) -> "Repository":
        """Create it with a protected main, and without a audit hook: the contract of every lake knows no audits."""
        create_repository(self.api(), STORAGE)
        protect(self.api())
        return self

    def make_ready(self) -> "Repository":
        """Create it as `ml-assets lake init` does."""
        set_up(self.api(), STORAGE, self.cache)
        return self

    def store(
        self, *, presign_from: int | None = PRESIGN_FROM, timeout: float = 60.0, patience: float = 30.0
    ) -> LakeFSStore:
        """A store of its own, with nothing remembered but the cache."""
        return LakeFSStore(
            self.api(timeout=timeout, patience=patience), self.cache, presign_from=presign_from
        )

    def elsewhere(self, name: str) -> "Repository":
        """The same repository as another machine sees it: with an empty cache."""
        return replace(self, cache=self.cache.with_name(name))

    def merge_by_hand(self, source: str, metadata: dict[str, str]) -> Any:
        """Merge past our store, as anybody can ask the server to."""
        api = self.api()
        merge = api.model("Merge", message="by hand", metadata=metadata)
        return api.ask_once("refs_api", "merge_into_branch", source, "main", merge=merge)

    def write_audit_hook(self, branch: str, content: bytes) -> None:
        """Change the audit hook on a branch and commit, as anybody may through the server's API."""
        api = self.api()
        Content(api, ContentCache(self.cache)).upload(branch, PATH, content)
        api.ask("commits_api", "commit", branch, api.model("CommitCreation", message="by hand"))

    def remove_audit_hook(self, branch: str) -> None:
        """Take the audit hook away on a branch and commit, as anybody may."""
        api = self.api()
        api.ask("objects_api", "delete_object", branch, PATH)
        api.ask("commits_api", "commit", branch, api.model("CommitCreation", message="by hand"))
