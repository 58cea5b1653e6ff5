"""`ml-assets doctor` on the servers: each well one with its address, each failed one with what helps."""

import pytest

from ml_assets_tests.cli.terminal import Said, Terminal
from ml_assets_tests.servers.installed.conftest import Installed
from ml_assets_tests.servers.running_servers import RunningServers


@pytest.fixture
def terminal(installed: Installed) -> Terminal:
    return Terminal(installed.settings.home)


def _line(said: Said, part: str) -> str:
    (line,) = [line for line in said.out.splitlines() if line[6:22].strip() == part]
    return line


def test_all_servers_are_well_and_named_without_passwords(
    terminal: Terminal, installed: Installed, servers: RunningServers
) -> None:
    said = terminal("doctor")
    assert said.status == 0, said.out
    assert servers.record.url("lakefs") in _line(said, "lake")
    assert str(installed.settings.artifacts_url) in _line(said, "artifacts")
    assert servers.record.url("mlflow") in _line(said, "tracker")
    assert "postgresql+psycopg2://127.0.0.1" in _line(said, "ledger")
    assert _line(said, "clock").endswith("agrees with lakeFS, S3, MLflow, the ledger")
    assert "S3ComputeLogManager" in _line(said, "dagster storage")
    assert [name for name, secret in servers.secrets.items() if secret in said.out] == []


@pytest.mark.parametrize(
    ("server", "parts", "help_"),
    [
        ("lakefs", {"lake"}, "ML_ASSETS_LAKE_URL"),
        ("mlflow", {"tracker"}, "ML_ASSETS_TRACKING_URI"),
        ("postgresql", {"ledger", "dagster storage"}, "ML_ASSETS_"),
        ("s3", {"artifacts"}, "ML_ASSETS_S3_ENDPOINT_URL"),
    ],
)
def test_server_that_is_away_is_named_with_what_helps(
    server: str,
    parts: set[str],
    help_: str,
    terminal: Terminal,
    installed: Installed,
    servers: RunningServers,
) -> None:
    servers.kill(server)
    said = terminal("doctor")
    assert said.status == 1
    failed = {line[6:22].strip(): line for line in said.out.splitlines() if line.startswith("FAIL")}
    assert parts <= failed.keys()
    assert all(help_ in failed[part] for part in parts)
    assert [name for name, secret in servers.secrets.items() if secret in said.out] == []


def test_wrong_keys_are_named(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    monkeypatch.setenv("ML_ASSETS_LAKE_SECRET_ACCESS_KEY", "wrong")
    said = terminal("doctor")
    assert "AWS_SECRET_ACCESS_KEY" in _line(said, "artifacts")
    assert "ML_ASSETS_LAKE_SECRET_ACCESS_KEY" in _line(said, "lake")


def test_lake_that_nobody_made_is_named_with_the_command_that_makes_it(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ML_ASSETS_ENVIRONMENT", "never-made")
    assert "ml-assets lake init" in _line(terminal("doctor"), "lake")
