"""A launch whose process dies of memory, or is told that there is none: its page says how much, and what helps."""

import re
import resource
import signal
from pathlib import Path

import dagster as dg
import pytest

from ml_assets.components.sensors.ended_runs import reason_of
from ml_assets.context.project import Project
from ml_assets.data.tables.reader import TableReader
from ml_assets_tests.cli.end_to_end.greedy_source import HOW, launch
from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.prepared_home import prepare_home
from resources.platform import Platform
from resources.settings import Settings

TABLE, WEEK = "datasets/sales", "2024-01-01"
ADDRESSES = 5 * 2**30
"""Bytes of a limit by `ulimit -v`. Most of the addresses are those of torch's libraries."""
SAID = re.compile(
    r"OutOfMemory: .*Its process held (\d\.\d) GB or more, and may hold 5\.4 GB \(ulimit -v\)\. "
    r"Raise `ulimit -v`; or .*ML_ASSETS_CHUNK_MIB"
)


def _limit_addresses() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))


def test_a_launch_that_polars_aborts_says_bytes_and_remedy(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGABRT leaves no exception. Nothing is half written, and the next launch lands the partition."""
    home, lake = terminal.home, Platform(Settings(home=terminal.home)).lake
    before = lake.resolve("main")
    (home / HOW).write_text("polars")
    died = launch(home, TABLE, WEEK, limited=_limit_addresses)
    assert died.returncode == -signal.SIGABRT
    found = SAID.search(died.stderr)
    assert found is not None, died.stderr
    assert "an allocation of 80.0 MB failed" in found[0]
    assert 0 < float(found[1]) <= 5.4  # the last look at a process that takes memory fast, on a busy machine

    instance = _instance(home, monkeypatch)
    (run,) = instance.get_runs()
    assert run.status == dg.DagsterRunStatus.FAILURE
    assert reason_of(instance, run.run_id)[0].startswith(f"OutOfMemory: {TABLE} of {WEEK} ran out of memory")
    assert lake.resolve("main") == before

    (home / HOW).unlink()
    again = terminal("launch", TABLE, WEEK)
    assert again.status == 0, again.err
    assert TableReader.at(lake).keys(TABLE) == [WEEK]
    assert [one.status for one in instance.get_runs()][1:] == [dg.DagsterRunStatus.FAILURE]


def test_a_launch_whose_numpy_gets_no_memory_says_bytes_and_remedy(terminal: Terminal) -> None:
    """numpy raises an exception, and the process lives."""
    (terminal.home / HOW).write_text("numpy")
    failed = launch(terminal.home, TABLE, WEEK, limited=_limit_addresses)
    assert failed.returncode == 1
    assert SAID.search(failed.stderr) is not None, failed.stderr


def test_a_killed_launch_is_not_called_out_of_memory(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows who sent SIGKILL, but the kernel counts what it killed for memory."""
    (terminal.home / HOW).write_text("kill")
    assert launch(terminal.home, TABLE, WEEK).returncode == -signal.SIGKILL
    instance = _instance(terminal.home, monkeypatch)
    assert [run.status for run in instance.get_runs()] == [dg.DagsterRunStatus.STARTED]
    (terminal.home / HOW).unlink()
    assert terminal("launch", TABLE, WEEK).status == 0
    assert instance.get_runs()[1].status == dg.DagsterRunStatus.CANCELED


def _instance(home: Path, monkeypatch: pytest.MonkeyPatch) -> dg.DagsterInstance:
    monkeypatch.setenv("DAGSTER_HOME", "")  # `prepare_home` sets it
    settings = Settings(home=home)
    prepare_home(settings)
    return Project(settings).instance
