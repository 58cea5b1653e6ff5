"""`ml-assets proxy` as a process: its options, and its end while requests are on their way."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from deployment.testbed.processes import free_port
from resources.ledger import Ledger, Person

PROGRAM = Path(sys.executable).with_name("ml-assets")
ENDS_SECONDS = 5.0
"""Two seconds for requests, and the time of a busy machine to notice it."""
LAUNCH = """mutation { launchRun(executionParams: {selector: {repositoryName: "r", repositoryLocationName: "l"}})
    { __typename } }"""


class SlowWebserver(BaseHTTPRequestHandler):
    """Answers a launch after 4 s, and nothing else."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        time.sleep(4 if "launchRun" in body else 60)
        answer = {
            "data": {"launchRun": {"__typename": "LaunchRunSuccess", "_mlAssetsLaunched": {"id": "r1"}}}
        }
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@contextmanager
def proxy_process(home: Path) -> Iterator[tuple[subprocess.Popen[str], str, dict[str, str], Ledger]]:
    """Yield the command in front of a slow webserver, its address, the proof of an operator, and the ledger."""
    ledger = Ledger(f"sqlite:///{home}/ledger.db")
    token = ledger.accounts.add_by_token("admin", Person.unchecked("root"), is_administrator=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), SlowWebserver)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = free_port()
    webserver = f"http://127.0.0.1:{server.server_port}"
    process = subprocess.Popen(
        [PROGRAM, "proxy", "--webserver", webserver, "--port", str(port)],
        env=os.environ | {"ML_ASSETS_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            try:
                httpx.get(f"{address}/-/health")
                break
            except httpx.HTTPError:
                time.sleep(0.2)
        yield process, address, {"authorization": f"Bearer {token}"}, ledger
    finally:
        process.kill()
        server.shutdown()


@contextmanager
def asking(address: str, proof: dict[str, str], query: str) -> Iterator[list[int]]:
    """Send a document of GraphQL meanwhile; yield the list of the statuses of its answer."""
    statuses: list[int] = []

    def ask() -> None:
        try:
            statuses.append(httpx.post(address, json={"query": query}, headers=proof, timeout=60).status_code)
        except httpx.HTTPError:
            statuses.append(0)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    yield statuses
    thread.join(60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_end_waits_for_no_read_and_is_quiet(tmp_path: Path, number: signal.Signals) -> None:
    with proxy_process(tmp_path) as (process, address, proof, _):
        with asking(f"{address}/graphql", proof, "{ version }"):
            time.sleep(1)
            began = time.monotonic()
            process.send_signal(number)
            said, _ = process.communicate(timeout=60)
        assert time.monotonic() - began < ENDS_SECONDS
        assert len(said.splitlines()) == 1, said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_launch_on_its_way_is_recorded_before_the_end(tmp_path: Path, number: signal.Signals) -> None:
    with proxy_process(tmp_path) as (process, address, proof, ledger):
        with asking(f"{address}/graphql", proof, LAUNCH):
            time.sleep(1)
            process.send_signal(number)
            said, _ = process.communicate(timeout=60)
        row = ledger.launches.of("r1")
        assert row is not None, said
        assert row.author == "admin"
        assert len(said.splitlines()) == 1, said


@pytest.mark.parametrize(
    "webserver",
    [
        "127.0.0.1:3000",
        "ftp://127.0.0.1",
        "http://",
        "http://[::1",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:port",
        "http://127.0.0.1:0",
        "http://127.0.0.1/dagster",
        "http://127.0.0.1?a=b",
        "http://127.0.0.1/#a",
        "http://user:password@127.0.0.1",
    ],
)
def test_an_address_that_is_none_is_one_line(tmp_path: Path, webserver: str) -> None:
    done = subprocess.run(
        [PROGRAM, "proxy", "--webserver", webserver, "--port", str(free_port())],
        env=os.environ | {"ML_ASSETS_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("Error: --webserver ")
