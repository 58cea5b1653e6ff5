"""Search for credentials in everything a run wrote: home, databases of Dagster and MLflow, lake, objects, logs."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pydantic import SecretStr

from ml_assets_tests.servers.installed.conftest import Installed
from ml_assets_tests.servers.running_servers import RunningServers
from resources.artifacts.s3 import RemoteArtifacts


@pytest.fixture
def secrets(servers: RunningServers) -> Mapping[str, bytes]:
    """Name → what must be nowhere, in the forms in which it could be."""
    found = {name: value.encode() for name, value in servers.secrets.items()}
    assert all(len(value) >= 16 for value in found.values())
    return found


def _named(where: str, content: bytes, secrets: Mapping[str, bytes]) -> list[str]:
    return [f"{name} in {where}" for name, value in secrets.items() if value in content]


def test_home_holds_no_secret(installed: Installed, secrets: Mapping[str, bytes]) -> None:
    files = [path for path in installed.settings.home.rglob("*") if path.is_file()]
    assert len(files) > 50
    assert {"dagster.yaml"} <= {path.name for path in files}
    assert [hit for path in files for hit in _named(str(path), path.read_bytes(), secrets)] == []


@pytest.mark.parametrize("which", ["dagster", "ledger", "mlflow"])
def test_databases_hold_no_secret(
    which: str, installed: Installed, servers: RunningServers, secrets: Mapping[str, bytes]
) -> None:
    urls = {"dagster": installed.settings.dagster_url, "ledger": installed.settings.ledger_url}
    database = "mlflow" if which == "mlflow" else str(urls[which]).rpartition("/")[2]
    dump = _dump(servers, database)
    assert len(dump) > 10_000
    assert installed.model.encode() in dump or which == "ledger"
    assert _named(f"database {database}", dump, secrets) == []


def test_lake_commits_branches_and_files_hold_no_secret(
    installed: Installed, secrets: Mapping[str, bytes]
) -> None:
    lake = installed.installation.platform.lake
    commits = list(lake.log("main", limit=1000))
    assert len(commits) >= 2
    assert _named("lake commits", repr(commits).encode(), secrets) == []
    assert _named("lake branches", repr(lake.branches()).encode(), secrets) == []


def test_objects_hold_no_secret(
    installed: Installed, servers: RunningServers, secrets: Mapping[str, bytes]
) -> None:
    """Everything in S3 that belongs to this installation: artifacts and step logs, and the lake's own blocks."""
    hits: list[str] = []
    count = 0
    for key, content in _objects(installed, servers):
        count += 1
        hits += _named(key, content, secrets)
    assert count > 50
    assert hits == []


def test_servers_wrote_no_secret_of_ours_into_their_logs(
    servers: RunningServers, secrets: Mapping[str, bytes]
) -> None:
    logs = sorted(servers.record.path.rglob("*.log"))
    assert logs
    assert [hit for path in logs for hit in _named(str(path), path.read_bytes(), secrets)] == []


def test_settings_and_parts_do_not_show_secrets(installed: Installed, secrets: Mapping[str, bytes]) -> None:
    platform = installed.installation.platform
    parts = (platform.lake, platform.artifacts, platform.tracker, platform.ledger, platform.lakefs)
    shown = "".join(repr(one) + str(one) for one in (installed.settings, *parts))
    assert _named("what is shown", shown.encode(), secrets) == []
    assert isinstance(installed.settings.lake_secret_access_key, SecretStr)


def _dump(servers: RunningServers, database: str) -> bytes:
    record = servers.record
    address = ["-h", "127.0.0.1", "-p", str(record.ports["postgresql"]), "-U", "ml_assets"]
    environment = os.environ | {"PGPASSWORD": servers.secrets["database_password"]}
    done = subprocess.run(
        ["pg_dump", *address, database], env=environment, capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def _objects(installed: Installed, servers: RunningServers) -> Iterator[tuple[str, bytes]]:
    endpoint = servers.record.url("s3")
    for url in (str(installed.settings.artifacts_url), str(installed.settings.lake_storage)):
        place, _, name = url.rpartition("/")
        bucket = RemoteArtifacts(place, Path("/nonexistent"), endpoint)
        for file in bucket.files(name):
            yield f"{url}/{file}", bucket._fs.cat_file(f"{url}/{file}".removeprefix("s3://"))
