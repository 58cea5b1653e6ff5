"""A day of launches through two API servers that are killed in turn, over one PostgreSQL, as replicas in a cluster."""

from pathlib import Path

import pytest

from ml_assets.extras.api.launches import KEY_TAG
from ml_assets_tests.api.conftest import running_api
from ml_assets_tests.api.killed_apis import launch_beside_kills
from ml_assets_tests.servers.running_servers import RunningServers
from resources.settings import Settings

LAUNCHES, KILLS = 500, 10
RUNS = f"SELECT count(*), count(DISTINCT run_id), count(DISTINCT value) FROM run_tags WHERE key = '{KEY_TAG}'"


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_day_of_launches_loses_and_doubles_none(
    servers: RunningServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 launches and ten kills. Runs and ledger are in PostgreSQL, everything else in files."""
    on_servers = servers.settings(tmp_path / "home")
    settings = Settings(
        home=on_servers.home, ledger_url=on_servers.ledger_url, dagster_url=on_servers.dagster_url
    )
    for name in ("ML_ASSETS_LEDGER_URL", "ML_ASSETS_DAGSTER_URL"):
        monkeypatch.setenv(name, servers.variables(settings)[name])
    with running_api(settings) as api:
        launch_beside_kills(api, tmp_path, launches=LAUNCHES, kills=KILLS)
    said = servers.query(RUNS, str(settings.dagster_url).rpartition("/")[2])
    assert said.split("|") == [str(LAUNCHES)] * 3
