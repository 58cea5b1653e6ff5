"""`ml-assets ui` ended the hard way."""

import os
import subprocess
import sys
import time
from pathlib import Path

from deployment.testbed.processes import free_port

PATIENCE = 60.0
"""Seconds."""


def test_a_killed_ui_takes_webserver_and_daemon_along(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("ml-assets")
    with (tmp_path / "ui.log").open("wb") as log:
        ui = subprocess.Popen(
            [program, "ui", "--port", str(free_port())],
            env=os.environ | {"ML_ASSETS_HOME": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    deadline = time.monotonic() + PATIENCE
    while len(started := _children(ui.pid)) < 2:
        assert ui.poll() is None, (tmp_path / "ui.log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    ui.kill()
    ui.wait()
    while left := [pid for pid in started if _lives(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
