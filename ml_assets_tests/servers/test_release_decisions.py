"""Many decisions about one model at once on real PostgreSQL, every third process killed."""

from pathlib import Path

import pytest

from ml_assets.model.release.bundle_store import Bundle, BundleStore
from ml_assets_tests.components.end_to_end.test_decisions_at_once import (
    registered_versions,
    require_one_in_production,
)
from ml_assets_tests.release.conftest import bundle, contents, rows, store
from ml_assets_tests.servers.running_servers import RunningServers

__all__ = ["bundle", "contents", "rows", "store"]  # fixtures


@pytest.mark.timeout(1800)
def test_exactly_one_version_is_in_production_on_postgresql(
    servers: RunningServers, tmp_path: Path, tracking_uri: str, bundle: Bundle, store: BundleStore
) -> None:
    ledger = servers.settings(tmp_path / "home").resolved_ledger_url.reveal()
    place = registered_versions(tmp_path, tracking_uri, ledger, bundle, store)
    require_one_in_production(place, tmp_path / "said", seed=1, commands=30)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_exactly_one_version_is_in_production_after_a_hundred_decisions(
    servers: RunningServers, tmp_path: Path, tracking_uri: str, bundle: Bundle, store: BundleStore
) -> None:
    ledger = servers.settings(tmp_path / "home").resolved_ledger_url.reveal()
    place = registered_versions(tmp_path, tracking_uri, ledger, bundle, store)
    require_one_in_production(place, tmp_path / "said", seed=1, commands=100)
