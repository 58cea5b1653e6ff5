"""`ml-assets lake` against the real lakeFS, as a person types it."""

from pathlib import Path

import pytest

from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.resources.lake.lake_contract import publish
from ml_assets_tests.servers.lake.repositories import Repository
from ml_assets_tests.servers.running_servers import RunningServers


@pytest.fixture
def terminal(servers: RunningServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    settings = servers.settings(tmp_path / "home")
    for name, value in servers.variables(settings).items():
        monkeypatch.setenv(name, value)
    return Terminal(settings.home)


@pytest.fixture
def repository(servers: RunningServers, tmp_path: Path) -> Repository:
    """The one the terminal's settings name."""
    environment = servers.settings(tmp_path / "home").environment
    return Repository(servers, environment, tmp_path / "cache")


def test_a_person_is_led_from_a_missing_repository_to_a_ready_one(terminal: Terminal) -> None:
    said = terminal("lake", "audit")
    assert said.status == 1
    assert "ml-assets lake init" in said.err
    said = terminal("lake", "init")
    assert said.status == 0, said.err
    assert [line.split()[0] for line in said.out.splitlines()] == ["repository", "protection", "audit"]
    assert "created" in said.out
    again = terminal("lake", "init")
    assert again.status == 0
    assert "existed" in again.out
    said = terminal("lake", "audit")
    assert said.status == 0, said.out
    assert "Every commit on main" in said.out


def test_lake_audit_finds_commits_past_the_hook(terminal: Terminal, repository: Repository) -> None:
    terminal("lake", "init")
    store = repository.store()
    publish(store, "honest", {"honest": b"1"})
    store.merge("honest", "main", "an audited merge", {"audit": "passed"})
    store.create_branch("hole", "main")
    store.put("hole", "unaudited", b"1")
    repository.remove_audit_hook("hole")
    merged = repository.merge_by_hand("hole", {}).reference
    said = terminal("lake", "audit")
    assert said.status == 1
    assert f"/repositories/{repository.name}/commits/{merged}" in said.out
    assert "an audited merge" not in said.out
    assert "passed audit: 1." in said.out
    assert "main is missing" in said.out
    # Installed again, main is protected; what came in meanwhile is still named.
    assert terminal("lake", "init").status == 0
    said = terminal("lake", "audit")
    assert said.status == 1
    assert "main is missing" not in said.out
    assert merged in said.out
