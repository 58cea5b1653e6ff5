"""`ml-assets serve` as a process: promotions and rollbacks while clients ask, and a kill in the middle of a change."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest

from ml_assets.use.serving.request_log import ROOT, read_requests
from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.release.conftest import rows
from ml_assets_tests.serving.released import MODEL, platform_of, register
from resources.artifacts import FolderArtifacts

__all__ = ["rows"]

PATIENCE = 200.0
"""Seconds."""


@contextmanager
def served(home: Path, *options: str) -> Generator[tuple[httpx.Client, subprocess.Popen[bytes]]]:
    """Start a server that looks at the ledger 20 times a second; yield a client and the process."""
    command = ["serve", MODEL, "--port", "0", "--poll-seconds", "0.05", *options]
    said = home / f"said-{time.monotonic_ns()}"
    with said.open("wb") as out:
        server = subprocess.Popen(
            [Path(sys.executable).with_name("ml-assets"), *command],
            env=os.environ | {"ML_ASSETS_HOME": str(home), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        deadline = time.monotonic() + PATIENCE
        while not (address := re.search(r"Serving on (\S+) until", said.read_text())):
            assert server.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.05)
        with httpx.Client(base_url=address[1], timeout=PATIENCE) as client:
            yield client, server
    finally:
        server.kill()
        server.wait()


def _raw(client: httpx.Client, sent: bytes) -> str:
    """Send bytes to the server; return all that it answers until it closes the connection."""
    address = client.base_url
    with socket.create_connection((address.host, address.port or 80), PATIENCE) as connection:
        connection.sendall(sent)
        return b"".join(iter(lambda: connection.recv(4096), b"")).decode()


class _Asking:
    """A client that asks without a break until it ends."""

    def __init__(self, client: httpx.Client, row: dict[str, Any]) -> None:
        self._client, self._row = client, row
        self.answered: Counter[tuple[int, int | None]] = Counter()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> "_Asking":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def wait_for(self, version: int) -> None:
        """Wait until an answer is of this version."""
        before, deadline = self.answered[200, version], time.monotonic() + PATIENCE
        while self.answered[200, version] == before:
            assert time.monotonic() < deadline, self.answered
            assert self._thread.is_alive()
            self._over.wait(0.01)

    def _ask(self) -> None:
        while not self._over.is_set():
            found = self._client.post(f"/models/{MODEL}/predict", json=self._row)
            self.answered[found.status_code, found.json().get("version")] += 1


@pytest.fixture
def terminal_with_versions(terminal: Terminal, rows: pl.DataFrame) -> Terminal:
    """A home with version 1 in production and version 2 evaluated against it."""
    platform = platform_of(terminal.home)
    register(platform, rows, "1")
    said = terminal("promote", MODEL, "--reason", "first model")
    assert said.status == 0, said.err
    register(platform, rows, "2")
    return terminal


def test_a_server_follows_promotion_and_rollback_without_an_error(
    terminal_with_versions: Terminal, rows: pl.DataFrame
) -> None:
    terminal = terminal_with_versions
    row = rows.row(0, named=True)
    old = terminal.home / "artifacts" / ROOT / MODEL / "2026-01-01" / "0a1b2c3d-000001.parquet"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"a log of long ago")
    with served(terminal.home, "--log-keep-days", "30") as (client, server):
        no_http = _raw(client, b"\x16\x03\x01 not HTTP\r\n\r\n")
        assert no_http.startswith("HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n")
        assert "Send HTTP/1.1" in json.loads(no_http.partition("\r\n\r\n")[2])["message"]
        with _Asking(client, row) as asking:
            asking.wait_for(1)
            assert terminal("promote", MODEL, "2", "--reason", "newer data").status == 0
            asking.wait_for(2)
            assert terminal("rollback", MODEL, "--reason", "wrong labels").status == 0
            asking.wait_for(1)
        assert {status for status, _ in asking.answered} == {200}
        assert client.get("/ready").json()["models"][MODEL]["production"]["version"] == 1
        deadline = time.monotonic() + PATIENCE
        while f'log_deleted_files_total{{model="{MODEL}"}} 1.0' not in client.get("/metrics").text:
            assert time.monotonic() < deadline
        assert not old.exists()
        assert terminal("demote", MODEL, "--reason", "no model is better").status == 0
        deadline = time.monotonic() + PATIENCE
        while (last := client.post(f"/models/{MODEL}/predict", json=row)).status_code == 200:
            assert time.monotonic() < deadline
        assert (last.status_code, "ml-assets promote" in last.json()["message"]) == (503, True)
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
    artifacts = FolderArtifacts(terminal.home / "artifacts")
    logged = pl.concat(
        read_requests(artifacts, MODEL, day)
        for day in {pl.Series([path.parent.name]).str.to_date()[0] for path in _files(terminal.home)}
    )
    assert logged.height >= asking.answered.total()
    assert set(logged["version"]) == {1, 2}


def _files(home: Path) -> list[Path]:
    return list((home / "artifacts" / ROOT / MODEL).rglob("*.parquet"))


def test_a_server_killed_in_a_change_starts_with_the_new_version(
    terminal_with_versions: Terminal, rows: pl.DataFrame
) -> None:
    terminal = terminal_with_versions
    row = rows.row(0, named=True)
    with served(terminal.home) as (client, server):
        assert client.post(f"/models/{MODEL}/predict", json=row).json()["version"] == 1
        assert terminal("promote", MODEL, "2", "--reason", "newer data").status == 0
        server.kill()
    with served(terminal.home, "--shadow", f"{MODEL}/1") as (client, _):
        assert client.post(f"/models/{MODEL}/predict", json=row).json()["version"] == 2
        roles = client.get("/models").json()[MODEL]
        assert ([one["version"] for one in roles["shadows"]], roles["problems"]) == ([1], [])
