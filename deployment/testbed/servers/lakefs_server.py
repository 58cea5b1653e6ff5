"""lakeFS: branches and commits over S3, with its state in PostgreSQL. It migrates that database itself."""

import base64
import json
import signal
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any

from deployment.testbed.build import build
from deployment.testbed.processes import Process, ServerFailed, start, why_http_not
from deployment.testbed.servers.servers_record import (
    HOST,
    LAKEFS,
    REGION,
    S3,
    ServersRecord,
    server_environment,
)

SECONDS = 15.0


class LakeFSServer:
    """The lakeFS server."""

    name = LAKEFS
    ask = signal.SIGTERM
    seconds = 60.0

    def prepare(self, record: ServersRecord) -> None:
        """Do nothing: no preparation is needed."""

    def start(self, record: ServersRecord) -> Process:
        """Start it with blocks on S3 and path-style addresses, which any S3 without wildcard names needs."""
        own = {
            "LISTEN_ADDRESS": f"{HOST}:{record.ports[LAKEFS]}",
            "DATABASE_TYPE": "postgres",
            "DATABASE_POSTGRES_CONNECTION_STRING": f"{record.database_url('lakefs', 'postgres')}?sslmode=disable",
            "BLOCKSTORE_TYPE": "s3",
            "BLOCKSTORE_S3_ENDPOINT": record.url(S3),
            "BLOCKSTORE_S3_FORCE_PATH_STYLE": "true",
            "BLOCKSTORE_S3_REGION": REGION,
            "BLOCKSTORE_S3_DISCOVER_BUCKET_REGION": "false",
            "BLOCKSTORE_S3_CREDENTIALS_ACCESS_KEY_ID": record.s3_key,
            "BLOCKSTORE_S3_CREDENTIALS_SECRET_ACCESS_KEY": record.s3_secret,
            "AUTH_ENCRYPT_SECRET_KEY": record.lakefs_encryption,
            "COMMITTED_LOCAL_CACHE_DIR": str(record.path / LAKEFS),
            "STATS_ENABLED": "false",
            "LOGGING_LEVEL": "WARN",
        }
        return start(
            LAKEFS,
            [build("lakefs") / "lakefs", "run"],
            log=record.log(LAKEFS),
            env=server_environment(record, **{f"LAKEFS_{name}": value for name, value in own.items()}),
            cwd=record.path,  # it reads a settings file from its working folder
        )

    def why_not(self, record: ServersRecord) -> str:
        """Return the reason why it does not answer; empty once it does."""
        return why_http_not(f"{record.url(LAKEFS)}/api/v1/healthcheck")

    def finish(self, record: ServersRecord) -> None:
        """Create the first user, with our key. A lake that has a user answers 409."""
        key = {"access_key_id": record.lakefs_key, "secret_access_key": record.lakefs_secret}
        try:
            _call(record, "setup_lakefs", {"username": "admin", "key": key})
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.CONFLICT:
                said = error.read().decode(errors="replace")
                raise ServerFailed(f"lakeFS did not create its first user: {error.code} {said}") from error

    def version(self, record: ServersRecord) -> str:
        """Return the version that the server reports."""
        return f"lakeFS {_call(record, 'config')['version_config']['version']}"


def _call(record: ServersRecord, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    login = base64.b64encode(f"{record.lakefs_key}:{record.lakefs_secret}".encode()).decode()
    request = urllib.request.Request(
        f"{record.url(LAKEFS)}/api/v1/{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Basic {login}"},
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return json.loads(answer.read() or b"{}")
