"""Clients that launch with idempotency keys and repeat each request until it is answered, while the API is killed.

The home of the API may be on one machine (SQLite) or on servers (PostgreSQL).
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import httpx

from deployment.testbed.processes import free_port
from ml_assets.extras.api.launches import KEY_TAG
from ml_assets_tests.api.conftest import ServedApi

TABLE = {"target": "datasets/sales", "partitions": "2024-01-01..2024-01-08"}
CLIENTS = 6
PATIENCE = 300.0
TIMEOUTS = (0.05, 0.2, 1.0, 5.0)
"""Seconds after which a client gives up a request, and sends it again. The first often ends before the launch does."""


class KilledApi:
    """`ml-assets api` as a process, which a test kills and starts again on the same port."""

    def __init__(self, api: ServedApi, log: Path) -> None:
        self.port, self._log = free_port(), log
        self._command = [
            Path(sys.executable).with_name("ml-assets"),
            *("api", "--webserver", api.webserver, "--port", str(self.port)),
        ]
        self._environment = os.environ | {"ML_ASSETS_HOME": str(api.platform.settings.home)}
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )

    def wait(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + PATIENCE
        while not _answers(self.address):
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def killed_apis(api: ServedApi, folder: Path) -> Generator[list[KilledApi]]:
    """Two processes of the API over one home, as two replicas are."""
    servers = [KilledApi(api, folder / f"api{number}.log") for number in range(2)]
    try:
        for one in servers:
            one.wait()
        yield servers
    finally:
        for one in servers:
            one.kill()


class RepeatingClient:
    """Sends each launch until it is answered, to one server after the other."""

    def __init__(self, api: ServedApi, servers: list[KilledApi], seed: int) -> None:
        self._servers, self._random = servers, random.Random(seed)
        self._proof = {"authorization": f"Bearer {api.tokens['operator']}"}
        self.repeated = 0

    def launch(self, key: str, done: threading.Semaphore) -> str:
        """Return the id of the run of a key."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            server = self._random.choice(self._servers)
            try:
                answer = httpx.post(
                    f"{server.address}/api/v1/pipelines/runs",
                    json=TABLE,
                    headers=self._proof | {"idempotency-key": key},
                    timeout=self._random.choice(TIMEOUTS),
                )
            except httpx.TransportError:  # a timeout, a refused or a broken connection
                self.repeated += 1
                continue
            if answer.status_code == 202:
                done.release()
                return answer.json()["id"]
            assert answer.status_code in (429, 503, 504), answer.text
            time.sleep(0.1)
        raise AssertionError(f"no answer to {key} within {PATIENCE:g} s")


def launch_beside_kills(api: ServedApi, folder: Path, *, launches: int, kills: int) -> None:
    """Launch with as many keys, kill as often; each key must have one run with one record in the ledger."""
    instance = api.context.project.instance
    before, rows = set(instance.get_run_ids()), api.rows()
    done = threading.Semaphore(0)
    keys = [f"launch-{folder.name}-{number}" for number in range(launches)]
    with killed_apis(api, folder) as servers, ThreadPoolExecutor(CLIENTS) as threads:
        clients = [RepeatingClient(api, servers, number) for number in range(CLIENTS)]
        answers = [
            threads.submit(clients[number % CLIENTS].launch, key, done) for number, key in enumerate(keys)
        ]
        for number in range(kills):
            for _ in range(max(1, launches // (kills + 1))):
                assert done.acquire(timeout=PATIENCE)
            killed = servers[number % 2]
            killed.kill()
            killed.start()
            if number + 1 < kills:
                killed.wait()  # the other one is killed next: somebody has to answer
        told = {key: answer.result(PATIENCE) for key, answer in zip(keys, answers, strict=True)}
        servers[kills % 2].wait()
        again = {key: clients[0].launch(key, done) for key in keys}
    assert again == told
    assert sum(one.repeated for one in clients) >= kills, "no request was cut off"
    made = set(instance.get_run_ids()) - before
    assert made == set(told.values())
    assert len(made) == launches
    assert len({tags_of(instance, one)[KEY_TAG] for one in made}) == launches
    for one in made:
        row = api.platform.ledger.launches.of(one)
        assert row is not None
        assert row.by.name == "operator"
    assert api.rows() == rows + launches


def tags_of(instance: dg.DagsterInstance, run_id: str) -> Mapping[str, Any]:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.tags
