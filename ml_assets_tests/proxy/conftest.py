"""A real webserver of Dagster over two groups of assets, the proxy in front of it, and persons of every role."""

import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from deployment.testbed.processes import free_port
from ml_assets.extras.governance.proxy.dagster_proxy import proxy_app
from ml_assets.extras.governance.proxy.rules import ROLES
from resources.ledger import Ledger, Person
from resources.web.bounded_uvicorn import bounded_options

READY_SECONDS = 180
WHERE = {"repositoryName": "__repository__", "repositoryLocationName": "two_groups.py"}


@dataclass(frozen=True)
class GuardedDagster:
    """Running proxy: addresses, the ledger, and name → token."""

    address: str
    webserver: str
    ledger: Ledger
    tokens: Mapping[str, str]
    root: Person

    def post(self, name: str, query: str, variables: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request of GraphQL as a person, with the token in `Authorization`; return its answer."""
        answer = httpx.post(
            f"{self.address}/graphql",
            json={"query": query, "variables": variables or {}},
            headers=self.proof(name),
            timeout=60,
        )
        return answer.json()

    def proof(self, name: str) -> dict[str, str]:
        """Return the header by which a person proves who asks."""
        return {"authorization": f"Bearer {self.tokens[name]}"}

    @contextmanager
    def signed_in(self, name: str) -> Iterator[httpx.Client]:
        """Yield a browser in which a person signed in on the page."""
        with httpx.Client(base_url=self.address, headers={"origin": self.address}, timeout=60) as browser:
            answer = browser.post("/-/sign-in", data={"proof": self.tokens[name], "to": "/runs"})
            assert (answer.status_code, answer.headers["location"]) == (303, "/runs"), answer.text
            yield browser


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedDagster]:
    """Persons: one of each role by its name, and `flyer`, an operator of the group `flights`."""
    home = tmp_path_factory.mktemp("dagster")
    ledger = Ledger(f"sqlite:///{home}/ledger.db")
    nobody = Person.unchecked("root")
    tokens = {"admin": ledger.accounts.add_by_token("admin", nobody, is_administrator=True)}
    root = Person.proved(ledger.accounts.of_token(tokens["admin"]), "token")
    for name in (*ROLES[:-1], "flyer", "leaver"):
        tokens[name] = ledger.accounts.add_by_token(name, root)
    for role in ROLES[1:-1]:
        ledger.accounts.set_role(role, role, root, reason="test")
    ledger.accounts.set_role("flyer", "operator", root, groups=["flights"], reason="test")
    with serving_dagster(home) as webserver, serving_proxy(ledger, webserver) as address:
        yield GuardedDagster(address, webserver, ledger, tokens, root)


class serving_dagster:
    """A webserver process over `two_groups.py`; yields its address."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def __enter__(self) -> str:
        port = free_port()
        (self._home / "dagster.yaml").write_text("telemetry: {enabled: false}\nnux: {enabled: false}\n")
        with (self._home / "webserver.log").open("wb") as log:
            program = Path(sys.executable).with_name("dagster-webserver")
            definitions = Path(__file__).with_name("two_groups.py")
            self._process = subprocess.Popen(
                [program, "-h", "127.0.0.1", "-p", str(port), "-f", definitions],
                env=os.environ | {"DAGSTER_HOME": str(self._home)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{address}/server_info", timeout=2):
                    return address
            except OSError:
                time.sleep(0.2)
        raise AssertionError((self._home / "webserver.log").read_text()[-2000:])

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)


class serving_proxy:
    """The proxy in a thread, within the bounds of all servers; yields its address."""

    def __init__(self, ledger: Ledger, webserver: str) -> None:
        port = free_port()
        self._address = f"http://127.0.0.1:{port}"
        app = proxy_app(ledger, webserver, self._address)
        self._server = uvicorn.Server(
            uvicorn.Config(app, port=port, log_level="warning", proxy_headers=False, **bounded_options())
        )
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> str:
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            time.sleep(0.05)
        return self._address

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(30)
