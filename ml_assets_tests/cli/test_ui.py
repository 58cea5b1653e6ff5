"""`ml-assets ui` ended the hard way."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from deployment.testbed.processes import free_port

PATIENCE = 60.0
"""Seconds."""


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
