"""Tasks on Ray: the results of one process, whoever dies; and a cluster that is away, lost, or has other code."""

import os
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.installation import Installation, readings_components
from ml_assets_tests.components.readings_pipeline import FEATURES, READINGS, days
from ml_assets_tests.resources.pool.tasks import lock, square, squares, threads
from ml_assets_tests.snapshots.random_tables import KINDS
from ml_assets_tests.snapshots.test_recorded_digests import RECORDED, outcome, seeds_of
from ml_assets_tests.tables.deadly_features import KILLS, made
from resources.addresses import Address
from resources.artifacts import FolderArtifacts
from resources.lake import LakeBusy
from resources.platform import Platform
from resources.pool import HERE, PoolRefused, PoolUnavailable, TaskFailed, WorkerDied, WorkerHasOtherCode
from resources.pool.exchange import Exchange, folder_exchange, store_exchange
from resources.pool.own_ray import OwnRay, own_ray
from resources.pool.ray_pool import RayPool
from resources.settings import Settings

ROOT = Path(__file__).parents[4]

pytestmark = pytest.mark.timeout(1800)  # a head takes minutes to start if others use the cores


@pytest.fixture(scope="module")
def kills(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder from which calls of the feature function take the order to end their process."""
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module", autouse=True)
def token() -> Iterator[None]:
    """The token of all clusters here. Without one, `ray start` writes one to the home of its user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        yield


@pytest.fixture(scope="module")
def cluster(token: None, kills: Path) -> Iterator[OwnRay]:
    """A cluster whose polars would take five threads."""
    with _ray({KILLS: str(kills), "POLARS_MAX_THREADS": "5"}) as found:
        yield found


@contextmanager
def _ray(environment: Mapping[str, str], code: Path = ROOT) -> Iterator[OwnRay]:
    """A cluster whose workers import the project from `code`."""
    patience = {"RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "600"}
    whole = {**os.environ, "PYTHONPATH": str(code), **patience, **environment}
    with own_ray(2, whole) as found:
        yield found


def _pool(cluster: OwnRay) -> RayPool:
    return RayPool(Address(cluster.address), None, 0)


def _client(cluster: OwnRay) -> RayPool:
    """Return the pool of a run outside the cluster. The client server listens seconds after the head has started."""
    address = Address(cluster.client_address)
    port = int(cluster.client_address.rpartition(":")[2])
    while not _listens(port):
        time.sleep(0.1)
    return RayPool(address, None, 0)


@pytest.fixture
def pool(cluster: OwnRay) -> RayPool:
    return _pool(cluster)


def test_a_ray_of_its_own_starts_and_ends_with_the_tasks(tmp_path: Path) -> None:
    found = list(RayPool(None, 2, 0).map(square, squares(5, tmp_path)))
    assert [number for number, _ in found] == [one**2 for one in range(5)]
    while any(Path(f"/proc/{process}").exists() for _, process in found):
        time.sleep(0.05)


def test_results_come_in_order_and_a_killed_worker_changes_none(pool: RayPool, tmp_path: Path) -> None:
    items = squares(7, tmp_path)
    items["number 1"] = replace(items["number 1"], deaths=2)
    items["number 4"] = replace(items["number 4"], deaths=1, seconds=0.5)
    found = [number for number, _ in pool.map(square, items)]
    assert found == [one**2 for one in range(7)]


@pytest.mark.nightly
def test_a_client_of_the_cluster_gets_the_same(cluster: OwnRay, tmp_path: Path) -> None:
    """A run outside the cluster, as in a pod of its own: also if a worker dies, and with a task's own error."""
    items = squares(4, tmp_path, deaths=1)
    items["number 3"] = replace(items["number 3"], fault="busy")
    found: list[int] = []
    pool = _client(cluster)
    with pytest.raises(TaskFailed, match="number 3: LakeBusy: the lake is busy"):
        found.extend(number for number, _ in pool.map(square, items))
    assert found == [0, 1, 4]


@pytest.mark.nightly
def test_a_task_that_always_ends_its_worker_is_named(pool: RayPool, tmp_path: Path) -> None:
    with pytest.raises(WorkerDied, match=r"number 0 .* 3 times"):
        list(pool.map(square, squares(2, tmp_path, deaths=99)))


@pytest.mark.nightly
def test_a_failure_keeps_name_type_and_message(pool: RayPool, tmp_path: Path) -> None:
    with pytest.raises(TaskFailed, match="number 0: LakeBusy: the lake is busy") as error:
        list(pool.map(square, squares(2, tmp_path, fault="busy")))
    assert isinstance(error.value.__cause__, LakeBusy)


def test_an_answer_that_cannot_travel_names_its_task(pool: RayPool, tmp_path: Path) -> None:
    """As with processes: neither is it code of another version, nor an error without a name."""
    with pytest.raises(TaskFailed, match="number 0: TypeError: cannot pickle"):
        list(pool.map(lock, squares(2, tmp_path)))
    (tmp_path / "vendored_client.py").write_text("class Down(Exception): pass")
    (marks := tmp_path / "marks").mkdir()
    with pytest.raises(TaskFailed, match="number 0: ModuleNotFoundError: No module named 'vendored_client'"):
        list(pool.map(square, squares(2, marks, fault="vendored")))
    assert len(list(marks.glob("0-*"))) == 1


@pytest.mark.nightly
def test_a_worker_computes_with_as_many_threads_as_the_run(pool: RayPool, tmp_path: Path) -> None:
    """The order of a sum of floats, and so its last bits, depends on their number."""
    assert list(pool.map(threads, squares(2, tmp_path))) == [pl.thread_pool_size()] * 2


def test_features_are_the_same_objects_with_every_pool(
    cluster: OwnRay, kills: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Files and manifests: in one process, in 2 and 4, on Ray, and on Ray though two workers are killed."""

    def objects(deaths: int = 0, **pool: Any) -> dict[str, str]:
        for number in range(deaths):
            (kills / str(number)).touch()
        home = tmp_path_factory.mktemp("home")
        found = made(home, 3, 5, 1, pool_after_seconds=0, **pool)
        assert not list(kills.iterdir())
        assert not [*(home / "cache" / "pool").glob("*")]
        return found

    alone = objects(pool="in-process")
    assert len(alone) == 10
    assert objects(pool="processes", pool_workers=2) == alone
    assert objects(pool="processes", pool_workers=4) == alone
    ray: dict[str, Any] = {"pool": "ray", "ray_address": cluster.address}
    assert objects(**ray) == alone
    assert objects(deaths=2, **ray) == alone


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["folder", "store"])
def test_a_training_set_is_the_same_files(cluster: OwnRay, kills: Path, tmp_path: Path, way: str) -> None:
    """Those that the builder in memory wrote, of rows, lists, weights, blobs and refusals.

    By way of the artifacts' storage, as for workers of other machines, the shards are written in this process.
    """

    def store(_: Path) -> AbstractContextManager[Exchange]:
        return store_exchange(FolderArtifacts(tmp_path / "store"), tmp_path / "cache")

    with _pool(cluster).kept() as pool:
        shards, exchange = (pool, folder_exchange) if way == "folder" else (HERE, store)
        for seed in (seeds_of(kind)[0] for kind in KINDS):
            found = outcome(seed, tmp_path / str(seed), pool=pool, here=shards, exchange=exchange)
            assert found == RECORDED[str(seed)]


@pytest.mark.nightly
def test_a_kept_connection_outlives_a_range_that_was_left(pool: RayPool, tmp_path: Path) -> None:
    with pool.kept() as kept:
        for number in range(2):
            marks = tmp_path / str(number)
            marks.mkdir()
            with closing(kept.map(square, squares(5, marks))) as some:
                assert next(some)[0] == 0
        (marks := tmp_path / "last").mkdir()
        assert [number for number, _ in kept.map(square, squares(4, marks))] == [0, 1, 4, 9]


@pytest.mark.nightly
def test_a_kept_range_that_is_left_does_not_disturb_another(pool: RayPool, tmp_path: Path) -> None:
    (left := tmp_path / "left").mkdir()
    (whole := tmp_path / "whole").mkdir()
    slow = squares(5, left, seconds=600)
    slow["number 0"] = replace(slow["number 0"], seconds=0)
    with pool.kept() as kept, closing(kept.map(square, squares(5, whole))) as second:
        assert next(second)[0] == 0
        with closing(kept.map(square, slow)) as first:
            assert next(first)[0] == 0
        assert [number for number, _ in second] == [1, 4, 9, 16]


@pytest.mark.nightly
def test_a_materialization_uses_the_cluster_of_the_settings(cluster: OwnRay, tmp_path: Path) -> None:
    """The tables are those of one process."""
    source = {**readings_pipeline.DATASET["source"], "at_once": 2}
    first, *_, last = days(3)
    ray = {"pool": "ray", "ray_address": cluster.address, "pool_after_seconds": 0, "chunk_mib": 1e-6}
    digests: list[list[dict[str, str]]] = []
    for name, changes, dataset in (("alone", {}, {}), ("ray", ray, {"source": source})):
        place_settings = Settings.model_validate({"home": tmp_path / name, **changes})
        place = Installation(tmp_path / name, readings_components(dataset=dataset), place_settings)
        results = [place.run(table, partition=first, last=last) for table in (READINGS, FEATURES)]
        assert [one.success for one in results] == [True, True]
        digests.append([dict(place.main.digests(table)) for table in (READINGS, FEATURES)])
    assert digests[0] == digests[1]


def test_a_cluster_that_is_away_is_named(tmp_path: Path) -> None:
    for scheme in ("", "ray://"):
        address = Address(f"{scheme}127.0.0.1:{_free_port()}")
        with pytest.raises(
            PoolUnavailable, match=rf"Ray at {address} did not answer: .*ML_ASSETS_POOL=processes"
        ) as error:
            list(RayPool(address, None, 0).map(square, squares(2, tmp_path)))
        assert "\n" not in str(error.value)


@pytest.mark.nightly
def test_a_head_without_patience_for_a_client_is_named(tmp_path: Path) -> None:
    """A client's process in the head needs seconds to start, and minutes on a busy machine. Ray's default is 30 s."""
    with _ray({"RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "0"}) as cluster:
        pool = _client(cluster)
        with pytest.raises(
            PoolUnavailable, match=r"did not answer: .*RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S"
        ):
            list(pool.map(square, squares(2, tmp_path)))


@pytest.mark.nightly
def test_a_client_process_that_ends_at_its_start_is_made_again(tmp_path: Path) -> None:
    """The head forks it while its threads use gRPC, which sometimes ends it at once."""
    with (
        _ray({"RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "60"}) as cluster,
        ThreadPoolExecutor() as threads,
    ):
        pool = _client(cluster)
        killed = threads.submit(_kill_first_client_process, cluster.address)
        assert [number for number, _ in pool.map(square, squares(3, tmp_path))] == [0, 1, 4]
        assert killed.result() > 0


def _kill_first_client_process(head: str) -> int:
    """Wait for the process that the head starts for a client; kill it, and return its id."""
    port = f":{head.rpartition(':')[2]}"
    while True:
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = file.read_bytes().decode().split("\0")
                if "--mode=specific-server" in words and any(word.endswith(port) for word in words):
                    os.kill(int(file.parent.name), signal.SIGKILL)
                    return int(file.parent.name)
        time.sleep(0.05)


@pytest.mark.nightly
@pytest.mark.parametrize("pool_of", [_pool, _client])
def test_a_cluster_that_is_lost_ends_the_range_by_name(
    pool_of: Callable[[OwnRay], RayPool], tmp_path: Path
) -> None:
    items = squares(6, tmp_path, seconds=120)
    items["number 0"] = replace(items["number 0"], seconds=0)
    with _ray({}) as cluster, closing(pool_of(cluster).map(square, items)) as results:
        assert next(results)[0] == 0
        cluster.kill()
        with pytest.raises(
            PoolUnavailable, match=r"Ray at (ray://)?127.0.0.1:\d+ was lost: .*ML_ASSETS_POOL=processes"
        ):
            next(results)


@pytest.mark.nightly
def test_a_worker_with_other_code_is_refused(tmp_path: Path) -> None:
    """Before its first task: a changed comment is enough."""
    code = tmp_path / "code"
    for name in ("ml_assets", "resources", "ml_assets_tests"):
        ignored = shutil.ignore_patterns("__pycache__", "browser", "cluster", "servers")
        shutil.copytree(ROOT / name, code / name, ignore=ignored)
    with (code / "resources" / "words.py").open("a") as file:
        file.write("# an edit\n")
    marks = tmp_path / "marks"
    marks.mkdir()
    with _ray({}, code) as cluster, pytest.raises(WorkerHasOtherCode, match="resources has version "):
        list(_pool(cluster).map(square, squares(2, marks)))
    assert not list(marks.iterdir())


@pytest.mark.nightly
def test_a_worker_without_the_project_is_refused(tmp_path: Path) -> None:
    """Its `resources` is another package, which has no pool."""
    (tmp_path / "resources").mkdir()
    (tmp_path / "resources" / "__init__.py").touch()
    with _ray({}, tmp_path) as cluster, pytest.raises(WorkerHasOtherCode, match="cannot run the code"):
        list(_pool(cluster).map(square, squares(2, tmp_path)))


def test_other_machines_need_servers_that_they_reach(tmp_path: Path) -> None:
    """An embedded lake would be an empty folder there."""
    away = {"home": tmp_path, "pool": "ray", "ray_address": "ray://ray-head:10001"}
    with pytest.raises(PoolRefused, match="ML_ASSETS_LAKE_URL and ML_ASSETS_ARTIFACTS_URL"):
        _ = Platform(Settings.model_validate(away)).pool
    served = {"lake_url": "http://lakefs:8000", "artifacts_url": "s3://bucket/prefix"}
    assert isinstance(Platform(Settings.model_validate(away | served)).pool, RayPool)


def _free_port() -> int:
    """Return a port on which nothing listens."""
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
