"""One typed `Settings`, read once at the edge from environment variables `ML_ASSETS_*`.

Nothing below the edge (definitions, CLI, tests) reads the environment. Defaults are the embedded parts: a
folder per concern under `home`, so a laptop needs no server. Each server is an address; docs/how-to/servers.md has
them all. An empty variable counts as not set. Credentials of S3 are botocore's business (`AWS_*` of the process)
and no setting of ours.
"""

import getpass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from resources.addresses import Address


class Mount(BaseModel):
    """A folder of every node that pods may read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host_path: str
    mount_path: str


class KubernetesSettings(BaseSettings):
    """Cluster on which trainings run; a pipeline's `resources` say what each of them gets."""

    model_config = SettingsConfigDict(env_prefix="ML_ASSETS_KUBERNETES_", env_ignore_empty=True, frozen=True)

    context: str | None = None
    """A context of the kubeconfig; by default the cluster this process runs in, else the current context."""
    namespace: str = "ml-assets"
    image: str | None = None
    """Image of the workers: the trainer image, `registry/name@sha256:…`."""
    command: tuple[str, ...] = ("python", "-m", "ml_assets.training.node.pod")
    """JSON list; what a pod runs."""
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    """JSON object; more variables of every pod."""
    mounts: tuple[Mount, ...] = ()
    """JSON list of `{"host_path", "mount_path"}`: folders of the nodes, read-only."""
    s3_secret: str = "ml-assets-s3"
    """Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for the pods."""
    s3_endpoint_url: Address | None = None
    """`ML_ASSETS_S3_ENDPOINT_URL` as pods see it, where that differs."""
    unschedulable_seconds: float = Field(default=120.0, gt=0)
    """Seconds for which a pod may find no node, or be kept by its node from starting, before the training fails."""
    pull_seconds: float = Field(default=1800.0, gt=0)
    """Seconds for which a pod that has a node may pull its image before the training fails."""
    lease_seconds: int = Field(default=20, ge=3)
    """Seconds after its last sign of life at which a launcher counts as gone; it renews four times as often."""
    return_seconds: int = Field(default=600, ge=0)
    """Seconds for which a run that has not ended may be without a launcher before its pods are removed: a run's pod
    that died with its node is noticed, resumed on another one, and may have to pull its image there.
    """
    patience_seconds: float = Field(default=300.0, gt=0)
    """Seconds for which the API server may be away before a launcher gives up; pods go on meanwhile."""


class Settings(BaseSettings):
    """Settings of everything outside the process. Its repr shows no credentials."""

    model_config = SettingsConfigDict(env_prefix="ML_ASSETS_", env_ignore_empty=True, frozen=True)

    home: Path = Field(default_factory=lambda: Path.home() / ".ml-assets")
    """Root of the embedded parts, and of local copies of what servers hold."""
    environment: str = "local"
    """Name of the lake repository: one per environment."""
    author: str = Field(default_factory=getpass.getuser)
    """Name of the acting person, for approvals, promotions and run records."""
    commit: str | None = None
    """Git commit of the code where there is no work tree, as in an image, with `-dirty` behind it if files differed."""
    ui_url: Address = Address("http://127.0.0.1:3000")
    """Address of Dagster's pages, for links."""

    lake_url: Address | None = None
    """lakeFS, `http://host:port`; by default files under `home`."""
    lake_storage: str | None = None
    """`s3://bucket/prefix` where `ml-assets lake init` puts a new repository's blocks."""
    lake_access_key_id: SecretStr | None = None
    """lakeFS access key."""
    lake_secret_access_key: SecretStr | None = None
    """lakeFS secret key."""
    lake_library: Literal["lakefs_client", "lakefs_sdk"] = "lakefs_client"
    """The client of lakeFS; `lakefs_sdk` has to be installed, between 1.50 and 1.86."""
    artifacts_url: str | None = None
    """`s3://bucket/prefix` for training folders, bundles and reports; by default under `home`."""
    s3_endpoint_url: Address | None = None
    """An S3 server that is not AWS, `http://host:port`."""
    tracking_uri: Address | None = None
    """MLflow; by default SQLite under `home`."""
    ledger_url: Address | None = None
    """SQLAlchemy address of the ledger, `postgresql+psycopg2://…`; by default SQLite under `home`."""
    dagster_url: Address | None = None
    """PostgreSQL for Dagster's runs, events and schedules, `postgresql://…`; by default SQLite under `home`."""
    gpu_hour_price: float | None = Field(default=None, ge=0)
    """Price of one GPU hour, in any currency; with it every run records its `cost`."""
    launcher: Literal["local", "kubernetes"] = "local"
    """Launcher of the workers: processes of this machine, or pods."""
    kubernetes: KubernetesSettings = Field(default_factory=KubernetesSettings)
    """The cluster, if `launcher` is kubernetes: `ML_ASSETS_KUBERNETES_…`."""

    @field_validator("lake_storage", "artifacts_url")
    @classmethod
    def _without_credentials(cls, value: str | None) -> str | None:
        if value is not None and Address(value).has_credentials:
            raise ValueError(
                "a place in S3 takes no credentials and no ?: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        return value

    @property
    def lake_folder(self) -> Path:
        """The embedded lake."""
        return self.home / "lake" / self.environment

    @property
    def artifacts_folder(self) -> Path:
        """Training folders, bundles and reports, or the local copies of those in `artifacts_url`."""
        return self.home / "artifacts"

    @property
    def cache_folder(self) -> Path:
        """Folder of what can be rebuilt from the lake: training shards, copies of its files."""
        return self.home / "cache"

    @property
    def dagster_home(self) -> Path:
        """Dagster's own home, with the `dagster.yaml` the CLI writes there."""
        return self.home / "dagster"

    @property
    def resolved_tracking_uri(self) -> Address:
        """`tracking_uri`, or SQLite under `home`."""
        return self.tracking_uri or Address(f"sqlite:///{self.home}/mlflow.db")

    @property
    def resolved_ledger_url(self) -> Address:
        """`ledger_url`, or SQLite under `home`."""
        return self.ledger_url or Address(f"sqlite:///{self.home}/ledger.db")
