"""Typed `Settings`, read once at the edge from environment variables `ML_ASSETS_*`.

Only the edge (definitions, CLI, tests) reads the environment. By default all parts are embedded, each in a folder under
`home`, so a laptop needs no server. A server is an address; docs/how-to/servers.md lists all of them. An empty variable
counts as not set. botocore reads the credentials of S3 itself (`AWS_*` of the process); they are not settings of ours.
"""

import getpass
import os
import unicodedata
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from resources.addresses import Address
from resources.documented import Documented


class Mount(BaseModel):
    """Folder of every node that pods may read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host_path: str
    mount_path: str


class KubernetesSettings(Documented, BaseSettings):
    """Cluster on which trainings run. A pipeline's `resources` define the pods of each training."""

    model_config = SettingsConfigDict(env_prefix="ML_ASSETS_KUBERNETES_", env_ignore_empty=True, frozen=True)

    backend: Literal["job", "jobset", "trainjob"] = "job"
    """Restarts of a training's pods. `job`: by the launcher, with a Job for each attempt. `jobset`: by the cluster,
    with a JobSet, also while no launcher runs. `trainjob`: the same, with a TrainJob of Kubeflow Trainer, which makes
    the JobSet. A training with a range of nodes uses Jobs in any case."""
    context: str | None = None
    """Context of the kubeconfig. Default: the cluster in which this process runs, else the current context."""
    namespace: str = "ml-assets"
    """Namespace of the pods."""
    image: str | None = None
    """Image of the workers: the trainer image, `registry/name@sha256:…`."""
    command: tuple[str, ...] = ("python", "-m", "ml_assets.model.training.node.pod")
    """Command of a pod, as a JSON list."""
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    """Additional environment variables of every pod, as a JSON object."""
    mounts: tuple[Mount, ...] = ()
    """Folders of the nodes, mounted read-only, as a JSON list of `{"host_path", "mount_path"}`."""
    s3_secret: str = "ml-assets-s3"
    """Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for the pods."""
    s3_role: str | None = Field(default=None, pattern=r"^arn:[^:]+:iam:.+$")
    """Role that the launcher assumes for the workers of a training: they get keys that reach the training's own folders
    alone, for a short time, in place of those of `s3_secret`. Default: none."""
    s3_role_seconds: int = Field(default=3600, ge=900, le=43_200)
    """Life of the keys of `s3_role`. The launcher renews them after half of it."""
    service_account: str | None = None
    """Service account of the pods of trainings whose `resources` name none. A store may give rights to its name: then
    the pods need no keys of S3 in a Secret. Default: none."""
    isolated: bool = False
    """Make a NetworkPolicy for each training of several pods, by which only its own workers reach them. For namespaces
    in which policies refuse all other connections, as the Helm chart makes them. Without it, make none."""
    s3_endpoint_url: Address | None = None
    """`ML_ASSETS_S3_ENDPOINT_URL` for pods, if they reach the server by another address."""
    on_demand: dict[str, str] = Field(
        default_factory=dict, examples=[{"karpenter.sh/capacity-type": "on-demand"}]
    )
    """Labels of the nodes that the cloud does not take away, as a JSON object, for `resources.on_demand_last`."""
    unschedulable_seconds: float = Field(default=120.0, gt=0)
    """Seconds until the training fails if a pod finds no node, or its node cannot start it."""
    waiting_hours: float = Field(default=24.0, gt=0)
    """Bound on waiting in a queue, in hours: from then on a training goes before all others of its priority class in
    the queue, also before those that run."""
    pull_seconds: float = Field(default=1800.0, gt=0)
    """Seconds for which a pod on a node may pull its image before the training fails."""
    lease_seconds: int = Field(default=24, ge=3)
    """Seconds after the last renewal of its Lease until a launcher counts as gone. It renews twice as often, and gives
    the Lease up at once if it is asked to end."""
    return_seconds: int = Field(default=600, ge=0)
    """Seconds for which a run that has not ended may be without a launcher before its pods are removed. If a run's pod
    dies with its node, Dagster must notice it and resume the run on another node, which may have to pull the image.
    """
    patience_seconds: float = Field(default=300.0, gt=0)
    """Seconds for which the API server may be away before a launcher gives up. The pods train on meanwhile."""


ENV_NAME = r"^[a-z0-9][a-z0-9_]*$"
"""Names of environments. Lakes allow no other characters in names of branches; - separates the parts of a name."""
_SERVERS_OF_MAIN = frozenset(("tracking_uri", "ledger_url", "online_url", "dagster_url"))
"""Servers that an environment does not use: what it records is in files of its own."""


