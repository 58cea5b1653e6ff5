"""Workers that may be on other machines: lake, ledger and artifacts are servers, and files go by way of S3."""

import os
import secrets
import socket
from pathlib import Path

import pytest

from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.servers.slow_proxy import slow_proxy
from ml_assets_tests.snapshots.random_tables import KINDS
from ml_assets_tests.snapshots.test_recorded_digests import RECORDED, outcome, seeds_of
from ml_assets_tests.tables.deadly_features import made
from resources.addresses import Address
from resources.artifacts import ArtifactsUnavailable, artifacts_of
from resources.platform import Platform
from resources.pool import HERE, TaskFailed
from resources.pool.exchange import IN_STORE, store_exchange
from resources.pool.own_ray import own_ray
from resources.pool.ray_pool import RayPool

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
    _use_token(monkeypatch)
    with own_ray(2, {**os.environ, "PYTHONPATH": str(ROOT)}) as cluster:
        port = cluster.address.rpartition(":")[2]
        ray = {"pool": "ray", "ray_address": f"{socket.gethostname()}:{port}", "pool_after_seconds": 0}
        settings = {name: getattr(served, name) for name in served.model_fields_set - {"home"}} | ray
        assert made(served.home, 2, 5, 1, **settings) == alone
    assert Platform(served).artifacts.files(IN_STORE) == {}
    assert not list((served.cache_folder / "pool").iterdir())


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_training_set_goes_by_way_of_a_slow_s3(
    servers: RunningServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer comes half a second late. The digest is that of one process; S3 keeps nothing."""
    _use_token(monkeypatch)
    url = servers.settings(tmp_path).artifacts_url
    assert url is not None
    with (
        slow_proxy(servers.record.ports["s3"], seconds=0.5) as proxy,
        own_ray(2, {**os.environ, "PYTHONPATH": str(ROOT)}) as cluster,
        RayPool(Address(cluster.address), None, 0).kept() as pool,
    ):
        store = artifacts_of(str(url), tmp_path / "artifacts", f"http://127.0.0.1:{proxy.port}")
        for kind in KINDS[:2]:
            seed = seeds_of(kind)[0]
            found = outcome(
                seed,
                tmp_path / str(seed),
                pool=pool,
                here=HERE,
                exchange=lambda _: store_exchange(store, tmp_path / "cache"),
            )
            assert found == RECORDED[str(seed)]
        assert sum(f"/{IN_STORE}/" in path for path in proxy.requests) > 10
        assert store.files(IN_STORE) == {}


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_an_s3_that_falls_silent_ends_the_training_set_by_name(
    servers: RunningServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No task waits for ever, and no folder of a half training set stays."""
    _use_token(monkeypatch)
    url = servers.settings(tmp_path).artifacts_url
    assert url is not None
    with (
        slow_proxy(servers.record.ports["s3"], seconds=0) as proxy,
        own_ray(2, {**os.environ, "PYTHONPATH": str(ROOT)}) as cluster,
    ):
        address = f"http://127.0.0.1:{proxy.port}"
        store = artifacts_of(str(url), tmp_path / "artifacts", address, patience_seconds=1)
        store.files(IN_STORE)
        proxy.silent_after = len(proxy.requests) + 4
        with pytest.raises((TaskFailed, ArtifactsUnavailable), match=f"127.0.0.1:{proxy.port}"):
            outcome(
                seeds_of(KINDS[0])[0],
                tmp_path,
                pool=RayPool(Address(cluster.address), None, 0),
                here=HERE,
                exchange=lambda _: store_exchange(store, tmp_path / "cache"),
            )
    assert list((tmp_path / "snapshots").glob("*")) == []


def _use_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
