"""`ml-assets ui` in a terminal: what it prints, and its end, also the hard way."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from deployment.testbed.processes import free_port
from ml_assets_tests.browser.ui_process import running_ui

PATIENCE = 300.0
"""Seconds."""
RELOAD = """mutation { reloadRepositoryLocation(repositoryLocationName: "ml_assets") {
  ... on WorkspaceLocationEntry { locationOrLoadError { __typename } } } }"""


@pytest.mark.parametrize("started", [1, 2])
def test_a_killed_ui_takes_webserver_and_daemon_along(started: int, home: Path) -> None:
    """Killed as soon as so many of them are there, before they run programs of their own."""
    with (home / "ui.log").open("wb") as log:
        ui = subprocess.Popen(
            [Path(sys.executable).with_name("ml-assets"), "ui", "--port", str(free_port())],
            env=os.environ | {"ML_ASSETS_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    deadline = time.monotonic() + PATIENCE
    while len(_children(ui.pid)) < started:
        assert ui.poll() is None, (home / "ui.log").read_text()
        assert time.monotonic() < deadline
    ui.kill()
    ui.wait()
    while left := _processes_of(home):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by the first test."""
    return tmp_path_factory.mktemp("home")


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _processes_of(home: Path) -> list[str]:
    """Command lines of living processes that were given this home, whoever is their parent."""
    given, found = f"ML_ASSETS_HOME={home}".encode(), list[str]()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile, or somebody else's
            if given in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def test_pages_and_daemon_share_a_code_server_that_reloads(home: Path) -> None:
    """With one each, the daemon starts a new one every minute and loads all definitions again."""
    with running_ui(home) as dagster:
        (first,) = _code_servers(home)
        loaded = dagster.ask(RELOAD)["reloadRepositoryLocation"]["locationOrLoadError"]["__typename"]
        assert loaded == "RepositoryLocation"
        deadline = time.monotonic() + PATIENCE
        while first in (servers := _code_servers(home)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(servers) == 1


def _code_servers(home: Path) -> list[str]:
    return [one for one in _processes_of(home) if " api grpc " in one]


def test_a_port_in_use_is_one_line(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        ui = subprocess.run(
            [Path(sys.executable).with_name("ml-assets"), "ui", "--port", port],
            env=os.environ | {"ML_ASSETS_HOME": str(home)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert ui.returncode == 1
    assert ui.stdout == ""
    assert f"port {port} of 127.0.0.1 cannot be used (Address already in use)" in ui.stderr
    assert len(ui.stderr.splitlines()) == 1


def test_it_prints_when_pages_answer_what_runs_do_and_nothing_else(home: Path) -> None:
    """Ctrl-C ends it without an error, and no process stays."""
    port = free_port()
    environment = os.environ | {"ML_ASSETS_HOME": str(home)}
    command = Path(sys.executable).with_name("ml-assets")
    with (home / "errors.log").open("w+") as errors:
        ui = subprocess.Popen(
            [command, "ui", "--port", str(port)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert ui.stdout is not None
        assert ui.stdout.readline().startswith(f"ready: http://127.0.0.1:{port} (home {home}); logs ")
        subprocess.run(
            [command, "launch", "datasets/sales", "2024-01-01"],
            env=environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        told = ui.stdout.readline().partition("  ")[2]
        if told.startswith("started"):  # the run may end between two looks
            told = ui.stdout.readline().partition("  ")[2]
        ui.send_signal(signal.SIGINT)
        rest = ui.stdout.read()
        assert ui.wait() == 0
        errors.seek(0)
        assert errors.read() == ""
    assert told == "done       datasets/sales 2024-01-01\n"
    assert rest == ""
    deadline = time.monotonic() + 2 * PATIENCE
    while left := _processes_of(home):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_a_path_too_long_for_a_socket_is_one_line(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    done = subprocess.run(
        [Path(sys.executable).with_name("ml-assets"), "ui", "--port", str(free_port())],
        env=os.environ | {"ML_ASSETS_HOME": str(home), "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    [line] = done.stderr.splitlines()
    assert "TMPDIR" in line
    assert done.returncode == 1
    assert not list(folder.iterdir())