class Settings(Documented, BaseSettings):
    """Settings of all systems outside the process. Its repr shows no credentials."""

    model_config = SettingsConfigDict(env_prefix="ML_ASSETS_", env_ignore_empty=True, frozen=True)

    home: Path = Field(default_factory=lambda: Path.home() / ".ml-assets")
    """Root folder of the embedded parts, and of local copies of files on servers."""
    signing_key: Path | None = None
    """File of the private key that signs dossiers, in PEM; `ml-assets dossier keygen` makes one. If it is set, each
    registration writes a dossier."""
    environment: str = "local"
    """Name of the environment and of its lake repository."""
    env: str | None = Field(default=None, pattern=ENV_NAME, max_length=40)
    """Environment of `ml-assets env create` in which this process works: a branch of the lake in place of main, with a
    ledger, tracking and a Dagster home of its own. Default: main."""
    author: str = Field(default_factory=getpass.getuser)
    """Name of the acting person, for decisions and run records, if there is no `token`. Nobody checks it."""
    token: SecretStr | None = None
    """Token of the acting person's account, as `ml-assets accounts add` printed it."""
    oidc_token: SecretStr | None = None
    """ID token by which the OIDC issuer of the acting person's account proves who acts."""
    commit: str | None = None
    """Git commit of the code if there is no work tree, as in an image. It ends with `-dirty` if files differed."""
    ui_url: Address = Address("http://127.0.0.1:3000")
    """Address of Dagster's pages, for links."""
    only: tuple[str, ...] = ()
    """Models and tables that Dagster loads, with all tables behind them, as a JSON list; by default all. Commands know
    all others, too."""

    review_url: Address | None = None
    """Address of the reviewer's page in browsers, for links and for `ml-assets review` behind a proxy."""

    webhook: SecretStr | None = None
    """Address that gets a JSON document by POST when a version waits for an approval, and the digest of each
    night."""

    traces_url: Address | None = None
    """Address of a collector of traces that takes OTLP over HTTP, `http://host:4318`: gets a trace of each run that
    ended. Needs `ml-assets[traces]`."""

    lake_url: Address | None = None
    """Address of lakeFS, `http://host:port`. Default: files under `home`."""
    lake_storage: str | None = None
    """`s3://bucket/prefix` for the blocks of a repository that `ml-assets lake init` creates."""
    lake_access_key_id: SecretStr | None = None
    """lakeFS access key."""
    lake_secret_access_key: SecretStr | None = None
    """lakeFS secret key."""
    history_days: int = Field(default=90, ge=1)
    """Days for which rows stay readable in the lake's history after they left their branch. Then `ml-assets gc` deletes
    them, unless a model, a kept branch or an environment needs them."""
    artifacts_url: str | None = None
    """`s3://bucket/prefix` for training folders, bundles and reports. Default: a folder under `home`."""
    s3_endpoint_url: Address | None = None
    """Address of an S3 server other than AWS, `http://host:port`."""
    tracking_uri: Address | None = None
    """Address of MLflow. Default: SQLite under `home`."""
    ledger_url: Address | None = None
    """SQLAlchemy address of the ledger, `postgresql://…`. Default: SQLite under `home`."""
    online_url: Address | None = None
    """Address of the online store, `redis://host:port/0` or `sqlite:///path`. Default: SQLite under `home`."""
    dagster_url: Address | None = None
    """PostgreSQL for Dagster's runs, events and schedules, `postgresql://…`. Default: SQLite under `home`."""
    chunk_mib: float = Field(default=256.0, gt=0, allow_inf_nan=False)
    """MiB of memory that the partitions of a range need, with their files, until they are validated and merged; then
    the next ones follow."""
    pool: Literal["in-process", "processes", "ray"] = "processes"
    """Workers for the tasks of a range: none, processes of this machine, or tasks of Ray."""
    pool_workers: int | None = Field(default=None, ge=1)
    """Tasks of a range that run at the same time. Default: cores of this machine, or of Ray's cluster."""
    pool_after_seconds: float = Field(default=10.0, ge=0, allow_inf_nan=False)
    """Seconds of the first tasks of a range, which run in the run's own process. Workers start after them if the other
    tasks will take as long."""
    ray_address: Address | None = None
    """Address of Ray's head, `ray://host:10001`, or `host:6379` on a node of the cluster. Default: a Ray of its own,
    on this machine, for each range."""
    gpu_hour_price: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Price of one GPU hour, in any currency. If it is set, every run of MLflow records its `cost`."""
    prices: Path | None = None
    """YAML file with the prices of hours for `ml-assets costs`: of each kind of GPU, of a core, of a GiB of memory.
    Default: costs are hours alone."""
    launcher: Literal["local", "kubernetes"] = "local"
    """Launcher of the workers: processes of this machine, or pods."""
    kubernetes: KubernetesSettings = Field(default_factory=KubernetesSettings)
    """Settings of the cluster, if `launcher` is kubernetes: `ML_ASSETS_KUBERNETES_…`."""

    @model_validator(mode="before")
    @classmethod
    def _without_servers_of_main(cls, values: dict[str, Any]) -> dict[str, Any]:
        if not values.get("env"):
            return values
        return {name: value for name, value in values.items() if name not in _SERVERS_OF_MAIN}

    @field_validator("launcher")
    @classmethod
    def _keeps_its_ledger(cls, value: str, info: ValidationInfo) -> str:
        # A Secret without that key would give each pod a ledger of its own, which ends with the pod.
        is_in_pod = value == "kubernetes" and "KUBERNETES_SERVICE_HOST" in os.environ
        if is_in_pod and info.data.get("ledger_url") is None and not info.data.get("env"):
            raise ValueError(
                "in a pod, ML_ASSETS_LEDGER_URL must be set, or the ledger would end with the pod: add this key to the "
                "Secret (secrets.platform of the chart); or name a file on a volume, sqlite:////…"
            )
        return value

    @field_validator("author")
    @classmethod
    def _in_one_line(cls, value: str) -> str:
        # The ledger refuses it, too, but a training would end before.
        if not value.isprintable():
            raise ValueError("a name has no line breaks, no control characters and no broken encoding")
        said = unicodedata.normalize("NFKC", value).casefold()
        if "(checked by" in said or "(by rule" in said:
            raise ValueError("a name does not say that somebody checked it: leave out “(checked by …)”")
        return value

    @field_validator("webhook")
    @classmethod
    def _over_http(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            try:
                parts = urlsplit(value.get_secret_value())
                is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            except ValueError:
                is_http = False
            if not is_http:
                raise ValueError("a webhook has an address http://… or https://… with a host")
        return value

    @field_validator("lake_storage", "artifacts_url")
    @classmethod
    def _without_credentials(cls, value: str | None) -> str | None:
        if value is not None and Address(value).has_credentials:
            raise ValueError(
                "an S3 address has no credentials and no ?: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        return value

    def inside(self, env: str) -> Self:
        """Return these settings as they are in an environment."""
        return self.model_copy(update={"env": env, **dict.fromkeys(_SERVERS_OF_MAIN)})

    @property
    def own_home(self) -> Path:
        """Folder of ledger, tracking, studies, online store and Dagster: `home`, or the folder of the environment."""
        return self.home if self.env is None else self.home / "environments" / self.env

    @property
    def namespace(self) -> str:
        """Name under which decisions and studies are kept apart: `environment`, or `environment/env`."""
        return self.environment if self.env is None else f"{self.environment}/{self.env}"

    @property
    def lake_folder(self) -> Path:
        """Folder of the embedded lake."""
        return self.home / "lake" / self.environment

    @property
    def artifacts_folder(self) -> Path:
        """Folder of training folders, bundles and reports, or of the local copies of those in `artifacts_url`."""
        return self.home / "artifacts"

    @property
    def cache_folder(self) -> Path:
        """Folder of data that can be rebuilt from the lake: training shards, copies of its files."""
        return self.home / "cache"

    @property
    def has_workers_elsewhere(self) -> bool:
        """True if tasks of a range may run on other machines, which see no file of this one.

        Other machines cannot join a cluster whose head listens on loopback alone.
        """
        if self.pool != "ray" or self.ray_address is None:
            return False
        return self.ray_address.host not in ("localhost", "127.0.0.1", "::1")

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders of the home to which steps write: each may be a disk of its own."""
        return self.lake_folder, self.artifacts_folder, self.cache_folder, self.own_home

    @property
    def dagster_home(self) -> Path:
        """Home folder of Dagster. The CLI writes its `dagster.yaml`."""
        return self.own_home / "dagster"

    @property
    def resolved_tracking_uri(self) -> Address:
        """`tracking_uri`, or SQLite under `own_home`."""
        return self.tracking_uri or Address(f"sqlite:///{self.own_home}/mlflow.db")

    @property
    def studies_url(self) -> Address:
        """Database of studies: the ledger's, if that is PostgreSQL, or SQLite under `own_home`."""
        ledger = self.ledger_url
        is_server = ledger is not None and ledger.reveal().startswith("postgres")
        return (
            ledger if ledger is not None and is_server else Address(f"sqlite:///{self.own_home}/studies.db")
        )

    @property
    def resolved_ledger_url(self) -> Address:
        """`ledger_url`, or SQLite under `own_home`."""
        return self.ledger_url or Address(f"sqlite:///{self.own_home}/ledger.db")
