"""Workers that may be on other machines: lake, ledger and artifacts are servers, and files go by way of S3."""

import os
import secrets
import socket
from pathlib import Path

import pytest

from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.tables.deadly_features import made
from resources.platform import Platform
from resources.pool.exchange import IN_STORE
from resources.pool.own_ray import own_ray

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_workers_without_a_disk_in_common_make_the_same_objects(
    servers: RunningServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another address than loopback, the workers count as those of other machines. S3 keeps nothing of theirs."""
    alone = made(tmp_path / "alone", 2, 5, 1, pool="in-process")
    served = servers.settings(tmp_path / "served")
    Platform(served).make_lake_ready()
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    with own_ray(2, {**os.environ, "PYTHONPATH": str(ROOT)}) as cluster:
        port = cluster.address.rpartition(":")[2]
        ray = {"pool": "ray", "ray_address": f"{socket.gethostname()}:{port}", "pool_after_seconds": 0}
        settings = {name: getattr(served, name) for name in served.model_fields_set - {"home"}} | ray
        assert made(served.home, 2, 5, 1, **settings) == alone
    assert Platform(served).artifacts.files(IN_STORE) == {}
    assert not list((served.cache_folder / "pool").iterdir())
