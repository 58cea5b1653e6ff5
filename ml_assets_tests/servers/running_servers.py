"""The real servers as tests use them: to be pointed at, killed, frozen and started again.

Here: settings that keep one test's data apart from every other's. Not here: starting all of them (`conftest`).
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deployment.testbed.processes import family
from deployment.testbed.servers import NAMES, Servers
from deployment.testbed.servers.postgresql import make_database, query
from deployment.testbed.servers.servers_record import ServersRecord, storage_variables, variables
from resources.addresses import Address
from resources.settings import Settings

STATE_VARIABLE = "SERVERS_STATE"
"""Names the folder of servers that are up already (`make servers-up`: build/servers)."""


class RunningServers:
    """S3, PostgreSQL, lakeFS, MLflow, Kafka and Redis, all up at the begin of each test that asks for them."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    @property
    def record(self) -> ServersRecord:
        """Addresses, credentials and processes as they are now."""
        return self._servers.record

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the version that each server reports."""
        return self.record.versions

    @property
    def env(self) -> dict[str, str]:
        """Return the exports of `servers.env`: shared by all tests, `settings` and `variables` are not."""
        return variables(self.record)

    @property
    def storage_env(self) -> dict[str, str]:
        """The `AWS_*` part of it; set for every test that uses the servers."""
        return storage_variables(self.record)

    @property
    def secrets(self) -> Mapping[str, str]:
        """Return every credential by name. No file, log or database may contain one."""
        record = self.record
        return {
            "s3_secret": record.s3_secret,
            "lakefs_secret": record.lakefs_secret,
            "lakefs_encryption": record.lakefs_encryption,
            "database_password": record.database_password,
            "redis_password": record.redis_password,
        }

    def settings(self, home: Path, **changes: Any) -> Settings:
        """The platform on these servers, with a lake repository, prefixes and databases that belong to `home`: the
        same ones at each call. The repository is not made yet; the databases are, empty."""
        record, own = self.record, f"t-{hashlib.sha256(str(home).encode()).hexdigest()[:16]}"
        for database in (f"ledger-{own}", f"dagster-{own}"):
            make_database(record, database)
        return Settings(
            **{
                "home": home,
                "author": "ada",
                "environment": own,
                "lake_url": record.url("lakefs"),
                "lake_storage": f"s3://lake/{own}",
                "lake_access_key_id": record.lakefs_key,
                "lake_secret_access_key": record.lakefs_secret,
                "artifacts_url": f"s3://artifacts/{own}",
                "s3_endpoint_url": record.url("s3"),
                "tracking_uri": record.url("mlflow"),
                "ledger_url": record.database_url(f"ledger-{own}"),
                "dagster_url": record.database_url(f"dagster-{own}", "postgresql"),  # as most people write it
            }
            | changes
        )

    def variables(self, settings: Settings) -> dict[str, str]:
        """Environment that gives another process these `settings`, and S3's credentials."""
        plain = settings.model_dump(exclude_none=True)
        plain |= {name: value.reveal() for name, value in plain.items() if isinstance(value, Address)}
        for name in ("lake_access_key_id", "lake_secret_access_key"):
            if (secret := getattr(settings, name)) is not None:
                plain[name] = secret.get_secret_value()
        own = {
            f"ML_ASSETS_{name.upper()}": str(plain[name])
            for name in plain
            if isinstance(plain[name], str | Path)
        }
        return own | self.storage_env

    def query(self, statement: str, database: str = "postgres") -> str:
        """Return the answer of PostgreSQL's own client."""
        return query(self.record, statement, database)

    def up(self) -> None:
        """Start whatever is not ready."""
        for name in NAMES:
            if name in self.record.processes:
                self.thaw(name)
        self._servers.up()

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self._servers.kill(name)

    def stop(self, name: str) -> None:
        """Ask it to end."""
        self._servers.stop(name)

    def restart(self, name: str) -> None:
        """Start it again with port and data; returns when it is ready."""
        self._servers.restart(name)

    def freeze(self, name: str) -> None:
        """Freeze a server until `thaw`: it accepts connections and answers nothing."""
        self._servers.freeze(name)

    def thaw(self, name: str) -> None:
        """Let it go on."""
        self._servers.thaw(name)

    def why_not(self) -> dict[str, str]:
        """Server → why it is not ready, empty if it is."""
        return self._servers.why_not()

    def processes(self, name: str) -> int:
        """Return the number of processes of one server."""
        return len(family(self.record.processes[name]))


def named_folder() -> Path | None:
    """The folder of servers that somebody else started, if one was named."""
    named = os.environ.get(STATE_VARIABLE)
    return Path(named).resolve() if named else None


def other_worker() -> str:
    """This process among several that test at once, empty if it is the only or the first one. The others have
    servers of their own: two may not kill the same."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    return "" if worker == "gw0" else worker
