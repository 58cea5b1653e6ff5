"""All outside parts of one process, made from `Settings` at their first use.

Belongs here: the choice of an implementation by a setting. No code in `ml_assets/` depends on the choice. The client of
Kubernetes and Optuna are imported at their first use. The help of a command imports no platform.
"""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import SecretStr

from resources.acting import acting_person
from resources.addresses import Address
from resources.artifacts import Artifacts, artifacts_of
from resources.lake import LakeRefused, VersionedStore
from resources.lake.environments import Environment, EnvironmentView, read_environment
from resources.lake.garbage import GarbageCollector, LakeFSRetention, LocalSweep
from resources.lake.lakefs import LakeFSStore
from resources.lake.lakefs_api import LakeFSApi
from resources.lake.lakefs_setup import audit_hook_is_current, set_up
from resources.lake.local import LocalStore
from resources.lake.migration import Migration
from resources.launcher.local import LocalLauncher
from resources.launcher.protocol import TrainingLauncher
from resources.ledger import Ledger, Person
from resources.online import OnlineStore, open_online_store
from resources.pool import PartitionPool, PoolRefused, ThisProcess
from resources.pool.exchange import Exchange, folder_exchange, store_exchange
from resources.pool.processes import ProcessPool
from resources.settings import Settings
from resources.tracking.sink import SpoolCopies
from resources.tracking.tracker import FILES, Tracker

if TYPE_CHECKING:
    from optuna.storages import RDBStorage


