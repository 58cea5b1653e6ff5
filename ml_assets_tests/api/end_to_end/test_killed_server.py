"""Launches through an API that is killed, over SQLite. `servers/test_killed_api.py` has them over PostgreSQL."""

from pathlib import Path

from ml_assets_tests.api.conftest import ServedApi
from ml_assets_tests.api.killed_apis import launch_beside_kills


def test_each_key_has_one_run_though_the_api_is_killed(api: ServedApi, tmp_path: Path) -> None:
    launch_beside_kills(api, tmp_path, launches=24, kills=2)
