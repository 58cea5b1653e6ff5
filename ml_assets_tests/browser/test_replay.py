"""`ml-assets demo --replay`: days come one after another, and a person sees what the platform makes of them.

Real pages, daemon, sensors, schedule, runs and trainings; three days, of which the second has bad rows and the third
breaks off.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from ml_assets_tests.browser.replay_pictures import replaying, watch

pytestmark = [pytest.mark.browser, pytest.mark.timeout(3000)]

PATIENCE_SECONDS = 600.0
END_SECONDS = 30.0
"""Longest time from Ctrl-C to the end, ten times what the command promises."""


def _processes_of(home: Path) -> dict[int, str]:
    """Return the command lines of living processes of a replay's home, by their ids."""
    given, found = f"ML_ASSETS_HOME={home}-replay".encode(), dict[int, str]()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile, or somebody else's
            if given in (process / "environ").read_bytes().split(b"\0"):
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(process.name)] = line
    return {process: line for process, line in found.items() if line}


def _wait_until_none(home: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := _processes_of(home):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


@pytest.mark.nightly
def test_a_replay_shows_each_event_and_ends_by_itself(
    browser: Browser, tmp_path: Path, screenshots: Path
) -> None:
    seen = watch(browser, "3d", tmp_path / "home", screenshots)

    assert (seen.status, seen.errors) == (0, "")
    assert seen.kinds.count("day landed") == 3
    assert seen.kinds.count("day rejected") == 1
    assert seen.kinds.count("quarantine") == 1
    assert seen.kinds.count("features built") == 3
    assert seen.kinds.count("the source has") == 4
    assert seen.kinds.index("day rejected") < len(seen.kinds) - seen.kinds[::-1].index("day landed")
    assert "run failed" not in seen.kinds
    # Each address was opened: the page of the run that was refused, of the rows in quarantine, of the model.
    assert {
        "day landed",
        "day rejected",
        "quarantine",
        "model blessed",
        "model promoted",
    } <= seen.opened.keys()
    assert "distance" in seen.opened["quarantine"]
    assert "flight_delay_nightly" in seen.opened["model blessed"]
    assert any(line.startswith("the end: 3 days in ") for line in seen.lines)
    assert "  day landed      3" in seen.lines
    _wait_until_none(tmp_path / "home")


def test_ctrl_c_ends_every_process_and_a_second_replay_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with replaying("1d", home) as first:
        assert first.stdout is not None
        for line in first.stdout:
            if "the source has" in line:
                break
        second = subprocess.run(
            [Path(sys.executable).with_name("ml-assets"), "demo", "--replay", "1d"],
            env=os.environ | {"ML_ASSETS_HOME": str(home)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 1
        assert len(second.stderr.splitlines()) == 1, second.stderr
        assert f"another replay runs in {home}-replay: end it with Ctrl-C" in second.stderr

        deadline = time.monotonic() + PATIENCE_SECONDS
        while not any("run_watcher" in line for line in _processes_of(home).values()):
            assert time.monotonic() < deadline, "no run began"
            time.sleep(0.1)
        began = time.monotonic()
        first.send_signal(signal.SIGINT)
        assert first.stdout.read().endswith("stopped: pages, daemon and runs end\n")
        assert first.wait() == 0
        assert time.monotonic() - began < END_SECONDS
    _wait_until_none(home)
