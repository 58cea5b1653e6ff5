"""Workers that may be on other machines: lake, ledger and artifacts are servers, and files go by way of S3."""

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.servers.wire import Wire, wire
from ml_assets_tests.snapshots.random_tables import KINDS
from ml_assets_tests.snapshots.test_recorded_digests import RECORDED, outcome, seeds_of
from ml_assets_tests.tables.deadly_features import made
from resources.addresses import Address
from resources.artifacts import Artifacts, ArtifactsUnavailable, artifacts_of
from resources.platform import Platform
from resources.pool import HERE, PartitionPool, TaskFailed
from resources.pool.exchange import IN_STORE, store_exchange
from resources.pool.own_ray import own_ray
from resources.pool.ray_pool import RayPool

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token of all clusters here. Without one, `ray start` writes one to the home of its user."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_workers_without_a_disk_in_common_make_the_same_objects(
    servers: RunningServers, tmp_path: Path
) -> None:
    """By another address than loopback, the workers count as those of other machines. S3 keeps nothing of theirs."""
    alone = made(tmp_path / "alone", 2, 5, 1, pool="in-process")
    served = servers.settings(tmp_path / "served")
    Platform(served).make_lake_ready()
    with own_ray(2, {**os.environ, "PYTHONPATH": str(ROOT)}) as cluster:
        port = cluster.address.rpartition(":")[2]
        ray = {"pool": "ray", "ray_address": f"{socket.gethostname()}:{port}", "pool_after_seconds": 0}
        settings = {name: getattr(served, name) for name in served.model_fields_set - {"home"}} | ray
        assert made(served.home, 2, 5, 1, **settings) == alone
    assert Platform(served).artifacts.files(IN_STORE) == {}
    assert not list((served.cache_folder / "pool").iterdir())


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_training_set_goes_by_way_of_a_slow_s3(servers: RunningServers, tmp_path: Path) -> None:
    """Each answer comes half a second late. The digest is that of one process; S3 keeps nothing."""
    with wire(servers.record.url("s3")) as between, cluster_of_two() as pool:
        between.late_seconds = 0.5
        store = artifacts_by(between, servers, tmp_path)
        for kind in KINDS[:2]:
            seed = seeds_of(kind)[0]
            assert built(seed, tmp_path / str(seed), pool, store) == RECORDED[str(seed)]
        assert sum(f"/{IN_STORE}/" in request for request in between.requests) > 10
        assert store.files(IN_STORE) == {}


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_an_s3_that_falls_silent_ends_the_training_set_by_name(
    servers: RunningServers, tmp_path: Path
) -> None:
    """No task waits for ever, and no folder of a half training set stays."""
    with wire(servers.record.url("s3")) as between, cluster_of_two() as pool:
        store = artifacts_by(between, servers, tmp_path, patience_seconds=1)
        store.files(IN_STORE)
        between.silent_after = len(between.requests) + 4
        with pytest.raises((TaskFailed, ArtifactsUnavailable), match=between.url.removeprefix("http://")):
            built(seeds_of(KINDS[0])[0], tmp_path, pool, store)
    assert list((tmp_path / "snapshots").glob("*")) == []


@contextmanager
def cluster_of_two() -> Iterator[PartitionPool]:
    """A pool of two workers of Ray."""
    with (
        own_ray(2, {**os.environ, "PYTHONPATH": str(ROOT)}) as cluster,
        RayPool(Address(cluster.address), None, 0).kept() as pool,
    ):
        yield pool


def artifacts_by(between: Wire, servers: RunningServers, folder: Path, **patience: float) -> Artifacts:
    """Return artifacts on the real S3, which are reached by the wire."""
    return artifacts_of(
        str(servers.settings(folder).artifacts_url), folder / "artifacts", between.url, **patience
    )


def built(seed: int, folder: Path, pool: PartitionPool, store: Artifacts) -> str:
    """Build a training set whose workers hand files over by way of `store`; return its `outcome`."""
    return outcome(
        seed, folder, pool=pool, here=HERE, exchange=lambda _: store_exchange(store, folder / "cache")
    )