@dataclass(frozen=True)
class Platform:
    """All parts behind their protocols. Cheap to make: each part opens at its first use."""

    settings: Settings
    patience_seconds: float | None = None
    """Seconds of retries if a server does not answer. None: the default of each part, meant for a run."""

    def __reduce__(self) -> tuple[type[Self], tuple[Settings, float | None]]:
        """Travel to another process as settings: open files and connections stay here."""
        return type(self), (self.settings, self.patience_seconds)

    @cached_property
    def lake(self) -> VersionedStore:
        """Versioned storage of tables. In an environment, its branch takes the place of main.

        Raises `EnvironmentMissing` if the settings name an environment that does not exist.
        """
        if self.environment is not None:
            return EnvironmentView(self.whole_lake, self.environment.name)
        return self.whole_lake

    def inside(self, env: str) -> "Platform":
        """Return the platform of an environment."""
        return Platform(self.settings.inside(env), self.patience_seconds)

    @cached_property
    def whole_lake(self) -> VersionedStore:
        """The lake itself, with main and the branches of all environments."""
        if self.settings.lake_url is not None:
            return LakeFSStore(self.lakefs, self.lake_cache)
        return LocalStore(self.settings.lake_folder)

    def lake_at(self, address: str | None, access: Sequence[str] = ()) -> VersionedStore:
        """Return the lake at `address`, to read: `lakefs://repository` or the folder of an embedded lake; by default
        this platform's. `access`: address, key and secret of the lakeFS server; by default this platform's.

        Raises `LakeRefused` if a folder holds no lake.
        """
        if address is None:
            return self.lake
        if address.startswith("lakefs://"):
            changes: dict[str, Any] = {"environment": address.removeprefix("lakefs://").strip("/")}
            if access:
                url, key, secret = access
                changes |= {
                    "lake_url": Address(url),
                    "lake_access_key_id": SecretStr(key),
                    "lake_secret_access_key": SecretStr(secret),
                }
            other = Platform(self.settings.model_copy(update=changes), self.patience_seconds)
            return LakeFSStore(other.lakefs, self.lake_cache)
        if not (Path(address) / "refs.db").is_file():
            raise LakeRefused(f"{address} is not the folder of a lake.")
        return LocalStore(Path(address))

    @cached_property
    def environment(self) -> Environment | None:
        """Environment in which this process works; None on main. Raises `EnvironmentMissing`."""
        if self.settings.env is None:
            return None
        return read_environment(self.settings.home, self.settings.env)

    def make_lake_ready(self) -> list[str]:
        """Set up the lake before its first use; return sentences on the changes. Idempotent."""
        if self.settings.lake_url is None:
            return [
                f"The embedded lake in {self.settings.lake_folder} needs no set-up: its first use creates it."
            ]

        done = set_up(self.lakefs, self.settings.lake_storage, self.lake_cache)
        where = f"{self.settings.environment} on {self.settings.lake_url}"
        return [
            f"repository  {where}: {'created' if done.created else 'existed'}",
            f"protection  main takes merges only: {'switched on' if done.protected else 'was on'}, a write is refused",
            f"audit hook  merges into main need an audit: {'installed' if done.hook_installed else 'was installed'}",
        ]

    @cached_property
    def lake_migration(self) -> Migration:
        """Move from the embedded lake of the home to the repository on lakeFS.

        Raises `LakeRefused` if the home has no embedded lake, or if the settings lack the server or its keys.
        """
        folder = self.settings.lake_folder
        if not (folder / "refs.db").is_file():
            raise LakeRefused(
                f"{folder} holds no embedded lake to move: ML_ASSETS_HOME and ML_ASSETS_ENVIRONMENT name it."
            )
        return Migration(LocalStore(folder), LakeFSStore(self.lakefs, self.lake_cache))

    @cached_property
    def lake_garbage(self) -> GarbageCollector:
        """Collector of contents of the lake that nothing keeps any more."""
        if self.settings.lake_url is not None:
            return LakeFSRetention(self.lakefs, self.whole_lake)

        self.whole_lake.resolve("main")  # the first use creates it
        return LocalSweep(self.settings.lake_folder)

    def audit_hook_is_current(self) -> bool:
        """True if the lake itself refuses merges without an audit. The embedded lake is reached only through this
        platform, so it needs no hook."""
        if self.settings.lake_url is None:
            return True
        return audit_hook_is_current(self.lakefs, self.lake_cache)

    @property
    def lake_cache(self) -> Path:
        """Folder of local copies of lakeFS objects."""
        return self.settings.cache_folder / "lake"

    @cached_property
    def lakefs(self) -> LakeFSApi:
        """Client of the lakeFS repository that the settings name, for its setup and its checks.

        Raises `LakeRefused` if the settings lack the server or its keys.
        """
        of = self.settings
        if of.lake_url is None or of.lake_access_key_id is None or of.lake_secret_access_key is None:
            raise LakeRefused(
                "A lake on lakeFS needs ML_ASSETS_LAKE_URL, ML_ASSETS_LAKE_ACCESS_KEY_ID and "
                "ML_ASSETS_LAKE_SECRET_ACCESS_KEY: set all three, or none for the embedded lake."
            )
        return LakeFSApi(
            of.lake_url.reveal(),
            of.environment,
            of.lake_access_key_id.get_secret_value(),
            of.lake_secret_access_key.get_secret_value(),
            **self._patience("patience"),
        )

    @cached_property
    def artifacts(self) -> Artifacts:
        """Storage of folders of files that outlive a process."""
        of = self.settings
        return artifacts_of(
            of.artifacts_url,
            of.artifacts_folder,
            of.s3_endpoint_url.reveal() if of.s3_endpoint_url else None,
            **self._patience("patience_seconds"),
        )

    @cached_property
    def ledger(self) -> Ledger:
        """Log of verdicts, acceptances, evaluations and promotions."""
        of = self.settings
        self._make_home()
        return Ledger(
            of.resolved_ledger_url.reveal(),
            environment=of.namespace,
            **self._patience("patience_seconds"),
        )

    @cached_property
    def online(self) -> OnlineStore:
        """Newest feature row of each entity. Raises `OnlineStoreRefused` for an address of another kind."""
        of = self.settings
        return open_online_store(
            of.online_url,
            of.own_home / "online.db",
            environment=of.namespace,
            **self._patience("patience_seconds"),
        )

    @cached_property
    def acting(self) -> Person:
        """Person who acts in this process. Raises `IdentityRefused` for a proof that proves no account."""
        return acting_person(self.settings, self.ledger.accounts)

    @cached_property
    def studies(self) -> "RDBStorage":
        """Optuna's storage of studies. The first use creates its tables: call it in a turn of the ledger."""
        from resources.tracking.studies import open_storage

        return open_storage(self.settings.studies_url, **self._patience("patience_seconds"))

    @cached_property
    def tracker(self) -> Tracker:
        """Record of training runs."""
        of = self.settings
        self._make_home()
        if of.s3_endpoint_url is not None:
            os.environ.setdefault(
                "MLFLOW_S3_ENDPOINT_URL", of.s3_endpoint_url.reveal()
            )  # mlflow reads it only from the environment
        # Do not give a foreign MLflow server a folder of this machine as the place of files.
        is_ours = of.artifacts_url is not None or not of.resolved_tracking_uri.reveal().startswith("http")
        files = self.artifacts.address(FILES) if is_ours else None
        # Whoever settles spools delivers them to its own tracker: those of an environment stay in its folder.
        copies = None if of.artifacts_url is None or of.env else SpoolCopies(self.artifacts)
        spools = of.own_home / "artifacts" if of.env else of.artifacts_folder
        return Tracker(of.resolved_tracking_uri.reveal(), spools, files, copies)

    @cached_property
    def pool(self) -> PartitionPool:
        """Pool of the tasks of a range. Raises `PoolRefused` if its workers could not read what this process reads."""
        of = self.settings
        if of.pool == "in-process":
            return ThisProcess()
        if of.pool == "processes":
            return ProcessPool(of.pool_workers, of.pool_after_seconds)
        from resources.pool.ray_pool import RayPool

        if of.has_workers_elsewhere and not (of.lake_url and of.artifacts_url):
            raise PoolRefused(
                f"the workers of Ray at {of.ray_address} cannot read the files of this machine: set ML_ASSETS_LAKE_URL "
                "and ML_ASSETS_ARTIFACTS_URL to servers, or leave out ML_ASSETS_RAY_ADDRESS"
            )
        return RayPool(of.ray_address, of.pool_workers, of.pool_after_seconds)

    @cached_property
    def pool_here(self) -> PartitionPool:
        """Pool whose workers see the files of this machine: its processes in place of workers elsewhere."""
        of = self.settings
        if of.has_workers_elsewhere:
            return ProcessPool(of.pool_workers, of.pool_after_seconds)
        return self.pool

    def exchange(self, near: Path | None = None) -> AbstractContextManager[Exchange]:
        """Return the way of files between this process and the workers of `pool`, for one range, as a block.

        `near`: a folder on the disk that holds them, for workers of this machine; by default the cache.
        """
        cache = self.settings.cache_folder / "pool"
        if self.settings.has_workers_elsewhere:
            return store_exchange(self.artifacts, cache)
        return folder_exchange(near or cache)

    @cached_property
    def launcher(self) -> TrainingLauncher:
        """Launcher of trainings: processes of this machine, or pods."""
        if self.settings.launcher == "kubernetes":
            from resources.launcher.kubernetes.launcher import KubernetesLauncher

            return KubernetesLauncher(
                settings=self.settings.kubernetes,
                artifacts=self.artifacts,
                s3_endpoint_url=self.settings.s3_endpoint_url,
            )
        return LocalLauncher()

    def variable(self, name: str) -> str | None:
        """Return an environment variable that a declaration names for a credential; None if it is not set or empty."""
        return os.environ.get(name) or None

    def _make_home(self) -> None:
        """Create the folder of this process's records. The folder of an environment must exist."""
        if self.environment is None:
            self.settings.home.mkdir(parents=True, exist_ok=True)

    def _patience(self, argument: str) -> dict[str, float]:
        """Return `patience_seconds` as the keyword argument of a part; empty if it is not set."""
        return {} if self.patience_seconds is None else {argument: self.patience_seconds}
