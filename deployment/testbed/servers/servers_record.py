"""Record of one folder of servers: addresses, credentials, processes and versions, written to `servers.json`.

Here: the record, and the variables that point programs at the servers. Not here: starting a server. Each folder gets
new random credentials; only their owner can read both files.
"""

import json
import os
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from deployment.testbed.processes import Process, free_port
from deployment.testbed.testbed_files import write_record

HOST = "127.0.0.1"
S3, POSTGRESQL, LAKEFS, MLFLOW, KAFKA, REDIS = "s3", "postgresql", "lakefs", "mlflow", "kafka", "redis"
KAFKA_CONTROLLER = "kafka-controller"
"""Name of Kafka's second port, of its controller."""
KAFKA_SECURE = "kafka-secure"
"""Name of Kafka's third port, with TLS and a password."""
KAFKA_USER = "reader"
BUCKETS = ("lake", "artifacts", "mlflow")
DATABASES = ("lakefs", "mlflow", "ledger", "dagster")
REGION = "us-east-1"
DATABASE_USER = "ml_assets"
OWN_VARIABLES = (
    "ML_ASSETS_",
    "MLFLOW_",
    "LAKEFS_",
    "AWS_",
    "PG",
    "ROOT_ACCESS",
    "ROOT_SECRET",
    "KAFKA_",
    "REDIS_",
)
MARK = "ML_ASSETS_SERVER_OF"
"""Variable in every server's environment: the folder it belongs to, so that no server is forgotten."""


@dataclass(frozen=True)
class ServersRecord:
    """All facts about the servers of one folder."""

    folder: str
    database_folder: str
    """Folder of PostgreSQL, elsewhere if its user cannot reach `folder`."""
    ports: Mapping[str, int]
    s3_key: str
    s3_secret: str
    lakefs_key: str
    lakefs_secret: str
    lakefs_encryption: str
    database_password: str
    redis_password: str
    kafka_password: str
    processes: Mapping[str, Process] = field(default_factory=dict[str, Process])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """Versions that the servers report."""

    @property
    def path(self) -> Path:
        """Return the folder."""
        return Path(self.folder)

    @property
    def kafka_certificate(self) -> Path:
        """Return the certificate of Kafka's encrypted listener, which signed itself."""
        return self.path / KAFKA / "listener.crt"

    def url(self, name: str) -> str:
        """Return the address of a server that speaks HTTP."""
        return f"http://{HOST}:{self.ports[name]}"

    def database_url(self, database: str, scheme: str = "postgresql+psycopg2") -> str:
        """Return the address of one database, password included."""
        login = f"{DATABASE_USER}:{self.database_password}"
        return f"{scheme}://{login}@{HOST}:{self.ports[POSTGRESQL]}/{database}"

    def log(self, name: str) -> Path:
        """Return the log of one server, with the output of all its starts."""
        return self.path / "log" / f"{name}.log"

    def with_process(self, process: Process) -> "ServersRecord":
        """Record the process of a server after its start."""
        return replace(self, processes={**self.processes, process.name: process})

    def with_version(self, name: str, version: str) -> "ServersRecord":
        """Record the version of a server after its first answer."""
        return replace(self, versions={**self.versions, name: version})

    def save(self) -> None:
        """Write `servers.json` and `servers.env`, each atomically."""
        write_record(self.path / "servers.json", json.dumps(asdict(self), indent=2) + "\n")
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables(self).items())
        write_record(self.path / "servers.env", exports)


def draw(folder: Path, database_folder: Path) -> ServersRecord:
    """Return a new record with free ports and random credentials."""
    names = (S3, POSTGRESQL, LAKEFS, MLFLOW, KAFKA, KAFKA_CONTROLLER, KAFKA_SECURE, REDIS)
    ports: dict[str, int] = {}
    while len(ports) < len(names):
        if (port := free_port(HOST)) not in ports.values():
            ports[names[len(ports)]] = port
    return ServersRecord(
        folder=str(folder),
        database_folder=str(database_folder),
        ports=ports,
        s3_key=secrets.token_hex(10),
        s3_secret=secrets.token_hex(20),
        lakefs_key=secrets.token_hex(10),
        lakefs_secret=secrets.token_hex(20),
        lakefs_encryption=secrets.token_hex(20),
        database_password=secrets.token_hex(16),
        redis_password=secrets.token_hex(16),
        kafka_password=secrets.token_hex(16),
    )


def load(folder: Path) -> ServersRecord | None:
    """Return the record of `folder`; None if no server was ever started there."""
    file = folder / "servers.json"
    if not file.exists():
        return None
    read = json.loads(file.read_text())
    processes = {name: Process(**process) for name, process in read.pop("processes").items()}
    return ServersRecord(**read, processes=processes)


def variables(record: ServersRecord) -> dict[str, str]:
    """Return the environment that points the platform, its storage clients and Dagster at these servers."""
    return {
        "ML_ASSETS_LAKE_URL": record.url(LAKEFS),
        "ML_ASSETS_LAKE_STORAGE": "s3://lake/repositories",
        "ML_ASSETS_LAKE_ACCESS_KEY_ID": record.lakefs_key,
        "ML_ASSETS_LAKE_SECRET_ACCESS_KEY": record.lakefs_secret,
        "ML_ASSETS_ARTIFACTS_URL": "s3://artifacts/platform",
        "ML_ASSETS_S3_ENDPOINT_URL": record.url(S3),
        "ML_ASSETS_TRACKING_URI": record.url(MLFLOW),
        "ML_ASSETS_LEDGER_URL": record.database_url("ledger"),
        "ML_ASSETS_DAGSTER_URL": record.database_url("dagster"),
        "KAFKA_BOOTSTRAP_SERVERS": f"{HOST}:{record.ports[KAFKA]}",
        "KAFKA_SECURE_SERVERS": f"{HOST}:{record.ports[KAFKA_SECURE]}",
        "KAFKA_CA_FILE": str(record.kafka_certificate),
        "KAFKA_USERNAME": KAFKA_USER,
        "KAFKA_PASSWORD": record.kafka_password,
        "REDIS_URL": f"redis://:{record.redis_password}@{HOST}:{record.ports[REDIS]}/0",
        **storage_variables(record),
    }


def storage_variables(record: ServersRecord) -> dict[str, str]:
    """Return the variables that any S3 client of this machine needs."""
    return {
        "AWS_ACCESS_KEY_ID": record.s3_key,
        "AWS_SECRET_ACCESS_KEY": record.s3_secret,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL_S3": record.url(S3),
        "AWS_EC2_METADATA_DISABLED": "true",  # or a client without credentials waits for a cloud's metadata address
    }


def server_environment(record: ServersRecord, **own: str) -> dict[str, str]:
    """Return the environment of a server: this one without variables that point at servers, plus the mark and `own`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES)}
    return kept | {MARK: record.folder} | own
