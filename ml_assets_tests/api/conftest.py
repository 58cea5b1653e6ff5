"""The API over a home with two versions of `store_demand`, a real webserver behind it, and persons of every role.

No daemon runs, so a launched run stays queued: what a launch does to Dagster and the ledger is seen at once.
"""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from deployment.testbed.processes import free_port
from ml_assets.context import Context
from ml_assets.context.home import make_home
from ml_assets.extras.api.app import ProblemProtocol, api_app
from ml_assets.extras.governance.proxy.rules import ROLES
from ml_assets_tests.release.conftest import example_rows
from ml_assets_tests.serving.released import register
from resources.ledger import Person
from resources.platform import Platform
from resources.settings import Settings
from resources.web.bounded_uvicorn import bounded_options
from resources.web.http_bounds import USUAL

READY_SECONDS = 180


@dataclass(frozen=True)
class ServedApi:
    """Running API: its address, its platform, and name → token."""

    address: str
    webserver: str
    context: Context
    tokens: Mapping[str, str]
    root: Person

    @property
    def platform(self) -> Platform:
        return self.context.project.platform

    def ask(
        self, name: str | None, method: str, path: str, body: Any = None, **headers: str
    ) -> httpx.Response:
        """Send a request as a person; None: without a proof. `path` follows /api/v1."""
        proof = {} if name is None else {"authorization": f"Bearer {self.tokens[name]}"}
        content = {} if body is None else {"json": body}
        return httpx.request(
            method, f"{self.address}/api/v1{path}", headers=proof | headers, timeout=60, **content
        )

    def rows(self) -> int:
        """Return the number of rows of the ledger's chain."""
        return self.platform.ledger.models.verify().place


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    """The API that most tests share."""
    with running_api(Settings(home=tmp_path_factory.mktemp("home"))) as api:
        yield api


@contextmanager
def running_api(settings: Settings) -> Generator[ServedApi]:
    """Serve the API over a new home with two registered versions of `store_demand`. Dagster's webserver gets settings
    other than the home from the environment.

    Persons: one of each role by its name; `florist`, who may approve and operate the group `flowers` alone; `leaver`,
    whose account was revoked.
    """
    make_home(settings)  # nothing of this process points to it: other tests have homes of their own
    rows = example_rows()
    for fingerprint in "12":
        register(Platform(settings), rows, fingerprint)
    context = Context.open(settings, writes=True)
    accounts = context.project.platform.ledger.accounts
    tokens = {"admin": accounts.add_by_token("admin", Person.unchecked("root"), is_administrator=True)}
    root = Person.proved(accounts.of_token(tokens["admin"]), "token")
    for name in (*ROLES[:-1], "florist", "leaver"):
        tokens[name] = accounts.add_by_token(name, root)
    for role in ROLES[1:-1]:
        accounts.set_role(role, role, root, reason="test")
    accounts.set_role("florist", "approver", root, groups=["flowers"], reason="test")
    accounts.revoke("leaver", root, reason="left")
    with serving_definitions(settings) as webserver, serving_api(context, webserver) as address:
        yield ServedApi(address, webserver, context, tokens, root)


@contextmanager
def serving_definitions(settings: Settings, model: str = "store_demand") -> Generator[str]:
    """Run Dagster's webserver over a model of the project, without a daemon; yield its address."""
    port, home = free_port(), settings.dagster_home
    with (home / "webserver.log").open("wb") as log:
        process = subprocess.Popen(
            [
                Path(sys.executable).with_name("dagster-webserver"),
                *("-h", "127.0.0.1", "-p", str(port), "-m", "ml_assets.definitions"),
            ],
            env=os.environ
            | {
                "DAGSTER_HOME": str(home),
                "ML_ASSETS_HOME": str(settings.home),
                "ML_ASSETS_ONLY": json.dumps([model]),
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + READY_SECONDS
        while not _answers(address):
            assert process.poll() is None, (home / "webserver.log").read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/server_info", timeout=2):
            return True
    except OSError:
        return False


@contextmanager
def serving_api(context: Context, webserver: str) -> Generator[str]:
    """Serve the API in a thread, within the bounds of all servers; yield its address."""
    port = free_port()
    options = bounded_options(USUAL, ProblemProtocol) | {"timeout_graceful_shutdown": 2}
    server = uvicorn.Server(
        uvicorn.Config(api_app(context, webserver), port=port, log_level="warning", ws="none", **options)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
