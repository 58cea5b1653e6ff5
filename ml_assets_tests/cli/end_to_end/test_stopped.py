"""Ctrl-C while a range is ingested: one line that says how to go on, and nothing stays apart."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import dagster as dg
import pytest

from ml_assets.context.project import Project
from ml_assets.data.tables.reader import TableReader
from ml_assets_tests.cli.end_to_end import stopped_step
from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.prepared_home import prepare_home
from resources.platform import Platform
from resources.settings import Settings

TABLE, FIRST, LAST = "datasets/sales", "2023-01-02", "2024-06-24"
PATIENCE = 120.0
"""Seconds."""


@contextmanager
def _launching(terminal: Terminal) -> Iterator[subprocess.Popen[bytes]]:
    with (terminal.home / "said").open("wb") as said:
        yield subprocess.Popen(
            [Path(sys.executable).with_name("ml-assets"), "launch", TABLE, f"{FIRST}..{LAST}"],
            env=os.environ | {"ML_ASSETS_HOME": str(terminal.home)},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(
                signal.SIGINT, signal.SIG_DFL
            ),  # ignored in the background of a shell
        )


def _wait_until(reached: Callable[[], bool], command: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert command.poll() is None
        assert time.monotonic() < deadline


def _press_ctrl_c(command: subprocess.Popen[bytes]) -> None:
    """Interrupt the command and its helpers, as a terminal does; return once the command has taken the signal."""
    os.killpg(command.pid, signal.SIGINT)
    status, bit = Path(f"/proc/{command.pid}/status"), 1 << (signal.SIGINT - 1)

    def is_taken() -> bool:
        (pending,) = re.findall(r"^ShdPnd:\s*([0-9a-f]+)$", status.read_text(), re.MULTILINE)
        return not int(pending, 16) & bit

    _wait_until(is_taken, command)


def _assert_one_line_was_said(terminal: Terminal, command: subprocess.Popen[bytes]) -> None:
    assert command.wait(PATIENCE) == 130
    said = [line for line in (terminal.home / "said").read_text().splitlines() if line]
    assert said == [
        "Stopped. Finished work is kept; the same command continues from there: "
        f"ml-assets launch {TABLE} {FIRST}..{LAST}"
    ]


def _project(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("DAGSTER_HOME", "")  # `prepare_home` sets it
    settings = Settings(home=terminal.home)
    prepare_home(settings)
    return Project(settings)


@pytest.mark.nightly
def test_stopped_before_it_began_leaves_no_run_under_way(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = terminal.home / "dagster" / "commands"
    with _launching(terminal) as command:
        _wait_until(lambda: any(commands.glob("*.run")), command)
        os.killpg(command.pid, signal.SIGINT)
        _assert_one_line_was_said(terminal, command)
    runs = _project(terminal, monkeypatch).instance.get_runs()
    assert {run.status for run in runs} <= {dg.DagsterRunStatus.CANCELED}


def test_stopped_where_a_step_begins_is_canceled_once(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside of a step's body Dagster answers an interrupt by its retry policy: the step must not work after it."""
    command = subprocess.run(
        [sys.executable, "-m", stopped_step.__name__, terminal.home],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert command.returncode == stopped_step.STOPPED, command.stderr
    assert not stopped_step.worked_in(terminal.home).exists()
    instance = _project(terminal, monkeypatch).instance
    (run,) = instance.get_runs()
    assert run.status == dg.DagsterRunStatus.CANCELED
    told = {event.dagster_event_type for event in instance.all_logs(run.run_id) if event.is_dagster_event}
    assert dg.DagsterEventType.RUN_FAILURE not in told


def test_stopped_after_its_merge_the_next_run_tells_dagster(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test holds Dagster's storage from the step's start on: the merge gets through, its events do not."""
    storage = terminal.home / "dagster" / "history" / "event_log.db"
    lake, instance = Platform(Settings(home=terminal.home)).lake, _project(terminal, monkeypatch).instance

    def has_begun() -> bool:
        with closing(sqlite3.connect(f"file:{storage}?mode=ro", uri=True)) as events:
            found = events.execute("SELECT 1 FROM event_logs WHERE dagster_event_type = 'STEP_START'")
            return found.fetchone() is not None

    with _launching(terminal) as command:
        _wait_until(has_begun, command)
        with closing(sqlite3.connect(storage, timeout=PATIENCE, isolation_level=None)) as held:
            held.execute("BEGIN IMMEDIATE")
            _wait_until(lambda: bool(TableReader.at(lake).keys(TABLE)), command)
            _press_ctrl_c(command)
        _assert_one_line_was_said(terminal, command)

    assert [run.status for run in instance.get_runs()] == [dg.DagsterRunStatus.CANCELED]
    (failed,) = [line for line in terminal("doctor").out.splitlines() if line.startswith("FAIL")]
    assert f"on main, but unknown to Dagster: {TABLE}: {FIRST}, 2023-01-09" in failed
    next_run = terminal("launch", TABLE, FIRST)
    assert next_run.status == 0, next_run.err
    assert all(run.is_finished for run in instance.get_runs())
    assert instance.get_materialized_partitions(dg.AssetKey(TABLE.split("/"))) == set(
        TableReader.at(lake).keys(TABLE)
    )
